// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completion events.

use anyhow::{ensure, Context as _, Result};

use crate::endpoint::{Endpoint, Options};
use crate::rdma::{ffi, Op, SendWr};
use crate::session::{Session, LIMIT};

fn options() -> Options {
    Options {
        events: true,
        ..Options::default()
    }
}

/// Fails if an event of the receive CQ has arrived. Events of a channel are in order, so the next
/// event must be that of the send CQ, which this function causes.
fn no_event_of_receives(end: &Endpoint) -> Result<()> {
    end.send.arm(false)?;
    // An empty WRITE needs no memory and takes no receive.
    end.run(Op::Write(0, 0), &[])?.ok()?;
    end.send.event(LIMIT)
}

/// Ping-pong in which both sides wait for events.
// abi: R-560
pub fn next(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &options())?;
    let mr = end.memory(4096)?;
    let sges = [mr.sge(0, 64)];
    end.qp.recv(0, &sges)?;
    end.recv.arm(false)?;
    session.peer.meet()?;
    for round in 0..200 {
        if session.active() == (round % 2 == 0) {
            end.run(Op::Send, &sges)?.ok()?;
        } else {
            end.recv.event(LIMIT)?;
            end.received()?.ok()?;
            end.qp.recv(round, &sges)?;
            end.recv.arm(false)?;
        }
    }
    session.peer.meet()
}

/// A CQ that is armed for solicited completions raises no event for other completions.
// abi
pub fn solicited(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &options())?;
    let mr = end.memory(4096)?;
    let sges = [mr.sge(0, 64)];
    for _ in 0..20 {
        if session.active() {
            session.peer.meet()?;
            end.run(Op::Send, &sges)?.ok()?;
            session.peer.meet()?;
            end.qp.send(&SendWr {
                solicited: true,
                ..SendWr::new(1, Op::Send, &sges)
            })?;
            end.sent()?.ok()?;
        } else {
            end.qp.recv(0, &sges)?;
            end.qp.recv(1, &sges)?;
            end.recv.arm(true)?;
            session.peer.meet()?;
            ensure!(end.received()?.ok()?.id == 0);
            no_event_of_receives(&end).context("a completion that is not solicited")?;
            session.peer.meet()?;
            end.recv.event(LIMIT)?;
            ensure!(end.received()?.ok()?.id == 1);
            no_event_of_receives(&end).context("after the solicited completion")?;
        }
    }
    session.peer.meet()
}

/// A CQ that is armed for solicited completions raises an event for an error.
// abi
pub fn of_error(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &options())?;
    end.qp.recv(7, &[])?;
    end.recv.arm(true)?;
    session.peer.meet()?;
    end.qp.to_state(ffi::IBV_QPS_ERR)?;
    end.recv.event(LIMIT)?;
    ensure!(end.received()?.expect(ffi::IBV_WC_WR_FLUSH_ERR)?.id == 7);
    session.peer.meet()
}

/// Number of messages of a stream.
const MESSAGES: usize = 3000;
/// Largest number of messages of a stream that are in flight.
const DEPTH: usize = 32;

/// The peer sends as fast as possible. A consumer that arms the CQ before its last poll and then
/// waits for an event always gets the event.
// abi: R-557
pub fn none_lost(session: &mut Session) -> Result<()> {
    stream(session, |_| Ok(())).map(|_| ())
}

/// The same with moderation: fewer events arrive.
// abi: R-1225, R-1226
pub fn moderated(session: &mut Session) -> Result<()> {
    const COUNT: u16 = DEPTH as u16 / 2;
    let limits = session.context.moderation()?;
    let period = limits.max_cq_period;
    if limits.max_cq_count == 0 {
        let unmoderated = |end: &Endpoint| {
            ensure!(
                end.recv.moderate(COUNT, 1).is_err(),
                "no limits, but moderated"
            );
            Ok(())
        };
        return stream(session, unmoderated).map(|_| ());
    }
    let events = stream(session, |end| {
        // The largest values are accepted, and may be changed while the CQ is in use.
        end.recv.moderate(limits.max_cq_count, period)?;
        end.recv.moderate(COUNT, period)
    })?;
    // Only an event that is sent for its period can have fewer completions.
    if !session.active() {
        println!("# {events} events of {MESSAGES} completions");
    }
    ensure!(events <= MESSAGES / 4, "{events} events");
    Ok(())
}

/// The active side sends [`MESSAGES`] messages as fast as possible, and the other side waits for
/// an event whenever its CQ is empty. Returns the number of events. `prepare` is called before the
/// first message.
fn stream(session: &mut Session, prepare: impl FnOnce(&Endpoint) -> Result<()>) -> Result<usize> {
    let mut options = options();
    options.caps.recv_wr = DEPTH as u32;
    let end = Endpoint::connect(session, &options)?;
    prepare(&end)?;
    let mr = end.memory(4096)?;
    let sges = [mr.sge(0, 8)];
    let mut events = 0;
    if session.active() {
        session.peer.meet()?;
        let (mut posted, mut done) = (0, 0);
        let mut found = Vec::new();
        while done < MESSAGES {
            if posted < MESSAGES && posted - done < DEPTH {
                end.qp.send(&SendWr::new(posted as u64, Op::Send, &sges))?;
                posted += 1;
            }
            found.clear();
            if posted - done == DEPTH || posted == MESSAGES {
                found = end.send.wait(1, LIMIT)?;
            } else {
                end.send.poll(&mut found)?;
            }
            for wc in &found {
                wc.ok()?;
            }
            done += found.len();
        }
    } else {
        for id in 0..DEPTH as u64 {
            end.qp.recv(id, &sges)?;
        }
        end.recv.arm(false)?;
        session.peer.meet()?;
        let mut done = 0;
        let mut found = Vec::new();
        while done < MESSAGES {
            events += 1;
            end.recv
                .event(LIMIT)
                .with_context(|| format!("after {done} messages"))?;
            end.recv.arm(false)?;
            found.clear();
            while end.recv.poll(&mut found)? != 0 {}
            for wc in &found {
                wc.ok()?;
                end.qp.recv(wc.id, &sges)?;
            }
            done += found.len();
        }
    }
    session.peer.meet()?;
    Ok(events)
}

/// A peer's access without permission raises an asynchronous event.
// abi: R-589
pub fn of_violation(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &options())?;
    let mr = end.memory(4096)?;
    let remote = session.swap_memory(&mr)?;
    if session.active() {
        let op = Op::Write(remote.addr + 4000, remote.rkey);
        end.run(op, &[mr.sge(0, 1000)])?
            .expect(ffi::IBV_WC_REM_ACCESS_ERR)?;
        // The requester gets no asynchronous event, because the completion reports the error.
    } else {
        let event = session.context.async_event(LIMIT)?;
        ensure!(event == ffi::IBV_EVENT_QP_ACCESS_ERR, "event {event}");
    }
    session.peer.meet()
}
