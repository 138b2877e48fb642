// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! `vendor_err` of a completion with an error: the check of the device that failed.

use anyhow::Result;
use virtio_rdma_abi::cqe::WcReason;

use super::transport::without_peer;
use super::{flushes_in_err, refused_remotely, SIZE};
use crate::endpoint::{Endpoint, Options};
use crate::rdma::{ffi, Mr, Op, Sge, Wc};
use crate::session::{Remote, Session};

/// Runs `provoke` on the active side. It gets memory of both sides, and its work request must fail
/// with `status` for `reason`.
fn fails_for(
    session: &mut Session,
    options: &Options,
    status: u32,
    reason: WcReason,
    provoke: impl Fn(&Endpoint, &Mr, Remote) -> Result<Wc>,
) -> Result<()> {
    refused_remotely(session, status, |session| {
        let end = Endpoint::connect(session, options)?;
        let mr = end.memory(SIZE)?;
        let remote = session.swap_memory(&mr)?;
        let mut found = ffi::IBV_WC_SUCCESS;
        if session.active() {
            let wc = provoke(&end, &mr, remote)?;
            found = wc.status;
            if found == status {
                wc.expect_for(status, reason)?;
            }
            flushes_in_err(&end)?.expect_for(ffi::IBV_WC_WR_FLUSH_ERR, WcReason::Flushed)?;
        }
        session.peer.meet()?;
        Ok(found)
    })
}

/// A program reads the reason for an error.
// abi: R-685
pub fn told(session: &mut Session) -> Result<()> {
    let options = Options::default();
    let (local, remote) = (ffi::IBV_WC_LOC_PROT_ERR, ffi::IBV_WC_REM_ACCESS_ERR);
    let unknown = |end: &Endpoint, mr: &Mr, _| {
        let bad = Sge {
            lkey: mr.lkey() ^ 0x0055_5500,
            ..mr.sge(0, 100)
        };
        end.run(Op::Send, &[bad])
    };
    fails_for(session, &options, local, WcReason::NoSuchKey, unknown)?;
    let beyond = |end: &Endpoint, mr: &Mr, _| {
        let bad = Sge {
            length: SIZE as u32 + 1,
            ..mr.sge(0, SIZE)
        };
        end.run(Op::Send, &[bad])
    };
    fails_for(session, &options, local, WcReason::OutOfBounds, beyond)?;
    let bad_rkey = |end: &Endpoint, mr: &Mr, at: Remote| {
        let op = Op::Write(at.addr, at.rkey ^ 0x0055_5500);
        end.run(op, &[mr.sge(0, 100)])
    };
    fails_for(session, &options, remote, WcReason::PeerAccess, bad_rkey)?;
    let beyond = |end: &Endpoint, mr: &Mr, at: Remote| {
        let op = Op::Write(at.addr + SIZE as u64 - 99, at.rkey);
        end.run(op, &[mr.sge(0, 100)])
    };
    fails_for(session, &options, remote, WcReason::PeerAccess, beyond)?;
    let send = |end: &Endpoint, mr: &Mr, _| end.run(Op::Send, &[mr.sge(0, 100)]);
    let once = Options {
        rnr_retries: 1,
        ..options
    };
    let status = ffi::IBV_WC_RNR_RETRY_EXC_ERR;
    fails_for(session, &once, status, WcReason::PeerNotReady, send)?;
    without_peer(session, 1, |end, mr| {
        let wc = end.run(Op::Send, &[mr.sge(0, 100)])?;
        wc.expect_for(ffi::IBV_WC_RETRY_EXC_ERR, WcReason::PeerSilent)
            .map(drop)
    })
}
