// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Atomic WRITE and FLUSH (IBTA annex A19), which only the extended interface supports.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::extended::End;
use crate::rdma::{access, ffi, Cq, Kind, Mr, Op, Pd, Qp, SendWr, Wc};
use crate::session::{errno, refused, Remote, Session, LIMIT};

const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const SIZE: usize = 4096;
const GLOBAL: u8 = ffi::IBV_FLUSH_GLOBAL as u8;
const PERSISTENT: u8 = ffi::IBV_FLUSH_PERSISTENT as u8;
const RANGE: u8 = ffi::IBV_FLUSH_RANGE as u8;
const REGION: u8 = ffi::IBV_FLUSH_MR as u8;
const FLUSHES: u32 = access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;

/// One end, whose QP supports atomic WRITE and FLUSH.
struct Side {
    qp: Rc<Qp>,
    cq: Rc<Cq>,
    pd: Rc<Pd>,
}

impl Side {
    /// A connected QP that admits the remote operations `admitted`.
    fn new(session: &mut Session, admitted: u32) -> Result<Self> {
        let options = Options {
            access: admitted,
            ..Options::default()
        };
        let pd = Pd::new(&session.context)?;
        let cq = Cq::new(&session.context, 64, None)?;
        let operations = ffi::IBV_QP_EX_WITH_FLUSH | ffi::IBV_QP_EX_WITH_ATOMIC_WRITE;
        let qp = Qp::extended(Kind::Rc, &pd, [&cq, &cq], options.caps, |attr| {
            attr.send_ops_flags |= u64::from(operations);
        })?;
        let qp = Rc::new(qp);
        Endpoint::link(session, &qp, &options)?;
        Ok(Self { qp, cq, pd })
    }

    fn run(&self, ops: &[Op]) -> Result<Vec<Wc>> {
        let wrs: Vec<_> = (0..)
            .zip(ops)
            .map(|(id, op)| SendWr::new(id, *op, &[]))
            .collect();
        self.qp.build(&wrs, End::Complete)?;
        self.cq.wait(ops.len(), LIMIT)
    }

    fn fails(&self, op: Op, status: u32) -> Result<()> {
        self.run(&[op])?[0].expect(status)?;
        Ok(())
    }
}

/// Atomic WRITEs change words atomically and in order.
// abi
pub fn values(session: &mut Session) -> Result<()> {
    const ROUNDS: u64 = 200;
    let side = Side::new(session, access::REMOTE_WRITE)?;
    let mr = Mr::new(&side.pd, SIZE, access::LOCAL_WRITE | access::REMOTE_WRITE)?;
    let Remote { addr, rkey } = session.swap_memory(&mr)?;
    if session.active() {
        session.peer.meet()?;
        for round in 1..=ROUNDS {
            // Both halves of the word are equal, so the reader detects a torn word.
            let word = ((round << 32) | round).to_ne_bytes();
            let wc = side.run(&[Op::AtomicWrite(addr + 64, rkey, word)])?[0].ok()?;
            ensure!(wc.opcode == ffi::IBV_WC_ATOMIC_WRITE, "{wc:?}");
        }
        // Several atomic WRITEs to one word: the last value stays.
        let ops: Vec<_> = (0..30u64)
            .map(|n| Op::AtomicWrite(addr + 128, rkey, (n * 3).to_ne_bytes()))
            .collect();
        for wc in side.run(&ops)? {
            wc.ok()?;
        }
        return session.peer.meet();
    }
    let word = mr.word(64);
    session.peer.meet()?;
    let mut last = 0;
    while last != ROUNDS {
        let seen = word.load(Ordering::SeqCst);
        let round = seen & 0xffff_ffff;
        ensure!(seen >> 32 == round, "a torn word: {seen:#x}");
        ensure!(round >= last, "{round} after {last}");
        last = round;
    }
    session.peer.meet()?;
    ensure!(mr.word(128).load(Ordering::SeqCst) == 87);
    compare("words beside", &mr.read(56, 8), &[0; 8])?;
    compare("words beside", &mr.read(72, 8), &[0; 8])
}

/// Atomic WRITEs are refused if the word is misaligned, if the memory is read-only, or if the QP
/// does not permit them.
// abi
pub fn refusals(session: &mut Session) -> Result<()> {
    let writable = access::LOCAL_WRITE | access::REMOTE_WRITE;
    for (admitted, access, offset, status) in [
        (
            access::REMOTE_WRITE,
            writable,
            4,
            ffi::IBV_WC_REM_INV_REQ_ERR,
        ),
        (
            access::REMOTE_READ,
            writable,
            0,
            ffi::IBV_WC_REM_INV_REQ_ERR,
        ),
        (
            access::REMOTE_WRITE,
            access::LOCAL_WRITE | access::REMOTE_READ,
            0,
            ffi::IBV_WC_REM_ACCESS_ERR,
        ),
        (
            access::REMOTE_WRITE,
            writable,
            SIZE,
            ffi::IBV_WC_REM_ACCESS_ERR,
        ),
    ] {
        let side = Side::new(session, admitted)?;
        let mr = Mr::new(&side.pd, SIZE, access)?;
        let Remote { addr, rkey } = session.swap_memory(&mr)?;
        if session.active() {
            side.fails(Op::AtomicWrite(addr + offset as u64, rkey, [1; 8]), status)?;
        }
        session.peer.meet()?;
        compare("memory that must stay", &mr.read(0, SIZE), &[0; SIZE])?;
    }
    Ok(())
}

/// Data of earlier WRITEs is in memory after a FLUSH of a range or of the whole region.
// abi
pub fn range_and_region(session: &mut Session) -> Result<()> {
    let side = Side::new(session, access::REMOTE_WRITE | FLUSHES)?;
    let access = access::LOCAL_WRITE | access::REMOTE_WRITE | access::FLUSH_GLOBAL;
    let mr = Mr::new(&side.pd, SIZE, access)?;
    let own = Mr::new(&side.pd, SIZE, access::LOCAL_WRITE)?;
    let Remote { addr, rkey } = session.swap_memory(&mr)?;
    for (seed, (level, start, length)) in (1..).zip([
        (RANGE, addr, SIZE),
        (RANGE, addr + 100, 1),
        (RANGE, addr, 0),
        // For a FLUSH of the whole region, address and length are ignored.
        (REGION, 0, 12_345_678),
    ]) {
        if session.active() {
            own.write(0, &bytes(seed, SIZE));
            let sges = [own.sge(0, SIZE)];
            let wrs = [
                SendWr::new(1, Op::Write(addr, rkey), &sges),
                SendWr::new(2, Op::Flush(start, rkey, length, GLOBAL, level), &[]),
            ];
            side.qp.build(&wrs, End::Complete)?;
            for (id, wc) in (1..).zip(side.cq.wait(2, LIMIT)?) {
                ensure!(wc.ok()?.id == id, "{wc:?}");
                ensure!(id == 1 || wc.opcode == ffi::IBV_WC_FLUSH, "{wc:?}");
            }
            session.peer.meet()?;
        } else {
            session.peer.meet()?;
            compare("written", &mr.read(0, SIZE), &bytes(seed, SIZE))?;
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// FLUSHes are refused for memory without the access flag, wrong keys and ranges, and QPs that do
/// not permit them.
// abi: R-756
pub fn flush_refusals(session: &mut Session) -> Result<()> {
    let flushable = access::LOCAL_WRITE | access::FLUSH_GLOBAL;
    let access_error = ffi::IBV_WC_REM_ACCESS_ERR;
    for (admitted, access, length, types, level, status) in [
        (FLUSHES, access::LOCAL_WRITE, 8, GLOBAL, RANGE, access_error),
        (
            FLUSHES,
            access::LOCAL_WRITE,
            8,
            GLOBAL,
            REGION,
            access_error,
        ),
        (FLUSHES, flushable, SIZE + 1, GLOBAL, RANGE, access_error),
        (FLUSHES, flushable, 8, PERSISTENT, RANGE, access_error),
        (0, flushable, 8, GLOBAL, RANGE, ffi::IBV_WC_REM_INV_REQ_ERR),
    ] {
        let side = Side::new(session, admitted)?;
        let mr = Mr::new(&side.pd, SIZE, access)?;
        let Remote { addr, rkey } = session.swap_memory(&mr)?;
        if session.active() {
            side.fails(Op::Flush(addr, rkey, length, types, level), status)?;
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// Memory of a virtual machine is not persistent, so registering it with FLUSH_PERSISTENT fails.
// abi
pub fn persistent(session: &mut Session) -> Result<()> {
    let side = Side::new(session, FLUSHES)?;
    let access = access::LOCAL_WRITE | access::FLUSH_PERSISTENT;
    let error = refused("persistent memory", Mr::new(&side.pd, SIZE, access))?;
    let number = errno(&error);
    ensure!(matches!(number, Some(EINVAL | EOPNOTSUPP)), "{error:#}");
    session.peer.meet()
}
