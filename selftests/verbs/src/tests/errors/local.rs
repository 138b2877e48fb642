// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors in the local memory of sends and receives.

use anyhow::{ensure, Result};

use super::{fails, receive_fails, untouched, SIZE};
use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{access, ffi, Mr, Op, Pd, Sge};
use crate::session::Session;

/// A SEND with a local key that does not exist.
// abi
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

/// A receive with a local key that does not exist.
// abi: R-676
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

/// A region of another PD as local memory of a SEND and of a receive.
// abi
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

/// Local memory that starts before its region, ends past its region, or wraps around the end of
/// the address space.
// abi: R-646
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

/// A receive into a region that the device may not write.
// abi
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
// abi
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

/// A message that is longer than its receive.
// abi: R-677
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
    // Part of the message may be in the receive, but nothing past the receive.
    compare(
        "past the receive",
        &mr.read(4999, SIZE - 4999),
        &[0x77; SIZE - 4999],
    )
}

/// A receive whose SGE reaches beyond its region takes a message that ends inside. A longer message
/// fails, and nothing is written past the region.
// abi
pub fn recv_beyond_region(session: &mut Session) -> Result<()> {
    const REGION: usize = 4096;
    const ROOM: usize = 256;
    for length in [64, ROOM, ROOM + 1, 3000] {
        let end = Endpoint::connect(session, &Options::default())?;
        let all = end.memory(SIZE)?;
        all.write(0, &[0x77; SIZE]);
        let region = all.register_part(0, REGION, access::LOCAL_WRITE)?;
        let place = Sge {
            length: SIZE as u32,
            ..region.sge(REGION - ROOM, ROOM)
        };
        let fits = length <= ROOM;
        if session.active() {
            let message = end.memory(length)?;
            message.write(0, &bytes(1, length));
            session.peer.meet()?;
            let sges = [message.sge(0, length)];
            match fits {
                true => drop(end.run(Op::Send, &sges)?.ok()?),
                false => fails(&end, Op::Send, &sges, ffi::IBV_WC_REM_OP_ERR)?,
            }
        } else {
            end.qp.recv(5, &[place])?;
            session.peer.meet()?;
            let wc = end.received()?;
            if fits {
                ensure!(wc.ok()?.bytes as usize == length, "{wc:?}");
                let found = all.read(REGION - ROOM, length);
                compare("the message", &found, &bytes(1, length))?;
            } else {
                wc.expect(ffi::IBV_WC_LOC_PROT_ERR)?;
            }
            let after = all.read(REGION, SIZE - REGION);
            compare("past the region", &after, &[0x77; SIZE - REGION])?;
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// A deregistered region as local memory.
// abi: R-122
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
