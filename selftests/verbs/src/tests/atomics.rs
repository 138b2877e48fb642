// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Atomic operations on words of the peer.

use std::sync::atomic::Ordering;

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::rdma::{access, ffi, Mr, Op, SendWr};
use crate::session::{Remote, Session, LIMIT};

const ACCESS: u32 = access::ALL | access::REMOTE_ATOMIC;

/// Connects an end and registers an MR. The QP and the MR permit atomic operations. Returns the
/// end, the MR, and the memory of the peer.
fn connect(session: &mut Session) -> Result<(Endpoint, Mr, Remote)> {
    ensure!(
        session.context.limits()?.atomics,
        "the device says that it has none"
    );
    let options = Options {
        access: ACCESS,
        ..Options::default()
    };
    let end = Endpoint::connect(session, &options)?;
    let mr = Mr::new(&end.pd, 4096, ACCESS)?;
    let remote = session.swap_memory(&mr)?;
    Ok((end, mr, remote))
}

/// Atomic operations change the word and return its original value.
// abi
pub fn values(session: &mut Session) -> Result<()> {
    let (end, mr, remote) = connect(session)?;
    const AT: usize = 64;
    const START: u64 = u64::MAX - 4;
    let word = mr.word(AT);
    if session.active() {
        session.peer.meet()?;
        let at = remote.addr + AT as u64;
        let key = remote.rkey;
        let sges = [mr.sge(0, 8)];
        // Operation, opcode of its completion, and expected original value.
        for (op, opcode, found) in [
            (Op::FetchAdd(at, key, 7), ffi::IBV_WC_FETCH_ADD, START),
            (Op::FetchAdd(at, key, 1), ffi::IBV_WC_FETCH_ADD, 2),
            (Op::CompareSwap(at, key, 9, 1), ffi::IBV_WC_COMP_SWAP, 3),
            (Op::CompareSwap(at, key, 3, 77), ffi::IBV_WC_COMP_SWAP, 3),
            (Op::FetchAdd(at, key, 0), ffi::IBV_WC_FETCH_ADD, 77),
        ] {
            mr.word(0).store(0xdead, Ordering::SeqCst);
            let wc = end.run(op, &sges)?.ok()?;
            ensure!(wc.opcode == opcode, "opcode {} of {op:x?}", wc.opcode);
            let old = mr.word(0).load(Ordering::SeqCst);
            ensure!(old == found, "{op:x?} found {old:#x}");
        }
        session.peer.meet()
    } else {
        word.store(START, Ordering::SeqCst);
        session.peer.meet()?;
        session.peer.meet()?;
        ensure!(word.load(Ordering::SeqCst) == 77);
        ensure!(
            mr.word(AT - 8).load(Ordering::SeqCst) == 0
                && mr.word(AT + 8).load(Ordering::SeqCst) == 0
        );
        Ok(())
    }
}

/// Device and CPU add to the same word at the same time. No addition is lost.
// abi: R-666
pub fn beside_the_processor(session: &mut Session) -> Result<()> {
    const ROUNDS: u64 = 2000;
    const DEPTH: u64 = 16;
    let (end, mr, remote) = connect(session)?;
    let word = mr.word(0);
    if session.active() {
        session.peer.meet()?;
        let sges = [mr.sge(8, 8)];
        let op = Op::FetchAdd(remote.addr, remote.rkey, 1 << 32);
        let (mut posted, mut done) = (0, 0);
        while done < ROUNDS {
            while posted < ROUNDS && posted - done < DEPTH {
                end.qp.send(&SendWr::new(posted, op, &sges))?;
                posted += 1;
            }
            for wc in end.send.wait(1, LIMIT)? {
                wc.ok()?;
                done += 1;
            }
        }
        session.peer.say(&[done])?;
    } else {
        session.peer.meet()?;
        let mut added = 0;
        // Adds as long as the device does, but at least 100,000 times.
        while added < 100_000 || word.load(Ordering::SeqCst) >> 32 < ROUNDS {
            word.fetch_add(1, Ordering::SeqCst);
            added += 1;
            ensure!(added < u64::from(u32::MAX), "the peer adds nothing");
        }
        let [done] = session.peer.hear()?;
        let sum = word.load(Ordering::SeqCst);
        ensure!(
            sum == (done << 32) + added,
            "{sum:#x} after {done} and {added} additions"
        );
    }
    session.peer.meet()
}

/// Checks that an atomic operation fails with `status` if `edit` has changed its remote address or
/// key.
fn denied(session: &mut Session, status: u32, edit: impl Fn(Remote, &Mr) -> Remote) -> Result<()> {
    let (end, mr, remote) = connect(session)?;
    if session.active() {
        let remote = edit(remote, &mr);
        end.run(Op::FetchAdd(remote.addr, remote.rkey, 1), &[mr.sge(0, 8)])?
            .expect(status)?;
    }
    session.peer.meet()?;
    ensure!(mr.word(0).load(Ordering::SeqCst) == 0);
    Ok(())
}

/// A misaligned word is refused.
// abi: R-669
pub fn misaligned(session: &mut Session) -> Result<()> {
    denied(session, ffi::IBV_WC_REM_INV_REQ_ERR, |remote, _| Remote {
        addr: remote.addr + 4,
        ..remote
    })
}

/// A word past the end of the memory is refused.
// abi: R-667
pub fn out_of_range(session: &mut Session) -> Result<()> {
    denied(session, ffi::IBV_WC_REM_ACCESS_ERR, |remote, mr| Remote {
        addr: remote.addr + mr.len() as u64,
        ..remote
    })
}

/// Memory that does not permit atomic operations is not changed.
// abi
pub fn region_without_remote_atomic(session: &mut Session) -> Result<()> {
    let (end, _, _) = connect(session)?;
    let mr = Mr::new(&end.pd, 4096, access::ALL)?;
    let remote = session.swap_memory(&mr)?;
    if session.active() {
        let op = Op::CompareSwap(remote.addr, remote.rkey, 0, 1);
        end.run(op, &[mr.sge(0, 8)])?
            .expect(ffi::IBV_WC_REM_ACCESS_ERR)?;
    }
    session.peer.meet()?;
    ensure!(mr.word(0).load(Ordering::SeqCst) == 0);
    Ok(())
}
