// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Queues that wrap, are full, share a CQ, are many, or send in both directions.

use std::rc::Rc;

use anyhow::{ensure, Context as _, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{access, Cq, Kind, Mr, Op, Pd, Qp, SendWr, Sge};
use crate::session::{Session, LIMIT};

const ENOMEM: i32 = 12;

fn sized(depth: u32) -> Options {
    let mut options = Options::default();
    options.caps.send_wr = depth;
    options.caps.recv_wr = depth;
    options
}

/// Thousands of messages pass queues of a few entries. Every fourth send is signaled. All messages
/// arrive in order.
pub fn wraps(session: &mut Session) -> Result<()> {
    const DEPTH: usize = 16;
    const MESSAGES: u64 = 4000;
    const SIZE: usize = 40;
    let end = Endpoint::connect(session, &sized(DEPTH as u32))?;
    let mr = end.memory(DEPTH * SIZE)?;
    let place = |id: u64| (id as usize % DEPTH) * SIZE;
    if session.active() {
        session.peer.meet()?;
        let mut outstanding = 0;
        for id in 0..MESSAGES {
            mr.write(place(id), &bytes(id, SIZE));
            let sges = [mr.sge(place(id), SIZE)];
            let signaled = id % 4 == 3;
            end.qp.send(&SendWr {
                signaled,
                ..SendWr::new(id, Op::Send, &sges)
            })?;
            outstanding += usize::from(signaled);
            if outstanding == DEPTH / 4 {
                let wc = end.sent()?.ok()?;
                ensure!(
                    wc.id == id - (DEPTH as u64 - 4),
                    "completion {} at {id}",
                    wc.id
                );
                outstanding -= 1;
            }
        }
        for wc in end.send.wait(outstanding, LIMIT)? {
            wc.ok()?;
        }
    } else {
        let post = |id: u64| end.qp.recv(id, &[mr.sge(place(id), SIZE)]);
        for id in 0..DEPTH as u64 {
            post(id)?;
        }
        session.peer.meet()?;
        for id in 0..MESSAGES {
            let wc = end.received()?.ok()?;
            ensure!(wc.id == id, "message {} instead of {id}", wc.id);
            compare(
                &format!("message {id}"),
                &mr.read(place(id), SIZE),
                &bytes(id, SIZE),
            )?;
            if id + (DEPTH as u64) < MESSAGES {
                post(id + DEPTH as u64)?;
            }
        }
    }
    session.peer.meet()
}

/// A full queue refuses the next work request with ENOMEM and continues to work.
// abi: R-532
pub fn full(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &sized(8))?;
    let mr = end.memory(4096)?;
    if session.active() {
        // No SEND completes, because the peer has posted no receive.
        let sges = [mr.sge(0, 8)];
        let mut posted = 0;
        let error = loop {
            match end.qp.send(&SendWr::new(posted, Op::Send, &sges)) {
                Ok(()) => posted += 1,
                Err(error) => break error,
            }
            ensure!(posted <= 65_536, "a send queue without end");
        };
        ensure!(error.error.raw_os_error() == Some(ENOMEM), "{error}");
        ensure!(
            posted >= 8 && posted == u64::from(end.qp.caps().send_wr),
            "{posted} sends fit"
        );
        session.peer.say(&[posted])?;
        let done = end.send.wait(posted as usize, LIMIT)?;
        for (id, wc) in (0..).zip(done) {
            ensure!(wc.ok()?.id == id, "completion {} instead of {id}", wc.id);
        }
        end.qp.send(&SendWr::new(posted, Op::Send, &sges))?;
        end.sent()?.ok()?;
    } else {
        let [expected] = session.peer.hear()?;
        let sges = [mr.sge(0, 8)];
        let mut posted = 0;
        let error = loop {
            match end.qp.recv(posted, &sges) {
                Ok(()) => posted += 1,
                Err(error) => break error,
            }
            ensure!(posted <= 65_536, "a receive queue without end");
        };
        ensure!(error.error.raw_os_error() == Some(ENOMEM), "{error}");
        for received in 0..=expected {
            end.received()
                .with_context(|| format!("receive {received} of {expected}"))?
                .ok()?;
            if posted <= expected {
                end.qp.recv(posted, &sges)?;
                posted += 1;
            }
        }
    }
    session.peer.meet()
}

/// A QP without an RQ sends to a QP without an SQ. Posting to an absent queue fails as if the queue
/// were full.
// abi: R-515
pub fn one_way(session: &mut Session) -> Result<()> {
    const MESSAGES: u64 = 40;
    const SIZE: usize = 3000;
    for kind in [Kind::Rc, Kind::Uc] {
        let mut options = Options {
            kind,
            cq_entries: Some(8),
            ..sized(8)
        };
        match session.active() {
            true => options.caps.recv_wr = 0,
            false => options.caps.send_wr = 0,
        }
        let end = Endpoint::connect(session, &options)?;
        let caps = end.qp.caps();
        let mr = end.memory(SIZE)?;
        let sges = [mr.sge(0, SIZE)];
        let absent = if session.active() {
            ensure!(caps.recv_wr == 0, "{caps:?}");
            end.qp.recv(0, &sges)
        } else {
            ensure!(caps.send_wr == 0, "{caps:?}");
            end.qp.send(&SendWr::new(0, Op::Send, &sges))
        };
        let error = absent.err().context("an absent queue took a request")?;
        ensure!(error.error.raw_os_error() == Some(ENOMEM), "{error}");
        for id in 0..MESSAGES {
            if session.active() {
                mr.write(0, &bytes(id, SIZE));
                session.peer.meet()?;
                end.run(Op::Send, &sges)?.ok()?;
            } else {
                end.qp.recv(id, &sges)?;
                session.peer.meet()?;
                ensure!(end.received()?.ok()?.id == id, "message {id}");
                compare(
                    &format!("message {id} of {kind:?}"),
                    &mr.read(0, SIZE),
                    &bytes(id, SIZE),
                )?;
            }
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// If a list contains an invalid work request, the work requests before it are executed, and the
/// error has the index of the invalid one.
pub fn bad_request(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(4096)?;
    let good = [mr.sge(0, 8)];
    let too_many: Vec<Sge> = vec![mr.sge(0, 1); 1 + session.context.limits()?.max_sge as usize];
    if session.active() {
        session.peer.meet()?;
        let list = [
            SendWr::new(0, Op::Send, &good),
            SendWr::new(1, Op::Send, &good),
            SendWr::new(2, Op::Send, &too_many),
            SendWr::new(3, Op::Send, &good),
        ];
        let error = end
            .qp
            .send_all(&list)
            .err()
            .context("too many SGEs were not refused")?;
        ensure!(error.index == 2, "{error}");
        let done = end.send.wait(2, LIMIT)?;
        ensure!(done[0].ok()?.id == 0 && done[1].ok()?.id == 1, "{done:?}");
        end.run(Op::Send, &good)?.ok()?;
    } else {
        let error = end
            .qp
            .recv_all(&[(0, &good), (1, &good), (2, &too_many), (3, &good)])
            .err()
            .context("too many SGEs were not refused")?;
        ensure!(error.index == 2, "{error}");
        end.qp.recv(2, &good)?;
        session.peer.meet()?;
        for id in 0..3 {
            ensure!(end.received()?.ok()?.id == id, "receive {id}");
        }
    }
    session.peer.meet()?;
    end.send.expect_empty()?;
    end.recv.expect_empty()
}

/// QPs and CQs are created up to the limits of the device and destroyed, several times, so that
/// their numbers are reused.
// abi: R-889
pub fn reused(session: &mut Session) -> Result<()> {
    const ENOUGH: usize = 150;
    session.peer.meet()?;
    for round in 0..3 {
        let pd = Pd::new(&session.context)?;
        let mut pairs = Vec::new();
        while pairs.len() < ENOUGH {
            let Ok(cq) = Cq::new(&session.context, 16, None) else {
                break;
            };
            match Qp::new(&pd, &cq, &cq, sized(8).caps) {
                Ok(qp) => pairs.push((qp, cq)),
                Err(_) => break,
            }
        }
        let limits = session.context.limits()?;
        // The kernel uses a few QPs and CQs.
        let promised = limits.max_qp.min(limits.max_cq) as usize;
        ensure!(
            pairs.len() + 8 >= promised.min(ENOUGH),
            "{} of {promised} in round {round}",
            pairs.len()
        );
        drop(pairs);
        let end = Endpoint::connect(session, &sized(8))?;
        let mr = end.memory(4096)?;
        let sges = [mr.sge(0, 100)];
        if session.active() {
            session.peer.meet()?;
            end.run(Op::Send, &sges)?.ok()?;
        } else {
            end.qp.recv(round, &sges)?;
            session.peer.meet()?;
            ensure!(end.received()?.ok()?.id == round);
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// Sixteen pairs at a time, all with outstanding work. Each message arrives at the right QP.
pub fn many_pairs(session: &mut Session) -> Result<()> {
    const PAIRS: usize = 16;
    const SIZE: usize = 5000;
    let pd = Pd::new(&session.context)?;
    let ends: Vec<Endpoint> = (0..PAIRS)
        .map(|_| Endpoint::connect_in(session, &pd, &sized(8)))
        .collect::<Result<_>>()?;
    let mr = ends[0].memory(PAIRS * SIZE)?;
    for round in 0..8 {
        let seed = |pair: usize| (round * PAIRS + pair) as u64;
        if session.active() {
            for pair in 0..PAIRS {
                mr.write(pair * SIZE, &bytes(seed(pair), SIZE));
            }
            session.peer.meet()?;
            for (pair, end) in ends.iter().enumerate() {
                let sges = [mr.sge(pair * SIZE, SIZE)];
                end.qp.send(&SendWr::new(pair as u64, Op::Send, &sges))?;
            }
            for end in ends.iter().rev() {
                end.sent()?.ok()?;
            }
        } else {
            mr.write(0, &vec![0; PAIRS * SIZE]);
            for (pair, end) in ends.iter().enumerate() {
                end.qp.recv(pair as u64, &[mr.sge(pair * SIZE, SIZE)])?;
            }
            session.peer.meet()?;
            for (pair, end) in ends.iter().enumerate() {
                let wc = end.received()?.ok()?;
                ensure!(
                    wc.qpn == end.qp.qpn() && wc.id == pair as u64,
                    "{wc:?} at pair {pair}"
                );
                compare(
                    &format!("pair {pair}"),
                    &mr.read(pair * SIZE, SIZE),
                    &bytes(seed(pair), SIZE),
                )?;
            }
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// Long messages in both directions at the same time.
pub fn both_directions(session: &mut Session) -> Result<()> {
    const SIZE: usize = (1 << 20) + 13;
    const COUNT: usize = 4;
    let end = Endpoint::connect(session, &Options::default())?;
    let outgoing = end.memory(COUNT * SIZE)?;
    let incoming = end.memory(COUNT * SIZE)?;
    let (own, other) = if session.active() {
        (0, 1000)
    } else {
        (1000, 0)
    };
    for index in 0..COUNT {
        outgoing.write(index * SIZE, &bytes(own + index as u64, SIZE));
        end.qp
            .recv(index as u64, &[incoming.sge(index * SIZE, SIZE)])?;
    }
    session.peer.meet()?;
    for index in 0..COUNT {
        let sges = [outgoing.sge(index * SIZE, SIZE)];
        end.qp.send(&SendWr::new(index as u64, Op::Send, &sges))?;
    }
    let sent = end.send.wait(COUNT, LIMIT)?;
    let received = end.recv.wait(COUNT, LIMIT)?;
    for index in 0..COUNT {
        ensure!(sent[index].ok()?.id == index as u64, "{sent:?}");
        ensure!(received[index].ok()?.id == index as u64, "{received:?}");
        let found = incoming.read(index * SIZE, SIZE);
        compare(
            &format!("message {index}"),
            &found,
            &bytes(other + index as u64, SIZE),
        )?;
    }
    session.peer.meet()
}

/// Two QPs use one CQ for all of their queues.
pub fn one_cq(session: &mut Session) -> Result<()> {
    let options = sized(8);
    let pd = Pd::new(&session.context)?;
    let cq = Cq::new(&session.context, 32, None)?;
    ensure!(cq.entries() >= 32, "{} entries", cq.entries());
    let qps = [
        Rc::new(Qp::new(&pd, &cq, &cq, options.caps)?),
        Rc::new(Qp::new(&pd, &cq, &cq, options.caps)?),
    ];
    for qp in &qps {
        Endpoint::link(session, qp, &options)?;
    }
    let mr = Mr::new(&pd, 4096, access::ALL)?;
    for round in 0..50_u64 {
        for (index, qp) in qps.iter().enumerate() {
            qp.recv(10 + index as u64, &[mr.sge(index * 64, 64)])?;
        }
        session.peer.meet()?;
        for (index, qp) in qps.iter().enumerate() {
            let sges = [mr.sge(1024, 64)];
            qp.send(&SendWr::new(20 + index as u64, Op::Send, &sges))?;
        }
        let mut done: Vec<(u64, u32)> = cq
            .wait(4, LIMIT)?
            .into_iter()
            .map(|wc| wc.ok().map(|wc| (wc.id, wc.qpn)))
            .collect::<Result<_>>()?;
        done.sort_unstable();
        let [a, b] = [qps[0].qpn(), qps[1].qpn()];
        ensure!(
            done == [(10, a), (11, b), (20, a), (21, b)],
            "round {round}: {done:?}"
        );
        session.peer.meet()?;
    }
    Ok(())
}

/// A QP is destroyed with posted receives and unpolled completions. The CQ has no completions of
/// this QP afterwards.
// abi
pub fn destroyed_with_work(session: &mut Session) -> Result<()> {
    let options = sized(8);
    let pd = Pd::new(&session.context)?;
    let cq = Cq::new(&session.context, 64, None)?;
    let mr = Mr::new(&pd, 4096, access::ALL)?;
    for _ in 0..10 {
        let qp = Rc::new(Qp::new(&pd, &cq, &cq, options.caps)?);
        Endpoint::link(session, &qp, &options)?;
        for id in 0..4 {
            qp.recv(id, &[mr.sge(0, 64)])?;
        }
        session.peer.meet()?;
        for id in 10..12 {
            let sges = [mr.sge(64, 64)];
            qp.send(&SendWr::new(id, Op::Send, &sges))?;
        }
        // The first completions are polled. Other completions may be in the CQ, or not yet written.
        let mut found = Vec::new();
        while found.is_empty() {
            cq.poll(&mut found)?;
        }
        session.peer.meet()?;
        drop(qp);
        session.release();
        cq.expect_empty()?;
        session.peer.meet()?;
    }
    Ok(())
}

/// A SEND with the fence flag sends the data of the preceding READ.
// abi: R-628
pub fn fence(session: &mut Session) -> Result<()> {
    const SIZE: usize = 200_000;
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    let landing = end.memory(SIZE)?;
    let remote = session.swap_memory(&landing)?;
    for round in 0..10_u64 {
        let message = bytes(round, SIZE);
        if session.active() {
            mr.write(0, &vec![0; SIZE]);
            session.peer.meet()?;
            let sges = [mr.sge(0, SIZE)];
            end.qp.send_all(&[
                SendWr {
                    signaled: false,
                    ..SendWr::new(1, Op::Read(remote.addr, remote.rkey), &sges)
                },
                SendWr {
                    fence: true,
                    ..SendWr::new(2, Op::Send, &sges)
                },
            ])?;
            ensure!(end.sent()?.ok()?.id == 2);
        } else {
            landing.write(0, &message);
            mr.write(0, &vec![0; SIZE]);
            end.qp.recv(round, &[mr.sge(0, SIZE)])?;
            session.peer.meet()?;
            end.received()?.ok()?;
            compare(&format!("round {round}"), &mr.read(0, SIZE), &message)?;
        }
        session.peer.meet()?;
    }
    Ok(())
}
