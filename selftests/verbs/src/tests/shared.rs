// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shared receive queues, and resizing of CQs.

use std::rc::Rc;

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{access, ffi, Cq, Kind, Mr, Op, Pd, Qp, SendWr, Sge, Srq};
use crate::session::{errno, refused, Session, LIMIT};

const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
/// Bytes of a message.
const SIZE: usize = 500;
/// Number of receives for which an SRQ has room.
const ROOM: u32 = 16;

/// One side: several QPs that take their receives from one SRQ.
struct Side {
    cq: Rc<Cq>,
    srq: Rc<Srq>,
    qps: Vec<Rc<Qp>>,
    mr: Mr,
}

impl Side {
    fn connect(session: &mut Session, count: usize, options: &Options) -> Result<Self> {
        let pd = Pd::new(&session.context)?;
        let srq = Srq::new(&pd, ROOM)?;
        let cq = Cq::new(&session.context, 256, None)?;
        let mut qps = Vec::new();
        for _ in 0..count {
            let qp = Qp::with_srq(options.kind, &pd, [&cq, &cq], &srq, options.caps)?;
            let qp = Rc::new(qp);
            Endpoint::link(session, &qp, options)?;
            qps.push(qp);
        }
        let mr = Mr::new(&pd, 64 * SIZE, access::ALL)?;
        Ok(Self { cq, srq, qps, mr })
    }

    fn post(&self, id: u64) -> Result<()> {
        let place = id as usize % 64 * SIZE;
        Ok(self.srq.recv(id, &[self.mr.sge(place, SIZE)])?)
    }

    /// Sends message `id` over QP `which`.
    fn send(&self, id: u64, which: usize) -> Result<()> {
        let place = id as usize % 64 * SIZE;
        self.mr.write(place, &bytes(id, SIZE));
        let sges = [self.mr.sge(place, SIZE)];
        self.qps[which].send(&SendWr::new(id, Op::Send, &sges))?;
        self.cq.wait(1, LIMIT)?[0].ok()?;
        Ok(())
    }

    /// Waits for the completion of receive `id`, and checks that it is message `message` to QP
    /// number `which`.
    fn receive(&self, id: u64, message: u64, which: usize) -> Result<()> {
        let wc = self.cq.wait(1, LIMIT)?[0].ok()?;
        ensure!(wc.id == id, "receive {} instead of {id}", wc.id);
        ensure!(
            wc.qpn == self.qps[which].qpn(),
            "message {id} by QP {:#x}",
            wc.qpn
        );
        let place = id as usize % 64 * SIZE;
        compare(
            &format!("message {message}"),
            &self.mr.read(place, SIZE),
            &bytes(message, SIZE),
        )
    }
}

/// Messages to several QPs take receives from one SRQ in the order of posting, while the SRQ wraps
/// many times. A full SRQ refuses more receives.
// abi
pub fn receives(session: &mut Session) -> Result<()> {
    for kind in [Kind::Rc, Kind::Uc] {
        let options = Options {
            kind,
            ..Options::default()
        };
        let side = Side::connect(session, 3, &options)?;
        let which = |id: u64| (id * 7 / 3 % 3) as usize;
        if session.active() {
            session.peer.meet()?;
            for id in 0..200 {
                side.send(id, which(id))?;
                session.peer.meet()?;
            }
        } else {
            let room = u64::from(side.srq.query()?.max_wr);
            for id in 0..room {
                side.post(id)?;
            }
            let error = side.srq.recv(99, &[]).err();
            ensure!(
                error.is_some_and(|error| error.error.raw_os_error() == Some(ENOMEM)),
                "a full SRQ took one more"
            );
            let own = side.qps[0].recv(1, &[]).err();
            ensure!(
                own.is_some_and(|error| error.error.raw_os_error() == Some(EINVAL)),
                "a QP with an SRQ took a receive"
            );
            session.peer.meet()?;
            for id in 0..200 {
                side.receive(id, id, which(id))?;
                side.post(id + room)?;
                session.peer.meet()?;
            }
        }
    }
    session.peer.meet()
}

/// Programs post receives of one length in a ring, so the last one may reach beyond the region.
/// Messages that end inside the region are taken.
// abi: R-675
pub fn beyond_region(session: &mut Session) -> Result<()> {
    const ROOM: usize = 64;
    for kind in [Kind::Rc, Kind::Uc] {
        let options = Options {
            kind,
            ..Options::default()
        };
        let side = Side::connect(session, 1, &options)?;
        let at = side.mr.len() - ROOM;
        if session.active() {
            session.peer.meet()?;
            side.mr.write(0, &bytes(7, ROOM));
            side.qps[0].send(&SendWr::new(1, Op::Send, &[side.mr.sge(0, ROOM)]))?;
            side.cq.wait(1, LIMIT)?[0].ok()?;
        } else {
            let place = Sge {
                length: SIZE as u32,
                ..side.mr.sge(at, ROOM)
            };
            side.srq.recv(1, &[place])?;
            session.peer.meet()?;
            side.cq.wait(1, LIMIT)?[0].ok()?;
            compare("message", &side.mr.read(at, ROOM), &bytes(7, ROOM))?;
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// The limit event is raised once. The SRQ can be enlarged while it contains receives. A QP in ERR
/// leaves the receives to the other QPs.
pub fn attributes(session: &mut Session) -> Result<()> {
    let side = Side::connect(session, 2, &Options::default())?;
    if session.active() {
        session.peer.meet()?;
        for id in 0..4 {
            side.send(id, 0)?;
        }
        session.peer.meet()?;
        for id in 4..40 {
            side.send(id, 1)?;
        }
        return session.peer.meet();
    }
    for id in 0..10 {
        side.post(id)?;
    }
    // abi: R-562
    side.srq.arm(7)?;
    // abi: R-563
    ensure!(side.srq.query()?.limit == 7, "limit not armed");
    session.peer.meet()?;
    for id in 0..4 {
        side.receive(id, id, 0)?;
    }
    let event = session.context.async_event(LIMIT)?;
    // abi: R-589
    ensure!(event == ffi::IBV_EVENT_SRQ_LIMIT_REACHED, "event {event}");
    // abi: R-568
    ensure!(side.srq.query()?.limit == 0, "limit still armed");

    side.srq.resize(64)?;
    ensure!(side.srq.query()?.max_wr >= 64, "not resized");
    side.srq.resize(40)?;
    for id in 10..40 {
        side.post(id)?;
    }
    side.qps[0].to_state(ffi::IBV_QPS_ERR)?;
    let event = session.context.async_event(LIMIT)?;
    // abi: R-567
    ensure!(event == ffi::IBV_EVENT_QP_LAST_WQE_REACHED, "event {event}");
    session.peer.meet()?;
    for id in 4..40 {
        // abi: R-576
        side.receive(id, id, 1)?;
    }
    side.cq.expect_empty()?;
    session.peer.meet()
}

/// SRQs of various sizes up to the limit of the device. Larger ones are refused.
// abi: R-72
pub fn sizes(session: &mut Session) -> Result<()> {
    let pd = Pd::new(&session.context)?;
    let most = session.context.limits()?.max_srq_wr;
    for max_wr in [1, 2, 3, 1000, most.min(32_768)] {
        let srq = Srq::new(&pd, max_wr)?;
        let room = srq.query()?.max_wr;
        ensure!(room >= max_wr, "{room} for {max_wr}");
        for id in 0..room.into() {
            srq.recv(id, &[])?;
        }
        ensure!(srq.recv(0, &[]).is_err(), "more than {room}");
    }
    for max_wr in [0, most + 1] {
        let error = refused("an SRQ that is too large", Srq::new(&pd, max_wr).map(drop))?;
        ensure!(errno(&error) == Some(EINVAL), "{max_wr}: {error:#}");
    }
    let srq = Srq::new(&pd, 16)?;
    let error = refused("a limit above the size", srq.arm(1000))?;
    ensure!(errno(&error) == Some(EINVAL), "{error:#}");
    session.peer.meet()
}

/// A CQ is resized while completions arrive and wait in it. No completion is lost or duplicated,
/// and their order is kept.
pub fn resize(session: &mut Session) -> Result<()> {
    const DEPTH: u32 = 64;
    let mut options = Options::default();
    options.caps.send_wr = DEPTH;
    options.cq_entries = Some(100);
    options.events = true;
    let end = Endpoint::connect(session, &options)?;
    let mr = end.memory(4096)?;
    let [addr, key] = session.peer.swap([mr.sge(0, 8).addr, mr.rkey().into()])?;
    if session.active() {
        let local = [mr.sge(8, 8)];
        let write = |id| {
            let op = Op::Write(addr, key as u32);
            end.qp.send(&SendWr::new(id, op, &local))
        };
        end.send.resize(DEPTH)?;
        let (mut posted, mut polled) = (0, 0);
        for round in 0..60 {
            while posted < polled + u64::from(DEPTH) {
                write(posted)?;
                posted += 1;
            }
            // abi: R-578
            end.send.resize([70, 1000, 32_766, 64][round % 4])?;
            let count = [10, 64, 33][round % 3];
            for wc in end.send.wait(count, LIMIT)? {
                // abi
                ensure!(wc.ok()?.id == polled, "{} instead of {polled}", wc.id);
                polled += 1;
            }
        }
        while polled < posted {
            ensure!(end.sent()?.ok()?.id == polled, "order");
            polled += 1;
        }
        end.send.expect_empty()?;
        // An event that was requested before the resize is raised after it.
        end.send.arm(false)?;
        end.send.resize(200)?;
        write(posted)?;
        // abi: R-584
        end.send.event(LIMIT)?;
        end.sent()?.ok()?;
        for entries in [0, session.context.limits()?.max_cqe + 1] {
            let error = refused("a CQ of no such size", end.send.resize(entries))?;
            ensure!(errno(&error) == Some(EINVAL), "{entries}: {error:#}");
        }
    }
    session.peer.meet()
}

/// A CQ holds as many completions as the device reports: all are written before the first is
/// polled.
// abi: R-83
pub fn full_cq(session: &mut Session) -> Result<()> {
    let limits = session.context.limits()?;
    let count = limits.max_cqe.min(limits.max_qp_wr);
    let mut options = Options::default();
    options.caps.send_wr = count;
    let end = Endpoint::connect(session, &options)?;
    let mr = end.memory(16)?;
    let remote = session.swap_memory(&mr)?;
    if session.active() {
        let last = u64::from(count) - 1;
        for id in 0..=last {
            let op = match id == last {
                true => Op::WriteImm(remote.addr, remote.rkey, 1),
                false => Op::Write(remote.addr, remote.rkey),
            };
            end.qp.send(&SendWr::new(id, op, &[mr.sge(8, 8)]))?;
        }
        // The peer has received the last message, and thus all earlier ones.
        session.peer.meet()?;
        for (id, wc) in (0..).zip(end.send.wait(count as usize, LIMIT)?) {
            ensure!(wc.ok()?.id == id, "{} instead of {id}", wc.id);
        }
        end.send.expect_empty()?;
    } else {
        end.qp.recv(1, &[])?;
        end.received()?.ok()?;
        session.peer.meet()?;
    }
    session.peer.meet()
}
