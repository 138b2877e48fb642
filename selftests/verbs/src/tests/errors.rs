// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests that must fail, and with which status: InfiniBand specification, release 1.3, volume 1, 9.9.2
//! (requester errors), 9.9.3 (responder errors) and 11.6.2 (completion status).

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::compare;
use crate::rdma::{access, ffi, Mr, Op, Pd, SendWr, Sge};
use crate::session::{Session, LIMIT};

const SIZE: usize = 8192;

/// A failed request, seen from the requester: its status, and that it took the QP to ERR, where the next is flushed.
fn fails(end: &Endpoint, op: Op, sges: &[Sge], status: u32) -> Result<()> {
    end.run(op, sges)?.expect(status)?;
    dead(end)
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

/// An access to the peer's memory that must fail with `status` and leave the memory as it was. `prepare` makes the
/// target on the passive side; the active side's request starts `shift` bytes behind its start.
fn remote_access(
    session: &mut Session,
    options: &Options,
    status: u32,
    target_access: u32,
    request: impl Fn(u64, u32) -> Op,
) -> Result<()> {
    let end = Endpoint::connect(session, options)?;
    let mr = Mr::new(&end.pd, SIZE, target_access)?;
    mr.write(0, &[0x77; SIZE]);
    let source = end.memory(SIZE)?;
    let remote = session.swap_memory(&mr)?;
    if session.active() {
        fails(
            &end,
            request(remote.addr, remote.rkey),
            &[source.sge(0, 5000)],
            status,
        )?;
        session.peer.meet()
    } else {
        session.peer.meet()?;
        untouched(&mr)?;
        dead(&end)
    }
}

fn untouched(mr: &Mr) -> Result<()> {
    compare(
        "memory that must stay",
        &mr.read(0, mr.len()),
        &vec![0x77; mr.len()],
    )
}

/// A local key that does not exist.
pub fn send_bad_lkey(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    end.qp.recv(5, &[mr.sge(0, SIZE)])?;
    session.peer.meet()?;
    if session.active() {
        let bad = Sge {
            lkey: mr.lkey() ^ 0x0055_5500,
            ..mr.sge(0, 100)
        };
        fails(&end, Op::Send, &[bad], ffi::IBV_WC_LOC_PROT_ERR)?;
        let flushed = end.received()?.expect(ffi::IBV_WC_WR_FLUSH_ERR)?;
        ensure!(flushed.id == 5);
    }
    session.peer.meet()?;
    if !session.active() {
        // Nothing was sent.
        end.recv.expect_empty()?;
    }
    Ok(())
}

/// A local key that does not exist at the receiver.
pub fn recv_bad_lkey(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    let bad = Sge {
        lkey: mr.lkey() ^ 0x0055_5500,
        ..mr.sge(0, SIZE)
    };
    receive_fails(
        session,
        &end,
        &mr,
        bad,
        ffi::IBV_WC_LOC_PROT_ERR,
        ffi::IBV_WC_REM_OP_ERR,
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

/// A remote key that does not exist.
pub fn write_bad_rkey(session: &mut Session) -> Result<()> {
    remote_access(
        session,
        &Options::default(),
        ffi::IBV_WC_REM_ACCESS_ERR,
        access::ALL,
        |addr, rkey| Op::Write(addr, rkey ^ 0x0055_5500),
    )
}

/// The same with RDMA READ.
pub fn read_bad_rkey(session: &mut Session) -> Result<()> {
    remote_access(
        session,
        &Options::default(),
        ffi::IBV_WC_REM_ACCESS_ERR,
        access::ALL,
        |addr, rkey| Op::Read(addr, rkey ^ 0x0055_5500),
    )
}

/// A region of another PD as source of a SEND, and as place of a receive.
pub fn local_other_pd(session: &mut Session) -> Result<()> {
    let stranger = Pd::new(&session.context)?;
    let foreign = Mr::new(&stranger, SIZE, access::ALL)?;
    foreign.write(0, &[0x77; SIZE]);
    let end = Endpoint::connect(session, &Options::default())?;
    if session.active() {
        fails(
            &end,
            Op::Send,
            &[foreign.sge(0, 100)],
            ffi::IBV_WC_LOC_PROT_ERR,
        )?;
    }
    session.peer.meet()?;
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    let place = foreign.sge(0, SIZE);
    receive_fails(
        session,
        &end,
        &mr,
        place,
        ffi::IBV_WC_LOC_PROT_ERR,
        ffi::IBV_WC_REM_OP_ERR,
    )?;
    session.peer.meet()?;
    untouched(&foreign)
}

/// A remote region of another PD than the responder's QP.
pub fn remote_other_pd(session: &mut Session) -> Result<()> {
    for write in [true, false] {
        let stranger = Pd::new(&session.context)?;
        let foreign = Mr::new(&stranger, SIZE, access::ALL)?;
        foreign.write(0, &[0x77; SIZE]);
        let end = Endpoint::connect(session, &Options::default())?;
        let mr = end.memory(SIZE)?;
        let remote = session.swap_memory(&foreign)?;
        if session.active() {
            let op = match write {
                true => Op::Write(remote.addr, remote.rkey),
                false => Op::Read(remote.addr, remote.rkey),
            };
            fails(&end, op, &[mr.sge(0, 100)], ffi::IBV_WC_REM_ACCESS_ERR)?;
        }
        session.peer.meet()?;
        untouched(&foreign)?;
    }
    Ok(())
}

/// Local memory that begins before its region, ends behind it, or wraps around the end of the address space.
pub fn local_out_of_range(session: &mut Session) -> Result<()> {
    for case in 0..4 {
        let end = Endpoint::connect(session, &Options::default())?;
        let mr = end.memory(SIZE)?;
        let inside = mr.sge(0, SIZE);
        let bad = match case {
            0 => Sge {
                length: inside.length + 1,
                ..inside
            },
            1 => Sge {
                addr: inside.addr - 1,
                ..inside
            },
            2 => Sge {
                addr: inside.addr + SIZE as u64,
                length: 1,
                ..inside
            },
            _ => Sge {
                addr: u64::MAX - 10,
                length: 100,
                ..inside
            },
        };
        if session.active() {
            fails(&end, Op::Send, &[bad], ffi::IBV_WC_LOC_PROT_ERR)?;
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// The same of remote memory.
pub fn remote_out_of_range(session: &mut Session) -> Result<()> {
    // 5,000 bytes are moved.
    let shifts = [
        SIZE as u64 - 4999,
        1_u64.wrapping_neg(),
        SIZE as u64,
        1 << 40,
        // Beyond the end of the address space with every region in the lower half.
        u64::MAX / 2,
    ];
    for shift in shifts {
        for write in [true, false] {
            remote_access(
                session,
                &Options::default(),
                ffi::IBV_WC_REM_ACCESS_ERR,
                access::ALL,
                |addr, rkey| match write {
                    true => Op::Write(addr.wrapping_add(shift), rkey),
                    false => Op::Read(addr.wrapping_add(shift), rkey),
                },
            )?;
        }
    }
    Ok(())
}

/// RDMA WRITE to a region that peers may only read.
pub fn region_without_remote_write(session: &mut Session) -> Result<()> {
    remote_access(
        session,
        &Options::default(),
        ffi::IBV_WC_REM_ACCESS_ERR,
        access::LOCAL_WRITE | access::REMOTE_READ,
        Op::Write,
    )
}

/// RDMA READ from a region that peers may only write.
pub fn region_without_remote_read(session: &mut Session) -> Result<()> {
    remote_access(
        session,
        &Options::default(),
        ffi::IBV_WC_REM_ACCESS_ERR,
        access::LOCAL_WRITE | access::REMOTE_WRITE,
        Op::Read,
    )
}

/// A receive into a region that the device may not write.
pub fn recv_without_local_write(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    let constant = Mr::new(&end.pd, SIZE, 0)?;
    constant.write(0, &[0x77; SIZE]);
    let place = constant.sge(0, SIZE);
    receive_fails(
        session,
        &end,
        &mr,
        place,
        ffi::IBV_WC_LOC_PROT_ERR,
        ffi::IBV_WC_REM_OP_ERR,
    )?;
    session.peer.meet()?;
    untouched(&constant)
}

/// RDMA READ into a region that the device may not write.
pub fn read_without_local_write(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    let constant = Mr::new(&end.pd, SIZE, access::REMOTE_READ)?;
    constant.write(0, &[0x77; SIZE]);
    let remote = session.swap_memory(&mr)?;
    if session.active() {
        let op = Op::Read(remote.addr, remote.rkey);
        fails(&end, op, &[constant.sge(0, 5000)], ffi::IBV_WC_LOC_PROT_ERR)?;
    }
    session.peer.meet()?;
    untouched(&constant)
}

/// RDMA WRITE to a QP that was not set up for it.
pub fn qp_without_remote_write(session: &mut Session) -> Result<()> {
    let options = Options {
        access: access::REMOTE_READ,
        ..Options::default()
    };
    remote_access(
        session,
        &options,
        ffi::IBV_WC_REM_INV_REQ_ERR,
        access::ALL,
        Op::Write,
    )
}

/// RDMA READ from a QP that was not set up for it.
pub fn qp_without_remote_read(session: &mut Session) -> Result<()> {
    let options = Options {
        access: access::REMOTE_WRITE,
        ..Options::default()
    };
    remote_access(
        session,
        &options,
        ffi::IBV_WC_REM_INV_REQ_ERR,
        access::ALL,
        Op::Read,
    )
}

/// A message longer than the receive.
pub fn recv_too_short(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    mr.write(0, &[0x77; SIZE]);
    let place = mr.sge(0, 4999);
    receive_fails(
        session,
        &end,
        &mr,
        place,
        ffi::IBV_WC_LOC_LEN_ERR,
        ffi::IBV_WC_REM_INV_REQ_ERR,
    )?;
    session.peer.meet()?;
    // Part of the message may have landed in the receive, but nothing behind it.
    compare(
        "behind the receive",
        &mr.read(4999, SIZE - 4999),
        &[0x77; SIZE - 4999],
    )
}

/// A region that was deregistered, as local memory.
pub fn region_gone_local(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    let sge = mr.sge(0, 100);
    mr.deregister()?;
    if session.active() {
        fails(&end, Op::Send, &[sge], ffi::IBV_WC_LOC_PROT_ERR)?;
    }
    session.peer.meet()
}

/// A region that was deregistered, as remote memory.
pub fn region_gone_remote(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    let gone = end.memory(SIZE)?;
    let remote = session.swap_memory(&gone)?;
    gone.deregister()?;
    session.peer.meet()?;
    if session.active() {
        let op = Op::Write(remote.addr, remote.rkey);
        fails(&end, op, &[mr.sge(0, 100)], ffi::IBV_WC_REM_ACCESS_ERR)?;
    }
    session.peer.meet()
}

/// No receive is posted, and the retries for that run out.
pub fn receiver_not_ready(session: &mut Session) -> Result<()> {
    let options = Options {
        rnr_retries: 2,
        ..Options::default()
    };
    let end = Endpoint::connect(session, &options)?;
    let mr = end.memory(SIZE)?;
    if session.active() {
        fails(
            &end,
            Op::Send,
            &[mr.sge(0, 100)],
            ffi::IBV_WC_RNR_RETRY_EXC_ERR,
        )?;
    }
    session.peer.meet()?;
    end.recv.expect_empty()
}

/// No receive is posted at first, but before the retries run out.
pub fn receiver_ready_later(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(SIZE)?;
    if session.active() {
        mr.write(0, &[0x2b; 3000]);
        let sges = [mr.sge(0, 3000)];
        end.qp.send(&SendWr::new(1, Op::Send, &sges))?;
        session.peer.meet()?;
        end.sent()?.ok()?;
    } else {
        session.peer.meet()?;
        // Not a measure, only time for the first attempts to come to nothing.
        std::thread::sleep(Duration::from_millis(50));
        end.qp.recv(5, &[mr.sge(0, SIZE)])?;
        ensure!(end.received()?.ok()?.bytes == 3000);
        compare("message", &mr.read(0, 3000), &[0x2b; 3000])?;
    }
    session.peer.meet()
}

/// The peer's QP has gone, and the transport retries run out.
pub fn peer_gone(session: &mut Session) -> Result<()> {
    let options = Options {
        // 4.096 µs · 2¹⁴ is 67 ms.
        timeout: 14,
        retries: 3,
        ..Options::default()
    };
    let end = Endpoint::connect(session, &options)?;
    if !session.active() {
        drop(end);
        session.peer.meet()?;
        return session.peer.meet();
    }
    let mr = end.memory(SIZE)?;
    session.peer.meet()?;
    // Behind the one that runs into the void, others wait.
    let sges = [mr.sge(0, 100)];
    end.qp.send_all(&[
        SendWr::new(1, Op::Send, &sges),
        SendWr::new(2, Op::Send, &sges),
    ])?;
    let first = end.sent()?.expect(ffi::IBV_WC_RETRY_EXC_ERR)?;
    let second = end.sent()?.expect(ffi::IBV_WC_WR_FLUSH_ERR)?;
    ensure!((first.id, second.id) == (1, 2));
    dead(&end)?;
    session.peer.meet()
}
