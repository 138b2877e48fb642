// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rate limits: valid and invalid values according to the manual page of
//! `ibv_modify_qp_rate_limit`, and data transfer under a limit. The rate itself is not measured.

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::{access, ffi, Cq, Kind, Op, Pd, Qp, RateLimit};
use crate::session::{errno, refused, Session};

const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// Rate in kb/s under which a message of 1 MiB takes about 40 ms.
const RATE: u32 = 200_000;
const SIZE: usize = 1 << 20;

fn rate(rate: u32) -> RateLimit {
    RateLimit {
        rate,
        ..RateLimit::default()
    }
}

/// Sets a rate limit by `ibv_modify_qp`.
fn modify(qp: &Qp, rate: u32) -> Result<()> {
    qp.modify(|attr| {
        attr.rate_limit = rate;
        ffi::IBV_QP_RATE_LIMIT
    })
}

fn refuses(what: &str, result: Result<()>, with: i32) -> Result<()> {
    let error = refused(what, result)?;
    ensure!(errno(&error) == Some(with), "{what}: {error:#}");
    Ok(())
}

/// Limits are set, changed and removed while the active side sends data. A device without rate
/// limits refuses them.
// abi
pub fn flows(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let caps = session.context.pacing()?;
    let mr = end.memory(SIZE)?;
    let remote = session.swap_memory(&mr)?;
    let limits = [
        rate(RATE),
        RateLimit {
            burst: 32_768,
            packet: 1024,
            ..rate(RATE)
        },
        rate(4 * RATE),
        rate(0),
    ];
    if caps.qp_rate_limit_max == 0 {
        refuses("a limit", end.qp.limit_rate(&limits[0]), EOPNOTSUPP)?;
        refuses("an attribute", modify(&end.qp, RATE), EOPNOTSUPP)?;
    }
    for (round, limit) in limits.iter().enumerate() {
        if session.active() {
            mr.write(0, &bytes(round as u64, SIZE));
            if caps.qp_rate_limit_max != 0 {
                end.qp.limit_rate(limit)?;
            }
            end.run(Op::Write(remote.addr, remote.rkey), &[mr.sge(0, SIZE)])?;
        }
        session.peer.meet()?;
        if !session.active() {
            compare("message", &mr.read(0, SIZE), &bytes(round as u64, SIZE))?;
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// Errors of the manual page, and the states in which a QP may have a limit.
pub fn refusals(session: &mut Session) -> Result<()> {
    let caps = session.context.pacing()?;
    let (least, most) = (caps.qp_rate_limit_min, caps.qp_rate_limit_max);
    // abi: R-845
    ensure!(
        (1..=1_000).contains(&least) && most >= 1_000_000,
        "rates from {least} to {most} kb/s"
    );
    let pd = Pd::new(&session.context)?;
    let cq = Cq::new(&session.context, 16, None)?;
    for (kind, number) in [
        (Kind::Rc, ffi::IBV_QPT_RC),
        (Kind::Uc, ffi::IBV_QPT_UC),
        (Kind::Ud, ffi::IBV_QPT_UD),
    ] {
        // abi: R-78
        ensure!(
            caps.supported_qpts & (1 << number) != 0,
            "no limit of {kind:?}"
        );
        let qp = Qp::of(kind, &pd, &cq, &cq, Options::default().caps)?;
        // abi: R-840
        refuses("a limit in RESET", qp.limit_rate(&rate(least)), EINVAL)?;
        qp.init(access::ALL)?;
        refuses("a limit in INIT", qp.limit_rate(&rate(least)), EINVAL)?;
    }

    let options = Options::default();
    let end = Endpoint::connect(session, &options)?;
    let qp = &end.qp;
    qp.limit_rate(&rate(least))?;
    qp.limit_rate(&rate(most))?;
    for (what, limit) in [
        // abi: R-838
        ("a rate too low", rate(least - 1)),
        ("a rate too high", rate(most + 1)),
        // abi: R-77
        (
            "a burst too long",
            RateLimit {
                burst: u32::MAX,
                ..rate(least)
            },
        ),
        // abi: R-839
        (
            "a burst without a rate",
            RateLimit {
                burst: 4096,
                ..rate(0)
            },
        ),
        (
            "an extension",
            RateLimit {
                comp_mask: 1,
                ..rate(least)
            },
        ),
    ] {
        // If the smallest rate is 1, the rate below is 0, which means no limit.
        if limit.rate == 0 && limit.burst == 0 {
            continue;
        }
        refuses(what, qp.limit_rate(&limit), EINVAL)?;
    }
    modify(qp, least)?;
    modify(qp, 0)?;
    refuses("an attribute out of range", modify(qp, most + 1), EINVAL)?;
    session.peer.meet()?;
    qp.to_state(ffi::IBV_QPS_ERR)?;
    // abi: R-840
    refuses("a limit in ERR", qp.limit_rate(&rate(least)), EINVAL)?;
    session.peer.meet()
}
