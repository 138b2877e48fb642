// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Each target on its corpus, and on bytes that no corpus has.

use fuzz::TARGETS;

#[test]
fn targets_hold_on_their_corpora() {
    for target in TARGETS {
        let inputs = target.inputs();
        let inputs = inputs.unwrap_or_else(|why| panic!("corpus of {}: {why}", target.name));
        assert!(!inputs.is_empty(), "{} has an empty corpus", target.name);
        for (path, bytes) in inputs {
            target
                .check(&bytes)
                .unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        }
    }
}

#[test]
fn targets_take_any_bytes() {
    for target in TARGETS {
        for len in [0, 1, 7, 100, 600] {
            for byte in [0x00, 0x01, 0x5a, 0xff] {
                let done = target.check(&vec![byte; len]);
                done.unwrap_or_else(|why| panic!("{}, {len} x {byte:#x}: {why}", target.name));
            }
        }
    }
}

#[test]
fn corpora_are_small() {
    let files = TARGETS.iter().flat_map(|target| target.inputs().unwrap());
    let bytes: usize = files.map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes <= 600 << 10, "{bytes} bytes in all corpora");
}
