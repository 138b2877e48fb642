// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QP states and their transitions.

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{access, ffi, Cq, Kind, Op, Path, Pd, Qp, SendWr, Timing, QKEY};
use crate::session::{errno, read_gid, refused, Session, LIMIT};

const EINVAL: i32 = 22;

/// The queue sizes of a QP can't change: ib_core's table of transitions allows no new sizes.
// abi: R-211
pub fn sizes(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let fresh = Qp::new(&end.pd, &end.send, &end.recv, Options::default().caps)?;
    fresh.init(access::ALL)?;
    for (qp, state) in [(&fresh, ffi::IBV_QPS_INIT), (&end.qp, ffi::IBV_QPS_RTS)] {
        let before = qp.query()?.cap;
        let grow = |with_state: u32| {
            qp.modify(|attr| {
                attr.qp_state = state;
                attr.cap = before;
                attr.cap.max_send_wr *= 2;
                attr.cap.max_recv_wr *= 2;
                ffi::IBV_QP_CAP | with_state
            })
        };
        for with_state in [0, ffi::IBV_QP_STATE] {
            let error = refused("other sizes", grow(with_state))?;
            ensure!(errno(&error) == Some(EINVAL), "{error:#}");
        }
        let after = qp.query()?;
        ensure!(after.qp_state == state, "state {}", after.qp_state);
        ensure!(
            (after.cap.max_send_wr, after.cap.max_recv_wr)
                == (before.max_send_wr, before.max_recv_wr),
            "{} sends and {} receives",
            after.cap.max_send_wr,
            after.cap.max_recv_wr
        );
    }
    session.peer.meet()
}

/// Queries return the attributes that were set, in all states.
pub fn query(session: &mut Session) -> Result<()> {
    let options = Options {
        access: access::REMOTE_READ,
        mtu: ffi::IBV_MTU_512,
        reads: 1,
        timeout: 17,
        retries: 5,
        rnr_retries: 6,
        rnr_timer: 12,
        psn: 0x0012_3456,
        ..Options::default()
    };
    let end = Endpoint::connect(session, &options)?;
    // abi
    let attr = end.qp.query()?;
    ensure!(attr.qp_state == ffi::IBV_QPS_RTS, "state {}", attr.qp_state);
    // abi: R-220
    ensure!(attr.path_mtu == options.mtu, "path MTU {}", attr.path_mtu);
    // abi: R-225
    ensure!(
        attr.dest_qp_num == end.path.qpn,
        "destination QPN {}",
        attr.dest_qp_num
    );
    // abi: R-223
    ensure!(attr.rq_psn == end.path.psn, "RQ PSN {:#x}", attr.rq_psn);
    // abi: R-224
    ensure!(attr.sq_psn == options.psn, "SQ PSN {:#x}", attr.sq_psn);
    // abi: R-226
    ensure!(
        attr.qp_access_flags & access::REMOTE_READ != 0
            && attr.qp_access_flags & access::REMOTE_WRITE == 0,
        "access {:#x}",
        attr.qp_access_flags
    );
    // abi: R-235
    ensure!(attr.timeout == options.timeout, "timeout {}", attr.timeout);
    // abi: R-236
    ensure!(
        attr.retry_cnt == options.retries,
        "retries {}",
        attr.retry_cnt
    );
    // abi: R-237
    ensure!(
        attr.rnr_retry == options.rnr_retries,
        "RNR retries {}",
        attr.rnr_retry
    );
    // abi: R-233
    ensure!(
        attr.min_rnr_timer == options.rnr_timer,
        "RNR timer {}",
        attr.min_rnr_timer
    );
    // abi: R-231
    ensure!(
        attr.max_rd_atomic == 1,
        "READs as requester {}",
        attr.max_rd_atomic
    );
    // abi: R-232
    ensure!(
        attr.max_dest_rd_atomic == 1,
        "READs as responder {}",
        attr.max_dest_rd_atomic
    );
    // abi: R-234
    ensure!(attr.port_num == 1, "port {}", attr.port_num);
    // SAFETY: All members of the union are valid for any bytes.
    let dgid = unsafe { attr.ah_attr.grh.dgid.raw };
    // abi: R-253
    ensure!(dgid == end.path.gid, "destination GID {dgid:x?}");
    // abi: R-241
    ensure!(
        attr.cap.max_send_wr == end.qp.caps().send_wr,
        "send WRs {}",
        attr.cap.max_send_wr
    );
    ensure!(
        attr.cap.max_recv_wr == end.qp.caps().recv_wr,
        "receive WRs {}",
        attr.cap.max_recv_wr
    );
    session.peer.meet()?;
    end.qp.to_state(ffi::IBV_QPS_ERR)?;
    ensure!(end.qp.state()? == ffi::IBV_QPS_ERR);
    end.qp.to_state(ffi::IBV_QPS_RESET)?;
    ensure!(end.qp.state()? == ffi::IBV_QPS_RESET);
    end.qp.init(0)?;
    ensure!(end.qp.state()? == ffi::IBV_QPS_INIT);
    session.peer.meet()
}

/// Transitions that are not in the state table, and values out of range, are refused and change
/// nothing.
pub fn bad_transitions(session: &mut Session) -> Result<()> {
    let options = Options::default();
    let pd = Pd::new(&session.context)?;
    let cq = Cq::new(&session.context, 16, None)?;
    let qp = Qp::new(&pd, &cq, &cq, options.caps)?;
    let gid_index = session.settings.gid_index;
    let path = Path {
        qpn: qp.qpn(),
        psn: 0,
        gid: read_gid(session.context.name(), gid_index)?,
        gid_index,
        mtu: options.mtu,
        reads: 1,
        rnr_timer: 1,
    };
    let timing = Timing {
        psn: 0,
        timeout: 14,
        retries: 7,
        rnr_retries: 7,
        reads: 1,
    };
    let invalid = |what: &str, result: Result<()>, state: u32| -> Result<()> {
        let error = refused(what, result)?;
        ensure!(errno(&error) == Some(EINVAL), "{what}: {error:#}");
        // abi: R-212
        ensure!(
            qp.state()? == state,
            "{what} changed the state to {}",
            qp.state()?
        );
        Ok(())
    };
    let active_mtu = session.context.port()?.active_mtu;
    // abi: R-203
    invalid("RESET to RTR", qp.rtr(&path), ffi::IBV_QPS_RESET)?;
    invalid("RESET to RTS", qp.rts(&timing), ffi::IBV_QPS_RESET)?;
    let sge = crate::rdma::Mr::new(&pd, 64, access::ALL)?;
    ensure!(
        qp.recv(1, &[sge.sge(0, 64)]).is_err(),
        "a receive was posted in RESET"
    );
    qp.init(access::ALL)?;
    invalid("INIT to RTS", qp.rts(&timing), ffi::IBV_QPS_INIT)?;
    let wide = Path {
        mtu: active_mtu + 1,
        ..path
    };
    // abi: R-220
    invalid("a larger path MTU", qp.rtr(&wide), ffi::IBV_QPS_INIT)?;
    let no_gid = Path {
        gid_index: 255,
        ..path
    };
    // abi: R-263
    ensure!(
        qp.rtr(&no_gid).is_err(),
        "a GID index that does not exist was taken"
    );
    ensure!(qp.state()? == ffi::IBV_QPS_INIT);
    let long = Path { mtu: 9, ..path };
    // abi: R-261
    invalid(
        "a path MTU that does not exist",
        qp.rtr(&long),
        ffi::IBV_QPS_INIT,
    )?;
    let sges = [sge.sge(0, 8)];
    ensure!(
        qp.send(&SendWr::new(1, Op::Send, &sges)).is_err(),
        "a send was posted in INIT"
    );
    // Receives may be posted from INIT on.
    // abi: R-197
    qp.recv(1, &[sge.sge(0, 64)])?;
    qp.rtr(&path)?;
    qp.rts(&timing)?;
    invalid("RTS to INIT", qp.init(access::ALL), ffi::IBV_QPS_RTS)?;
    cq.expect_empty()?;
    session.peer.meet()
}

/// UC and UD QPs need the attributes of their type for each transition. Missing attributes and
/// attributes of other types are refused.
// abi
pub fn unreliable_types(session: &mut Session) -> Result<()> {
    type Change = (u32, u32);
    const INIT: u32 = ffi::IBV_QP_STATE | ffi::IBV_QP_PKEY_INDEX | ffi::IBV_QP_PORT;
    const UC_RTR: u32 = ffi::IBV_QP_STATE
        | ffi::IBV_QP_AV
        | ffi::IBV_QP_PATH_MTU
        | ffi::IBV_QP_DEST_QPN
        | ffi::IBV_QP_RQ_PSN;
    const RTS: u32 = ffi::IBV_QP_STATE | ffi::IBV_QP_SQ_PSN;
    // For each transition: new state, valid attribute mask, and invalid masks.
    let uc: [(Change, &[u32]); 3] = [
        (
            (ffi::IBV_QPS_INIT, INIT | ffi::IBV_QP_ACCESS_FLAGS),
            &[INIT, INIT | ffi::IBV_QP_QKEY],
        ),
        (
            (ffi::IBV_QPS_RTR, UC_RTR),
            &[
                UC_RTR & !ffi::IBV_QP_RQ_PSN,
                UC_RTR & !ffi::IBV_QP_AV,
                UC_RTR | ffi::IBV_QP_MIN_RNR_TIMER,
                UC_RTR | ffi::IBV_QP_MAX_DEST_RD_ATOMIC,
            ],
        ),
        (
            (ffi::IBV_QPS_RTS, RTS),
            &[ffi::IBV_QP_STATE, RTS | ffi::IBV_QP_TIMEOUT],
        ),
    ];
    let ud: [(Change, &[u32]); 3] = [
        (
            (ffi::IBV_QPS_INIT, INIT | ffi::IBV_QP_QKEY),
            &[INIT, INIT | ffi::IBV_QP_ACCESS_FLAGS],
        ),
        (
            (ffi::IBV_QPS_RTR, ffi::IBV_QP_STATE),
            &[UC_RTR, ffi::IBV_QP_STATE | ffi::IBV_QP_AV],
        ),
        (
            (ffi::IBV_QPS_RTS, RTS),
            &[ffi::IBV_QP_STATE, RTS | ffi::IBV_QP_RETRY_CNT],
        ),
    ];
    let pd = Pd::new(&session.context)?;
    let cq = Cq::new(&session.context, 16, None)?;
    let gid_index = session.settings.gid_index;
    let gid = read_gid(session.context.name(), gid_index)?;
    for (kind, steps) in [(Kind::Uc, uc), (Kind::Ud, ud)] {
        let qp = Qp::of(kind, &pd, &cq, &cq, Options::default().caps)?;
        let to = |state: u32, mask: u32| {
            qp.modify(|attr| {
                attr.qp_state = state;
                attr.port_num = 1;
                attr.qkey = QKEY;
                attr.path_mtu = ffi::IBV_MTU_1024;
                attr.dest_qp_num = qp.qpn();
                attr.timeout = 14;
                attr.ah_attr.is_global = 1;
                attr.ah_attr.port_num = 1;
                attr.ah_attr.grh.dgid.raw = gid;
                attr.ah_attr.grh.sgid_index = gid_index;
                attr.ah_attr.grh.hop_limit = 64;
                mask
            })
        };
        let mut before = ffi::IBV_QPS_RESET;
        for ((state, mask), bad) in steps {
            for &bad in bad {
                let what = format!("{kind:?} to state {state} with mask {bad:#x}");
                let error = refused(&what, to(state, bad))?;
                ensure!(errno(&error) == Some(EINVAL), "{what}: {error:#}");
                ensure!(qp.state()? == before, "{what} changed the state");
            }
            to(state, mask)?;
            ensure!(qp.state()? == state);
            before = state;
        }
        if kind == Kind::Ud {
            ensure!(qp.query()?.qkey == QKEY, "Q_Key {:#x}", qp.query()?.qkey);
        }
        qp.to_state(ffi::IBV_QPS_ERR)?;
        qp.to_state(ffi::IBV_QPS_RESET)?;
    }
    session.peer.meet()
}

/// In ERR, all work requests, earlier and later ones, complete with a flush error, in the order of
/// each queue.
// abi
pub fn flush(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = end.memory(4096)?;
    for id in 0..10 {
        end.qp.recv(id, &[mr.sge(0, 64)])?;
    }
    session.peer.meet()?;
    end.qp.to_state(ffi::IBV_QPS_ERR)?;
    let sges = [mr.sge(64, 64)];
    for id in 10..15 {
        end.qp.recv(id, &[])?;
        // A failed work request has a completion even if it is unsignaled.
        end.qp.send(&SendWr {
            signaled: false,
            ..SendWr::new(id, Op::Send, &sges)
        })?;
    }
    for (id, wc) in (0..).zip(end.recv.wait(15, LIMIT)?) {
        ensure!(
            wc.expect(ffi::IBV_WC_WR_FLUSH_ERR)?.id == id,
            "receive {} instead of {id}",
            wc.id
        );
        ensure!(wc.qpn == end.qp.qpn(), "QPN {}", wc.qpn);
    }
    for (id, wc) in (10..).zip(end.send.wait(5, LIMIT)?) {
        ensure!(
            wc.expect(ffi::IBV_WC_WR_FLUSH_ERR)?.id == id,
            "send {} instead of {id}",
            wc.id
        );
    }
    session.peer.meet()?;
    end.send.expect_empty()?;
    end.recv.expect_empty()
}

/// RESET drops posted work requests without completions. The QP then works again.
// abi
pub fn reset_and_again(session: &mut Session) -> Result<()> {
    let options = Options::default();
    let end = Endpoint::connect(session, &options)?;
    let mr = end.memory(8192)?;
    for round in 0..5_u64 {
        let message = bytes(round, 3000);
        if session.active() {
            mr.write(0, &message);
            session.peer.meet()?;
            end.run(Op::Send, &[mr.sge(0, 3000)])?.ok()?;
        } else {
            end.qp.recv(round, &[mr.sge(0, 3000)])?;
            session.peer.meet()?;
            ensure!(end.received()?.ok()?.id == round);
            compare(&format!("round {round}"), &mr.read(0, 3000), &message)?;
        }
        // These receives are still posted when the QP is reset.
        for id in 100..110 {
            end.qp.recv(id, &[mr.sge(4096, 64)])?;
        }
        session.peer.meet()?;
        if round % 2 == 1 {
            end.qp.to_state(ffi::IBV_QPS_ERR)?;
            end.recv.wait(10, LIMIT)?;
        }
        end.qp.to_state(ffi::IBV_QPS_RESET)?;
        end.recv.expect_empty()?;
        Endpoint::link(session, &end.qp, &options)?;
    }
    Ok(())
}
