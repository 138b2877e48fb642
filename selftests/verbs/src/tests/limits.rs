// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Queue sizes up to the limits that the device reports.

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::rdma::{Caps, Cq, Op, Pd, Qp, SendWr};
use crate::session::{Session, LIMIT};

/// Entries of a CQ that middleware may request; its ring has 8 MiB.
const LONG_CQ: u32 = 131_072;

/// Queues of the largest sizes can be created, and larger ones are refused.
// abi
pub fn limits(session: &mut Session) -> Result<()> {
    let limits = session.context.limits()?;
    ensure!(
        limits.max_qp_wr >= 1024 && limits.max_cqe >= 1024 && limits.max_sge >= 4,
        "{limits:?}"
    );
    let pd = Pd::new(&session.context)?;
    // The longest CQ of the device may need more memory than the machine has.
    let entries = limits.max_cqe.min(LONG_CQ);
    let cq = Cq::new(&session.context, entries, None)?;
    ensure!(cq.entries() >= entries, "{} entries", cq.entries());
    for entries in [0, limits.max_cqe + 1, i32::MAX as u32] {
        ensure!(
            Cq::new(&session.context, entries, None).is_err(),
            "a CQ of {entries} entries"
        );
    }
    let least = Options::default().caps;
    let most = Caps {
        send_wr: limits.max_qp_wr,
        recv_wr: limits.max_qp_wr,
        ..least
    };
    let wide = Caps {
        send_sge: limits.max_sge,
        recv_sge: limits.max_sge,
        ..least
    };
    for caps in [most, wide] {
        let got = Qp::new(&pd, &cq, &cq, caps)?.caps();
        ensure!(
            got.send_wr >= caps.send_wr
                && got.recv_wr >= caps.recv_wr
                && got.send_sge >= caps.send_sge
                && got.recv_sge >= caps.recv_sge,
            "{got:?} instead of {caps:?}"
        );
    }
    let beyond = [
        Caps {
            send_wr: limits.max_qp_wr + 1,
            ..least
        },
        Caps {
            recv_wr: limits.max_qp_wr + 1,
            ..least
        },
        Caps {
            send_sge: limits.max_sge + 1,
            ..least
        },
        Caps {
            recv_sge: limits.max_sge + 1,
            ..least
        },
        Caps {
            inline: 1 << 20,
            ..least
        },
    ];
    for caps in beyond {
        ensure!(Qp::new(&pd, &cq, &cq, caps).is_err(), "a QP with {caps:?}");
    }
    // As many outstanding READs as the device reports, in both directions.
    let options = Options {
        reads: limits.max_qp_rd_atom,
        ..Options::default()
    };
    let end = Endpoint::connect(session, &options)?;
    let mr = end.memory(4096)?;
    let remote = session.swap_memory(&mr)?;
    let sges = [mr.sge(0, 64)];
    for id in 0..32 {
        end.qp.send(&SendWr::new(
            id,
            Op::Read(remote.addr + 64, remote.rkey),
            &sges,
        ))?;
    }
    for wc in end.send.wait(32, LIMIT)? {
        wc.ok()?;
    }
    session.peer.meet()
}
