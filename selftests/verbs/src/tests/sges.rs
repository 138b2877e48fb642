// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Scatter and gather with 1 SGE up to the largest number of SGEs.

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare, Random};
use crate::rdma::{Mr, Op, Payload, SendWr, Sge};
use crate::session::Session;

/// Bytes of the longest piece.
const PIECE: usize = 3001;

/// Largest number of SGEs of a work request that the devices of both sides support: of an RDMA READ
/// if `read`, else of other work requests.
fn limit(session: &mut Session, read: bool) -> Result<u32> {
    let limits = session.context.limits()?;
    let own = match read {
        true => limits.max_sge.min(limits.max_sge_rd),
        false => limits.max_sge,
    };
    let [other] = session.peer.swap([own.into()])?;
    let limit = own.min(u32::try_from(other)?);
    ensure!(limit >= 1, "a device without SGEs");
    Ok(limit)
}

fn options(sges: u32) -> Options {
    let mut options = Options::default();
    options.caps.send_sge = sges;
    options.caps.recv_sge = sges;
    options
}

/// Pieces of a message in an MR, in reverse order with gaps between them. Their offsets are
/// unaligned, and some are empty.
struct Pieces {
    sges: Vec<Sge>,
    places: Vec<(usize, usize)>,
}

impl Pieces {
    fn new(mr: &Mr, count: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let places: Vec<(usize, usize)> = (0..count)
            .map(|index| {
                let length = if random.below(9) == 0 {
                    0
                } else {
                    1 + random.below(PIECE)
                };
                ((count - 1 - index) * (PIECE + 8) + random.below(7), length)
            })
            .collect();
        let sges = places
            .iter()
            .map(|&(at, length)| mr.sge(at, length))
            .collect();
        Self { sges, places }
    }

    fn total(&self) -> usize {
        self.places.iter().map(|place| place.1).sum()
    }

    fn store(&self, mr: &Mr, mut message: &[u8]) {
        for &(at, length) in &self.places {
            let (piece, rest) = message.split_at(length.min(message.len()));
            mr.write(at, piece);
            message = rest;
        }
    }

    /// The first `length` bytes of the concatenated pieces.
    fn load(&self, mr: &Mr, length: usize) -> Vec<u8> {
        let mut all: Vec<u8> = self
            .places
            .iter()
            .flat_map(|&(at, length)| mr.read(at, length))
            .collect();
        all.truncate(length);
        all
    }
}

/// Connects an end with the largest number of SGEs that both devices support. Returns the end,
/// memory for that many pieces, and that number.
fn connect(session: &mut Session, read: bool) -> Result<(Endpoint, Mr, usize)> {
    let limit = limit(session, read)?;
    let end = Endpoint::connect(session, &options(limit))?;
    let mr = end.memory(limit as usize * (PIECE + 8))?;
    Ok((end, mr, limit as usize))
}

/// SEND gathered from n pieces, received in other pieces.
pub fn send(session: &mut Session) -> Result<()> {
    let (end, mr, limit) = connect(session, false)?;
    for count in 1..=limit {
        let seed = count as u64;
        let own = Pieces::new(&mr, count, seed);
        if session.active() {
            // The message is at most as long as the pieces of the receiver.
            let [room] = session.peer.hear()?;
            let mut length = 0;
            let sges: Vec<Sge> = own
                .sges
                .iter()
                .map(|sge| {
                    let fits = (room as usize - length).min(sge.length as usize);
                    length += fits;
                    Sge {
                        length: fits as u32,
                        ..*sge
                    }
                })
                .collect();
            own.store(&mr, &bytes(seed, own.total()));
            session.peer.say(&[length as u64])?;
            end.run(Op::Send, &sges)?.ok()?;
        } else {
            let pieces = Pieces::new(&mr, limit + 1 - count, seed + 1000);
            mr.write(0, &vec![0xee; mr.len()]);
            end.qp.recv(seed, &pieces.sges)?;
            session.peer.say(&[pieces.total() as u64])?;
            let [length] = session.peer.hear()?;
            let wc = end.received()?.ok()?;
            ensure!(
                u64::from(wc.bytes) == length,
                "{} bytes of {length}",
                wc.bytes
            );
            let found = pieces.load(&mr, length as usize);
            compare(
                &format!("{count} SGEs"),
                &found,
                &bytes(seed, length as usize),
            )?;
        }
    }
    Ok(())
}

/// RDMA READ or RDMA WRITE between n pieces on the active side and one piece on the passive side.
fn one_sided(session: &mut Session, read: bool) -> Result<()> {
    const AT: usize = 3;
    let (end, mr, limit) = connect(session, read)?;
    let remote = session.swap_memory(&mr)?;
    let at = remote.addr + AT as u64;
    let op = match read {
        true => Op::Read(at, remote.rkey),
        false => Op::Write(at, remote.rkey),
    };
    for count in 1..=limit {
        let seed = count as u64;
        let pieces = Pieces::new(&mr, count, seed);
        let message = bytes(seed, pieces.total());
        let source = session.active() != read;
        match (source, session.active()) {
            (true, true) => pieces.store(&mr, &message),
            (true, false) => mr.write(AT, &message),
            (false, _) => mr.write(0, &vec![0xee; mr.len()]),
        }
        session.peer.meet()?;
        if session.active() {
            end.run(op, &pieces.sges)?.ok()?;
        }
        session.peer.meet()?;
        if !source {
            let found = match session.active() {
                true => pieces.load(&mr, message.len()),
                false => mr.read(AT, message.len()),
            };
            compare(&format!("{count} SGEs"), &found, &message)?;
        }
    }
    Ok(())
}

/// RDMA WRITE gathered from n pieces.
pub fn write(session: &mut Session) -> Result<()> {
    one_sided(session, false)
}

/// RDMA READ scattered to n pieces.
pub fn read(session: &mut Session) -> Result<()> {
    one_sided(session, true)
}

/// Messages without SGEs on either side.
pub fn none(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(4096)?;
    let remote = session.swap_memory(&mr)?;
    if session.active() {
        session.peer.meet()?;
        end.run(Op::Send, &[])?.ok()?;
        end.run(Op::SendImm(5), &[])?.ok()?;
        end.run(Op::Write(remote.addr, remote.rkey), &[])?.ok()?;
        end.run(Op::Read(remote.addr, remote.rkey), &[])?.ok()?;
    } else {
        end.qp.recv(1, &[])?;
        end.qp.recv(2, &[mr.sge(0, 64)])?;
        session.peer.meet()?;
        let first = end.received()?.ok()?;
        let second = end.received()?.ok()?;
        ensure!(
            (first.id, first.bytes, first.imm) == (1, 0, None),
            "{first:?}"
        );
        ensure!(
            (second.id, second.bytes, second.imm) == (2, 0, Some(5)),
            "{second:?}"
        );
    }
    session.peer.meet()
}

/// Empty inline messages over a QP without room for SGEs and inline data. There are more messages
/// than slots in the SQ.
pub fn none_inline(session: &mut Session) -> Result<()> {
    let mut options = Options::default();
    options.caps.send_wr = 16;
    options.caps.send_sge = 0;
    let end = Endpoint::connect(session, &options)?;
    for id in 0..100 {
        if session.active() {
            session.peer.meet()?;
            end.qp.send(&SendWr {
                payload: Payload::Inline(&[]),
                ..SendWr::new(id, Op::Send, &[])
            })?;
            ensure!(end.sent()?.ok()?.id == id);
        } else {
            end.qp.recv(id, &[])?;
            session.peer.meet()?;
            let wc = end.received()?.ok()?;
            ensure!((wc.id, wc.bytes) == (id, 0), "{wc:?}");
        }
    }
    session.peer.meet()
}

/// Inline messages over QPs that did not request inline data: the QP reports as many bytes as its
/// slots have room for, and takes them.
pub fn inline_unasked(session: &mut Session) -> Result<()> {
    let mut options = Options::default();
    options.caps.send_sge = 1;
    let end = Endpoint::connect(session, &options)?;
    let room = end.qp.caps().inline as usize;
    let mr = end.memory(4096)?;
    if session.active() {
        ensure!(room >= 16, "room for {room} bytes");
        session.peer.say(&[room as u64])?;
        for length in [1, 16, room] {
            session.peer.meet()?;
            let message = bytes(length as u64, length);
            end.qp.send(&SendWr {
                payload: Payload::Inline(&message),
                ..SendWr::new(1, Op::Send, &[])
            })?;
            end.sent()?.ok()?;
        }
        let message = bytes(1, room + 1);
        let more = SendWr {
            payload: Payload::Inline(&message),
            ..SendWr::new(1, Op::Send, &[])
        };
        ensure!(end.qp.send(&more).is_err(), "more than {room} bytes");
    } else {
        let [room] = session.peer.hear()?;
        for length in [1, 16, room as usize] {
            end.qp.recv(2, &[mr.sge(0, 4096)])?;
            session.peer.meet()?;
            ensure!(end.received()?.ok()?.bytes as usize == length);
            let message = bytes(length as u64, length);
            compare("inline message", &mr.read(0, length), &message)?;
        }
    }
    session.peer.meet()
}
