// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Peers that are not ready or do not exist.

use std::time::Duration;

use anyhow::{ensure, Result};

use super::{fails, flushes_in_err, SIZE};
use crate::endpoint::{Endpoint, Options};
use crate::pattern::compare;
use crate::rdma::{ffi, Mr, Op, SendWr};
use crate::session::Session;

/// No receive is posted, and the RNR retries run out.
// abi
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

/// A receive is posted late, but before the RNR retries run out.
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
        // Time for the first attempts of the SEND to fail. The result does not depend on it.
        std::thread::sleep(Duration::from_millis(50));
        end.qp.recv(5, &[mr.sge(0, SIZE)])?;
        ensure!(end.received()?.ok()?.bytes == 3000);
        compare("message", &mr.read(0, 3000), &[0x2b; 3000])?;
    }
    session.peer.meet()
}

/// Runs `then` on the active side, with a QP whose peer is destroyed.
pub(super) fn without_peer(
    session: &mut Session,
    retries: u8,
    then: impl FnOnce(&Endpoint, &Mr) -> Result<()>,
) -> Result<()> {
    let options = Options {
        // 4.096 µs · 2¹⁴ is 67 ms.
        timeout: 14,
        retries,
        ..Options::default()
    };
    let end = Endpoint::connect(session, &options)?;
    if !session.active() {
        drop(end);
        session.release();
        session.peer.meet()?;
        return session.peer.meet();
    }
    let mr = end.memory(SIZE)?;
    session.peer.meet()?;
    then(&end, &mr)?;
    session.peer.meet()
}

/// The peer's QP is destroyed, and the transport retries run out.
// abi
pub fn peer_gone(session: &mut Session) -> Result<()> {
    without_peer(session, 3, |end, mr| {
        // The first SEND runs out of retries, and the second is flushed.
        let sges = [mr.sge(0, 100)];
        end.qp.send_all(&[
            SendWr::new(1, Op::Send, &sges),
            SendWr::new(2, Op::Send, &sges),
        ])?;
        let first = end.sent()?.expect(ffi::IBV_WC_RETRY_EXC_ERR)?;
        let second = end.sent()?.expect(ffi::IBV_WC_WR_FLUSH_ERR)?;
        ensure!((first.id, second.id) == (1, 2));
        flushes_in_err(end).map(drop)
    })
}
