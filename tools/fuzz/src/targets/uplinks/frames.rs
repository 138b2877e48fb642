// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frames of any content.

use roce::headers::{Bth, Headers, RcRequest, SendPart};
use roce::net::{Addresses, Mac};
use roce::packet::{build, frame_size};
use roce::work::With;
use roce::{Path, Psn};
use virtio_rdma_abi::number::Qpn;

use super::claims::claim;
use super::ledger::{mac, ADDRESS, GROUP, HONEST};
use crate::input::Input;

/// MAC addresses of hostile parties behind uplinks.
pub const HOSTILE: [Mac; 2] = [[2, 0, 0, 0, 2, 0], [2, 0, 0, 0, 2, 1]];
const STRANGER: Mac = [2, 0, 0, 0, 3, 0];
/// Frame lengths in bytes: around the limits, and of ordinary frames.
const LENGTHS: [usize; 8] = [13, 14, 64, 512, 1514, 9014, 9232, 9233];

/// A frame of another protocol than IP or ARP, which ends with `number`.
pub fn plain(to: Mac, from: Mac, number: u32, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.resize(14 + len, number as u8);
    frame.extend(number.to_be_bytes());
    frame
}

/// A valid RoCE frame, whose PSN is `number`.
pub fn roce(to: Mac, from: Mac, number: u32, len: usize) -> Vec<u8> {
    let send = RcRequest::from(SendPart::Only(With::Nothing));
    let headers = Headers::new(Bth::new(0xffff, Qpn::new(17), Psn::new(number)), send);
    let addresses = Addresses::V4(ADDRESS.into(), [10, 0, 0, 2].into());
    let path = Path::new(from, to, addresses);
    let mut frame = vec![0; frame_size(&path, &headers.body, len)];
    let built: Result<(), ()> = build(&mut frame, &path, 0, &headers, len, |out| {
        out.fill(number as u8);
        Ok(())
    });
    built.expect("nothing fails");
    frame
}

/// A frame of a hostile party whose address is `own`. The frame is unique if it has room for the
/// `number`.
pub fn hostile(input: &mut Input<'_>, own: Mac, number: u32) -> Vec<u8> {
    let any: [u8; 6] = std::array::from_fn(|_| input.any());
    let group = [0x01, 0, 0x5e, 0, 0, any[0]];
    let to = input.of(&[
        mac(0),
        mac(1),
        HONEST,
        HOSTILE[0],
        HOSTILE[1],
        [0xff; 6],
        GROUP,
        group,
        STRANGER,
        any,
    ]);
    let learned = [2, 0, 0, 7, any[4], any[5]];
    let from = input.of(&[
        own,
        own,
        own,
        own,
        learned,
        mac(0),
        mac(1),
        HONEST,
        HOSTILE[0],
        [0xff; 6],
        [0; 6],
        any,
    ]);
    let len = usize::from(input.any::<u8>());
    let kind = input.any::<u8>();
    let mut frame = match kind % 4 {
        _ if kind >= 0xe0 => [&to[..], &from, &claim(input, from)].concat(),
        0 => plain(to, from, number, len),
        1 => roce(to, from, number, len),
        2 => [&to[..], &from, &input.bytes(80)].concat(),
        // A RoCE frame with some bytes overwritten.
        _ => {
            let mut frame = roce(to, from, number, len);
            let at = 12 + input.below(40);
            for (byte, put) in frame[at..].iter_mut().zip(input.bytes(8)) {
                *byte = put;
            }
            frame
        }
    };
    match input.below(8) {
        0 => frame.truncate(usize::from(input.any::<u8>())),
        1 => frame.resize(input.of(&LENGTHS), 0x5a),
        _ => {}
    }
    renumber(&mut frame, number);
    frame
}

/// Overwrites the number at the end of a frame.
pub fn renumber(frame: &mut [u8], number: u32) {
    if let Some((head, tail)) = frame.split_last_chunk_mut::<4>() {
        // The number must not overwrite the Ethernet header: a shorter frame has no room for it.
        if head.len() >= 14 {
            *tail = number.to_be_bytes();
        }
    }
}
