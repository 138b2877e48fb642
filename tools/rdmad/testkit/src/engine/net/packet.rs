// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packets that tests build.

use roce::headers::Headers;
use roce::net::{gid_to_ip, Addresses};
use roce::packet::{build, frame_size};
use roce::Path;

use super::super::Vm;

/// A packet from the device of VM `from` to the device of VM `to`.
pub fn frame(from: &Vm, to: &Vm, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    frame_between((from.mac, from.gid), (to.mac, to.gid), headers, payload)
}

/// A packet between these MAC addresses and GIDs.
pub fn frame_between(
    from: ([u8; 6], [u8; 16]),
    to: ([u8; 6], [u8; 16]),
    headers: &Headers,
    payload: &[u8],
) -> Vec<u8> {
    let addresses = Addresses::new(gid_to_ip(from.1), gid_to_ip(to.1)).unwrap();
    let path = Path::new(from.0, to.0, addresses);
    let mut frame = vec![0; frame_size(&path, &headers.body, payload.len())];
    build(&mut frame, &path, 0, headers, payload.len(), |into| {
        into.copy_from_slice(payload);
        Ok::<_, ()>(())
    })
    .unwrap();
    frame
}
