// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests that must fail, and with which status: InfiniBand specification, release 1.3,
//! volume 1, 9.9.2 (requester errors), 9.9.3 (responder errors) and 11.6.2 (completion status).

pub mod local;
pub mod remote;
pub mod transport;

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::compare;
use crate::rdma::{ffi, status_name, Mr, Op, SendWr, Sge};
use crate::session::{Session, LIMIT};

const SIZE: usize = 8192;

/// A failed request, seen from the requester: its status, and that it took the QP to ERR, where the
/// next is flushed.
fn fails(end: &Endpoint, op: Op, sges: &[Sge], status: u32) -> Result<()> {
    end.run(op, sges)?.expect(status)?;
    dead(end)
}

/// A request that takes the QP to ERR, and with which status.
fn fatal(end: &Endpoint, op: Op, sges: &[Sge]) -> Result<u32> {
    let status = end.run(op, sges)?.status;
    dead(end)?;
    Ok(status)
}

/// Checks that the QP is, or will soon be, in ERR, and flushes.
fn dead(end: &Endpoint) -> Result<()> {
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
    Ok(())
}

/// Attempts at a request that must fail, where the packet that tells why may be lost.
const ATTEMPTS: u32 = 3;

/// A round of both sides, of which the active one returns the status of a request that the passive
/// one refuses.
///
/// A responder says so once and is silent afterwards, as its QP is in ERR: where packets are lost,
/// the requester may only run out of retries. Such a round is repeated.
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

/// A request for the peer's memory, a region with the rights `target_access`, that must fail with
/// `status` and leave the memory as it was. `request` makes it of the region's address and key.
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
        dead(&end)?;
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

/// A SEND into a receive that must fail with `receiver`, and the SEND with `sender`.
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
        dead(end)
    }
}
