// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The frames of `tests/data/rxe-rocev2.pcap`.

/// All frames, in the order of capture.
pub fn frames() -> Vec<Vec<u8>> {
    let file = include_bytes!("../data/rxe-rocev2.pcap");
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(
        word(0),
        0xa1b2_c3d4,
        "a little-endian pcap file in microseconds"
    );
    let mut frames = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let length = word(at + 8);
        frames.push(file[at + 16..at + 16 + length].to_vec());
        at += 16 + length;
    }
    frames
}
