// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors of remote memory of RDMA WRITE and RDMA READ.

use anyhow::{ensure, Result};

use super::{fails, fatal, refused_remotely, remote_access, untouched, SIZE};
use crate::endpoint::{Endpoint, Options};
use crate::rdma::{access, ffi, Mr, Op, Pd};
use crate::session::Session;

/// RDMA WRITE with a remote key that does not exist.
// abi: R-653
pub fn write_bad_rkey(session: &mut Session) -> Result<()> {
    remote_access(
        session,
        &Options::default(),
        ffi::IBV_WC_REM_ACCESS_ERR,
        access::ALL,
        |addr, rkey| Op::Write(addr, rkey ^ 0x0055_5500),
    )
}

/// RDMA READ with a remote key that does not exist.
// abi: R-654
pub fn read_bad_rkey(session: &mut Session) -> Result<()> {
    remote_access(
        session,
        &Options::default(),
        ffi::IBV_WC_REM_ACCESS_ERR,
        access::ALL,
        |addr, rkey| Op::Read(addr, rkey ^ 0x0055_5500),
    )
}

/// A remote region that is not in the PD of the responder's QP.
// abi
pub fn remote_other_pd(session: &mut Session) -> Result<()> {
    for request in [Op::Write, Op::Read] {
        refused_remotely(session, ffi::IBV_WC_REM_ACCESS_ERR, |session| {
            let stranger = Pd::new(&session.context)?;
            let foreign = Mr::new(&stranger, SIZE, access::ALL)?;
            foreign.write(0, &[0x77; SIZE]);
            let end = Endpoint::connect(session, &Options::default())?;
            let mr = end.memory(SIZE)?;
            let remote = session.swap_memory(&foreign)?;
            let status = match session.active() {
                true => fatal(&end, request(remote.addr, remote.rkey), &[mr.sge(0, 100)])?,
                false => ffi::IBV_WC_SUCCESS,
            };
            session.peer.meet()?;
            untouched(&foreign)?;
            Ok(status)
        })?;
    }
    Ok(())
}

/// Remote memory that starts before its region or ends past its region, close to the region or
/// far from it.
// abi
pub fn remote_out_of_range(session: &mut Session) -> Result<()> {
    // Offsets from the start of the region. The requests have 5,000 bytes.
    let shifts = [
        SIZE as u64 - 4999,
        1_u64.wrapping_neg(),
        SIZE as u64,
        1 << 40,
        // In the upper half of the address space: regions of processes are in the lower half.
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
// abi: R-289
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
// abi: R-290
pub fn region_without_remote_read(session: &mut Session) -> Result<()> {
    remote_access(
        session,
        &Options::default(),
        ffi::IBV_WC_REM_ACCESS_ERR,
        access::LOCAL_WRITE | access::REMOTE_WRITE,
        Op::Read,
    )
}

/// RDMA WRITE to a QP that does not permit WRITEs.
// abi
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

/// RDMA READ from a QP that does not permit READs.
// abi
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

/// A deregistered region as remote memory.
// abi: R-122
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

/// A SEND can't invalidate the key of a registered region: the request fails, and the key stays
/// valid.
// abi: R-356
pub fn invalidate_user_key(session: &mut Session) -> Result<()> {
    let pd = Pd::new(&session.context)?;
    let end = Endpoint::connect_in(session, &pd, &Options::default())?;
    let mr = end.memory(SIZE)?;
    let remote = session.swap_memory(&mr)?;
    if session.active() {
        session.peer.meet()?;
        let op = Op::SendInvalidate(remote.rkey);
        fails(&end, op, &[mr.sge(0, 100)], ffi::IBV_WC_REM_ACCESS_ERR)?;
    } else {
        end.qp.recv(1, &[mr.sge(0, 100)])?;
        session.peer.meet()?;
        let wc = end.received()?;
        ensure!(
            wc.status != ffi::IBV_WC_SUCCESS && wc.invalidated.is_none(),
            "{wc:?}"
        );
    }
    session.peer.meet()?;
    let again = Endpoint::connect_in(session, &pd, &Options::default())?;
    if session.active() {
        let op = Op::Write(remote.addr, remote.rkey);
        again.run(op, &[mr.sge(0, 100)])?.ok()?;
    }
    session.peer.meet()
}
