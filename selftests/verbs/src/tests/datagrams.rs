// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! UD: messages with an address handle each.

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::mappings::Mappings;
use crate::pattern::{bytes, compare};
use crate::rdma::{ffi, Ah, Kind, Mr, Op, Payload, SendWr, To, QKEY};
use crate::session::{Session, LIMIT};

/// Bytes of the GRH ahead of each received message.
pub(super) const GRH: usize = 40;
const LARGEST: usize = 1024;

pub(super) fn options() -> Options {
    Options {
        kind: Kind::Ud,
        ..Options::default()
    }
}

/// An AH to the peer.
pub(super) fn to_peer(end: &Endpoint) -> Result<Ah> {
    Ah::new(&end.pd, |attr| {
        attr.port_num = 1;
        attr.is_global = 1;
        attr.grh.dgid.raw = end.path.gid;
        attr.grh.sgid_index = end.path.gid_index;
        attr.grh.hop_limit = 64;
    })
}

/// Sends one message to the peer's QP and waits for its completion.
pub(super) fn send(end: &Endpoint, ah: &Ah, qkey: u32, op: Op, payload: Payload<'_>) -> Result<()> {
    let qpn = end.path.qpn;
    send_to(end, To { ah, qpn, qkey }, op, payload)
}

/// Sends one message to `to` and waits for its completion.
pub(super) fn send_to(end: &Endpoint, to: To<'_>, op: Op, payload: Payload<'_>) -> Result<()> {
    end.qp.send(&SendWr {
        payload,
        to: Some(to),
        ..SendWr::new(1, op, &[])
    })?;
    let wc = end.sent()?.ok()?;
    ensure!(wc.opcode == ffi::IBV_WC_SEND, "opcode {}", wc.opcode);
    Ok(())
}

/// Waits for a message of the peer's QP and checks it: `length` bytes of `seed`, with the GRH at
/// the start of `mr`.
fn receive(end: &Endpoint, mr: &Mr, seed: u64, length: usize, imm: Option<u32>) -> Result<()> {
    receive_from(end, end.path.qpn, mr, seed, length, imm)
}

/// Like [`receive`], for a message of the QP `sender`.
pub(super) fn receive_from(
    end: &Endpoint,
    sender: u32,
    mr: &Mr,
    seed: u64,
    length: usize,
    imm: Option<u32>,
) -> Result<()> {
    let wc = end.received()?.ok()?;
    ensure!(wc.opcode == ffi::IBV_WC_RECV, "opcode {}", wc.opcode);
    ensure!(wc.bytes as usize == GRH + length, "{} bytes", wc.bytes);
    ensure!(wc.flags & ffi::IBV_WC_GRH != 0, "no GRH: {wc:?}");
    ensure!(wc.source == sender, "sender {}", wc.source);
    ensure!(wc.imm == imm, "immediate data {:x?}", wc.imm);
    compare(
        &format!("message of {length}"),
        &mr.read(GRH, length),
        &bytes(seed, length),
    )
}

/// Messages of all sizes, with and without immediate data, inline or not. Each message is answered
/// with an AH that is made from its completion.
pub fn messages(session: &mut Session) -> Result<()> {
    let mut options = options();
    options.caps.inline = 64;
    let end = Endpoint::connect(session, &options)?;
    let mr = end.memory(GRH + LARGEST)?;
    let source = end.memory(LARGEST)?;
    let ah = to_peer(&end)?;
    for length in [0, 1, 3, 63, 64, 65, 255, 256, 1000, 1023, LARGEST] {
        let seed = length as u64;
        let imm = (length % 2 == 1).then_some(0x8899_aabb);
        let op = imm.map_or(Op::Send, Op::SendImm);
        let message = bytes(seed, length);
        source.write(0, &message);
        let sges = [source.sge(0, length)];
        end.qp.recv(seed, &[mr.sge(0, GRH + LARGEST)])?;
        session.peer.meet()?;
        if session.active() {
            let payload = match length < 64 {
                true => Payload::Inline(&message),
                false => Payload::Sges(&sges),
            };
            send(&end, &ah, QKEY, op, payload)?;
            receive(&end, &mr, seed, length, imm)?;
        } else {
            let wc = end.recv.wait(1, LIMIT)?[0].ok()?;
            ensure!(wc.id == seed && wc.qpn == end.qp.qpn(), "{wc:?}");
            ensure!(wc.imm == imm && wc.bytes as usize == GRH + length, "{wc:?}");
            compare("message", &mr.read(GRH, length), &message)?;
            let back = Ah::back(&end.pd, &wc, &mr)?;
            send(&end, &back, QKEY, op, Payload::Sges(&sges))?;
        }
        session.peer.meet()?;
    }
    end.recv.expect_empty()
}

/// A message that is longer than the port's MTU is not sent.
// abi: R-713
pub fn too_long(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &options())?;
    if session.active() {
        let mtu = 128 << session.context.port()?.active_mtu;
        let mr = end.memory(mtu + 1)?;
        let ah = to_peer(&end)?;
        let sges = [mr.sge(0, mtu + 1)];
        end.qp.send(&SendWr {
            to: Some(To {
                ah: &ah,
                qpn: end.path.qpn,
                qkey: QKEY,
            }),
            ..SendWr::new(1, Op::Send, &sges)
        })?;
        end.sent()?.expect(ffi::IBV_WC_LOC_LEN_ERR)?;
    }
    session.peer.meet()
}

/// Sends messages by `bad`, which the receiver must drop, and then a valid message. Checks that
/// only the valid one is received.
fn only_the_last_arrives(
    session: &mut Session,
    bad: impl Fn(&Endpoint, &Ah, &[crate::rdma::Sge]) -> Result<()>,
) -> Result<()> {
    let end = Endpoint::connect(session, &options())?;
    let mr = end.memory(GRH + 64)?;
    let ah = to_peer(&end)?;
    if session.active() {
        session.peer.meet()?;
        mr.write(0, &bytes(1, 64));
        bad(&end, &ah, &[mr.sge(0, 64)])?;
        mr.write(0, &bytes(2, 64));
        send(&end, &ah, QKEY, Op::Send, Payload::Sges(&[mr.sge(0, 64)]))?;
    } else {
        end.qp.recv(7, &[mr.sge(0, GRH + 64)])?;
        session.peer.meet()?;
        receive(&end, &mr, 2, 64, None)?;
    }
    session.peer.meet()?;
    end.recv.expect_empty()
}

/// A message with a wrong Q_Key is dropped, without an error at the sender.
pub fn wrong_qkey(session: &mut Session) -> Result<()> {
    only_the_last_arrives(session, |end, ah, sges| {
        send(end, ah, QKEY + 1, Op::Send, Payload::Sges(sges))
    })
}

/// A message to a QPN that does not exist is dropped.
pub fn no_such_qp(session: &mut Session) -> Result<()> {
    only_the_last_arrives(session, |end, ah, sges| {
        let to = To {
            ah,
            qpn: 0x00ff_fff0,
            qkey: QKEY,
        };
        end.qp.send(&SendWr {
            to: Some(to),
            ..SendWr::new(3, Op::Send, sges)
        })?;
        end.sent()?.ok()?;
        Ok(())
    })
}

/// A datagram without a posted receive is dropped, and the next datagram is received.
pub fn no_receive(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &options())?;
    let witness = Endpoint::connect(session, &options())?;
    let mr = end.memory(GRH + 64)?;
    let ah = to_peer(&end)?;
    let sges = [mr.sge(0, 64)];
    if session.active() {
        session.peer.meet()?;
        mr.write(0, &bytes(1, 64));
        send(&end, &ah, QKEY, Op::Send, Payload::Sges(&sges))?;
        // A second datagram from the same QP. When it has arrived, the first was handled.
        let to = To {
            ah: &ah,
            qpn: witness.path.qpn,
            qkey: QKEY,
        };
        end.qp.send(&SendWr {
            to: Some(to),
            ..SendWr::new(4, Op::Send, &sges)
        })?;
        end.sent()?.ok()?;
        session.peer.meet()?;
        mr.write(0, &bytes(2, 64));
        send(&end, &ah, QKEY, Op::Send, Payload::Sges(&sges))?;
    } else {
        let seen = witness.memory(GRH + 64)?;
        witness.qp.recv(6, &[seen.sge(0, GRH + 64)])?;
        session.peer.meet()?;
        ensure!(witness.received()?.ok()?.id == 6);
        end.qp.recv(7, &[mr.sge(0, GRH + 64)])?;
        session.peer.meet()?;
        receive(&end, &mr, 2, 64, None)?;
    }
    session.peer.meet()?;
    end.recv.expect_empty()
}

/// A process may not choose a Q_Key with its top bit set: the message carries the Q_Key of the QP.
pub fn controlled_qkey(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &options())?;
    let mr = end.memory(GRH + 64)?;
    let ah = to_peer(&end)?;
    if session.active() {
        session.peer.meet()?;
        mr.write(0, &bytes(1, 64));
        let sges = [mr.sge(0, 64)];
        send(&end, &ah, 0x8001_0000, Op::Send, Payload::Sges(&sges))?;
    } else {
        end.qp.recv(7, &[mr.sge(0, GRH + 64)])?;
        session.peer.meet()?;
        receive(&end, &mr, 1, 64, None)?;
    }
    session.peer.meet()
}

/// The process forges address vectors. Port and PD in the address vector are ignored, and a message
/// with an invalid GID index is not sent.
pub fn forged(session: &mut Session) -> Result<()> {
    const PORT: usize = 0;
    const PDN: usize = 4;
    const GID_INDEX: usize = 28;
    let end = Endpoint::connect(session, &options())?;
    let mr = end.memory(GRH + 64)?;
    let sges = [mr.sge(0, 64)];
    if session.active() {
        ensure!(
            !Mappings::find(&end)?.rings().is_empty(),
            "address vectors are not memory of this process"
        );
        let ah = to_peer(&end)?;
        ah.forge(PORT, &[9, 0, 0, 0]);
        ah.forge(PDN, &[0xff, 0xff, 0x0f, 0]);
        session.peer.meet()?;
        mr.write(0, &bytes(1, 64));
        send(&end, &ah, QKEY, Op::Send, Payload::Sges(&sges))?;
        session.peer.meet()?;
        for index in [5, 200, 255] {
            let ah = to_peer(&end)?;
            ah.forge(GID_INDEX, &[index]);
            let to = To {
                ah: &ah,
                qpn: end.path.qpn,
                qkey: QKEY,
            };
            mr.write(0, &bytes(2, 64));
            let wr = SendWr {
                to: Some(to),
                ..SendWr::new(3, Op::Send, &sges)
            };
            // The first message may move the QP to an error state, so the others are flushed.
            end.qp.send(&wr)?;
            let wc = end.sent()?;
            ensure!(
                wc.status != ffi::IBV_WC_SUCCESS,
                "sent from the GID of index {index}"
            );
        }
    } else {
        end.qp.recv(7, &[mr.sge(0, GRH + 64)])?;
        end.qp.recv(8, &[mr.sge(0, GRH + 64)])?;
        session.peer.meet()?;
        receive(&end, &mr, 1, 64, None)?;
        session.peer.meet()?;
    }
    session.peer.meet()?;
    end.recv.expect_empty()
}
