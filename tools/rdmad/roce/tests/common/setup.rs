// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Helpers of tests with a single connection.
// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

use roce::headers::{Bth, Headers};
use roce::icrc::ICRC_SIZE;
use roce::packet::{build, frame_size};
use roce::work::{AtomicOp, Remote, SendFlags, SendOp, SendWr, WcStatus, With};
use roce::Packet;

use super::endpoint::{Pieces, Settings, BASE, RKEY};
use super::sim::{Faults, Sim};

/// Size of an endpoint's memory in bytes.
pub const MEMORY: usize = 64 << 10;
/// Length of a message of three packets in bytes.
pub const LEN: usize = 3000;
/// A SEND without immediate data and invalidation.
pub const SEND: SendOp = SendOp::Send {
    with: With::Nothing,
};

/// A connection over a channel without faults.
pub fn sim(settings: Settings) -> Sim {
    Sim::new(MEMORY, settings, Faults::default(), 1)
}

/// Address and R_Key of byte `offset` of the peer's memory.
pub fn at(offset: u64) -> Remote {
    Remote {
        va: BASE + offset,
        rkey: RKEY,
    }
}

/// Local memory of a message of [`LEN`] bytes.
pub fn local() -> Pieces {
    vec![0..LEN]
}

/// An RDMA WRITE without immediate data.
pub fn write(remote: Remote) -> SendOp {
    SendOp::Write { remote, imm: None }
}

/// A complete frame with these headers. Both endpoints accept the addresses of the frame.
pub fn sealed(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let path = roce::Path::new(
        [1; 6],
        [2; 6],
        roce::net::Addresses::V6(1u128.into(), 2u128.into()),
    );
    let mut frame = vec![0; frame_size(&path, &headers.body, payload.len())];
    let filled: Result<(), ()> = build(&mut frame, &path, 0, headers, payload.len(), |out| {
        out.copy_from_slice(payload);
        Ok(())
    });
    filled.unwrap();
    frame
}

/// Opcodes of the reliable connection service (IBTA 9.2.1, table 38).
pub const WRITE_ONLY: u8 = 0x0a;
pub const READ_RESPONSE_LAST: u8 = 0x0f;
pub const ACK: u8 = 0x11;

/// Opcode byte of a frame.
pub fn opcode(frame: &[u8]) -> u8 {
    let packet = Packet::parse(frame).expect("a sound frame");
    let end = frame.len() - ICRC_SIZE - packet.payload.len().next_multiple_of(4);
    frame[end - packet.headers.size()]
}

/// Posts a work request with `flags` on side 0. Its message has 8 bytes, or 0 for an operation on
/// local keys.
pub fn post_flags(sim: &mut Sim, id: u64, op: SendOp, flags: SendFlags) {
    let length = if let SendOp::Local { .. } = op { 0 } else { 8 };
    let wr = SendWr {
        id,
        op,
        length,
        flags,
        local: vec![0..length as usize],
    };
    sim.ends[0].requester.post(wr).expect("there is room");
}

/// A SEND that invalidates `rkey`.
pub fn invalidate(rkey: u32) -> SendOp {
    SendOp::Send {
        with: With::Inv(rkey),
    }
}

/// The frames that `side` sends now.
pub fn sent(sim: &mut Sim, side: usize) -> Vec<Vec<u8>> {
    let now = sim.now;
    sim.ends[side].transmit(usize::MAX, now);
    let frames = sim.ends[side].world.out.drain(..);
    frames.map(|frame| frame.to_vec()).collect()
}

/// The value of a word after an atomic operation, if its value was `original` before.
pub fn apply(op: AtomicOp, original: u64) -> u64 {
    match op {
        AtomicOp::CompareSwap { compare, swap } if original == compare => swap,
        AtomicOp::CompareSwap { .. } => original,
        AtomicOp::FetchAdd { add } => original.wrapping_add(add),
    }
}

/// Statuses of the completed send work requests of side 0, in order.
pub fn statuses(sim: &Sim) -> Vec<WcStatus> {
    let sent = &sim.ends[0].world.sent;
    assert!(
        sent.iter()
            .enumerate()
            .all(|(id, (wr, _))| id as u64 == *wr),
        "in order of posting"
    );
    sent.iter().map(|(_, status)| *status).collect()
}

/// BTHs of all frames that side 0 sent.
pub fn requests(sim: &Sim) -> Vec<Bth> {
    let sent = sim.log.iter().filter(|(from, _)| *from == 0);
    sent.map(|(_, frame)| Packet::parse(frame).unwrap().headers.bth)
        .collect()
}
