// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests that must fail, and their completion status: InfiniBand specification, release
//! 1.3, volume 1, 9.9.2 (requester errors), 9.9.3 (responder errors) and 11.6.2 (status).

pub mod local;
pub mod reasons;
pub mod remote;
pub mod transport;

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::compare;
use crate::rdma::{ffi, status_name, Mr, Op, SendWr, Sge, Wc};
use crate::session::{Session, LIMIT};

const SIZE: usize = 8192;

/// Checks that a request fails with `status` and moves the QP to ERR, where the next request is
/// flushed.
fn fails(end: &Endpoint, op: Op, sges: &[Sge], status: u32) -> Result<()> {
    end.run(op, sges)?.expect(status)?;
    flushes_in_err(end).map(drop)
}

/// Checks that a request moves the QP to ERR. Returns the status of the request.
fn fatal(end: &Endpoint, op: Op, sges: &[Sge]) -> Result<u32> {
    let status = end.run(op, sges)?.status;
    flushes_in_err(end)?;
    Ok(status)
}

/// Waits until the QP is in ERR, and checks that it flushes work requests. Returns the completion
/// of one.
fn flushes_in_err(end: &Endpoint) -> Result<Wc> {
    let deadline = Instant::now() + LIMIT;
    while end.qp.state()? != ffi::IBV_QPS_ERR {
        ensure!(
            Instant::now() < deadline,
            "the QP is not in ERR but {}",
            end.qp.state()?
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    end.qp.send(&SendWr::new(99, Op::Send, &[]))?;
    let wc = end.sent()?.expect(ffi::IBV_WC_WR_FLUSH_ERR)?;
    ensure!(wc.id == 99, "completion {}", wc.id);
    Ok(wc)
}

/// Maximum number of attempts at a request that must fail, if packets may get lost.
const ATTEMPTS: u32 = 3;

/// Runs `round` on both sides. On the active side, `round` returns the completion status of a
/// request that the passive side refuses. Checks that this status is `status`.
///
/// A responder sends only one NAK, because its QP is in ERR afterwards. If the NAK gets lost, the
/// requester runs out of retries. Such a round is repeated.
fn refused_remotely(
    session: &mut Session,
    status: u32,
    mut round: impl FnMut(&mut Session) -> Result<u32>,
) -> Result<()> {
    for attempt in 1.. {
        let found = round(session)?;
        let again = if session.active() {
            let untold = session.settings.lossy && found == ffi::IBV_WC_RETRY_EXC_ERR;
            let again = untold && attempt < ATTEMPTS;
            ensure!(
                again || found == status,
                "{} instead of {}, attempt {attempt}",
                status_name(found),
                status_name(status)
            );
            session.peer.say(&[again.into()])?;
            again
        } else {
            let [again] = session.peer.hear()?;
            again != 0
        };
        if !again {
            break;
        }
    }
    Ok(())
}

/// Checks that a request to a region of the peer with the access flags `target_access` fails with
/// `status` and does not change the region. `request` gets address and key of the region.
fn remote_access(
    session: &mut Session,
    options: &Options,
    status: u32,
    target_access: u32,
    request: impl Fn(u64, u32) -> Op,
) -> Result<()> {
    refused_remotely(session, status, |session| {
        remote_request(session, options, target_access, &request)
    })
}

fn remote_request(
    session: &mut Session,
    options: &Options,
    target_access: u32,
    request: impl Fn(u64, u32) -> Op,
) -> Result<u32> {
    let end = Endpoint::connect(session, options)?;
    let mr = Mr::new(&end.pd, SIZE, target_access)?;
    mr.write(0, &[0x77; SIZE]);
    let source = end.memory(SIZE)?;
    let remote = session.swap_memory(&mr)?;
    if session.active() {
        let op = request(remote.addr, remote.rkey);
        let status = fatal(&end, op, &[source.sge(0, 5000)])?;
        session.peer.meet()?;
        Ok(status)
    } else {
        session.peer.meet()?;
        untouched(&mr)?;
        flushes_in_err(&end)?;
        Ok(ffi::IBV_WC_SUCCESS)
    }
}

fn untouched(mr: &Mr) -> Result<()> {
    compare(
        "memory that must stay",
        &mr.read(0, mr.len()),
        &vec![0x77; mr.len()],
    )
}

/// Checks that a receive into `place` fails with status `receiver`, and its SEND with `sender`.
fn receive_fails(
    session: &mut Session,
    end: &Endpoint,
    mr: &Mr,
    place: Sge,
    receiver: u32,
    sender: u32,
) -> Result<()> {
    if session.active() {
        session.peer.meet()?;
        fails(end, Op::Send, &[mr.sge(0, 5000)], sender)
    } else {
        end.qp.recv(5, &[place])?;
        end.qp.recv(6, &[])?;
        session.peer.meet()?;
        ensure!(end.received()?.expect(receiver)?.id == 5);
        ensure!(end.received()?.expect(ffi::IBV_WC_WR_FLUSH_ERR)?.id == 6);
        flushes_in_err(end).map(drop)
    }
}
