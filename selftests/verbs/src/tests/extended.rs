// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The extended interfaces: completions that are read field by field, and work requests that are
//! built call by call.

use std::rc::Rc;

use anyhow::{ensure, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare};
use crate::rdma::extended::{create_cq, End, ParentDomain};
use crate::rdma::{
    access, ffi, Ah, Caps, Cq, Kind, Mr, Op, Path, Payload, Pd, Qp, SendWr, To, QKEY,
};
use crate::session::{errno, refused, Remote, Session, LIMIT};

const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const SIZE: usize = 3000;
const GRH: usize = 40;

/// A QP with one extended CQ for both queues.
struct End2 {
    cq: Rc<Cq>,
    pd: Rc<Pd>,
    qp: Rc<Qp>,
    path: Path,
}

fn connect(session: &mut Session, kind: Kind) -> Result<End2> {
    let mut options = Options {
        kind,
        access: access::ALL | access::REMOTE_ATOMIC,
        ..Options::default()
    };
    options.caps.send_sge = 2;
    options.caps.inline = 64;
    let pd = Pd::new(&session.context)?;
    let cq = create_cq(&session.context, 256, |_| ())?;
    let qp = Rc::new(Qp::extended(kind, &pd, [&cq, &cq], options.caps, |_| ())?);
    let path = Endpoint::link(session, &qp, &options)?;
    Ok(End2 { cq, pd, qp, path })
}

/// The active side builds `wrs` in one batch and waits for their completions, in order. The passive
/// side posts `receives` receives and waits for their completions.
fn batch(
    session: &mut Session,
    end: &End2,
    mr: &Mr,
    wrs: &[SendWr<'_>],
    receives: u64,
) -> Result<()> {
    if session.active() {
        session.peer.meet()?;
        end.qp.build(wrs, End::Complete)?;
        for (wr, wc) in wrs.iter().zip(end.cq.wait(wrs.len(), LIMIT)?) {
            ensure!(wc.ok()?.id == wr.id, "{wc:?} of {wr:?}");
        }
    } else {
        for id in 0..receives {
            end.qp.recv(id, &[mr.sge(0, mr.len())])?;
        }
        session.peer.meet()?;
        for (id, wc) in (0..).zip(end.cq.wait(receives as usize, LIMIT)?) {
            ensure!(wc.ok()?.id == id && wc.qpn == end.qp.qpn(), "{wc:?}");
        }
    }
    session.peer.meet()
}

/// Whether the short payload of a batch is in registered memory or inline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Short {
    Referred,
    Inline,
}

/// Executes all RDMA operations of connected QPs of type `kind`.
fn one_sided(session: &mut Session, kind: Kind, short: Short) -> Result<()> {
    let end = connect(session, kind)?;
    let mr = Mr::new(&end.pd, 4 * SIZE, access::ALL)?;
    let Remote { addr, rkey } = session.swap_memory(&mr)?;
    mr.write(0, &bytes(session.active().into(), SIZE));
    let (first, second) = (mr.sge(0, SIZE / 2), mr.sge(SIZE / 2, SIZE / 2));
    let copied = bytes(5, 33);
    mr.write(SIZE, &copied);
    let referred = [mr.sge(SIZE, 33)];
    let place = |index: usize| addr + (index * SIZE) as u64;
    let mut wrs = vec![
        SendWr::new(1, Op::Write(place(1), rkey), &[]),
        SendWr::new(2, Op::Write(place(2), rkey), &[]),
    ];
    let sges = [first, second];
    wrs[0].payload = Payload::Sges(&sges);
    wrs[1].payload = match short {
        Short::Referred => Payload::Sges(&referred),
        Short::Inline => Payload::Inline(&copied),
    };
    let landing = [mr.sge(3 * SIZE, SIZE)];
    if kind == Kind::Rc {
        wrs.push(SendWr::new(3, Op::Read(place(0), rkey), &landing));
    }
    // When the WRITE with immediate data has arrived, the earlier WRITEs have arrived too.
    wrs.push(SendWr::new(
        4,
        Op::WriteImm(place(2) + 100, rkey, 7),
        &sges[..1],
    ));
    batch(session, &end, &mr, &wrs, 1)?;
    if session.active() {
        if kind == Kind::Rc {
            compare("READ", &mr.read(3 * SIZE, SIZE), &bytes(0, SIZE))?;
        }
    } else {
        compare("WRITE", &mr.read(SIZE, SIZE), &bytes(1, SIZE))?;
        compare("short WRITE", &mr.read(2 * SIZE, 33), &copied)?;
        let half = mr.read(2 * SIZE + 100, SIZE / 2);
        compare(
            "WRITE with immediate data",
            &half,
            &bytes(1, SIZE)[..SIZE / 2],
        )?;
    }
    Ok(())
}

/// RDMA operations of RC QPs.
pub fn reliable(session: &mut Session) -> Result<()> {
    one_sided(session, Kind::Rc, Short::Referred)
}

/// RDMA operations of UC QPs.
pub fn unreliable(session: &mut Session) -> Result<()> {
    one_sided(session, Kind::Uc, Short::Referred)
}

/// Executes SENDs of QPs of type `kind`, and checks all fields of the completions.
fn sends(session: &mut Session, kind: Kind, short: Short) -> Result<()> {
    let end = connect(session, kind)?;
    let mr = Mr::new(&end.pd, SIZE, access::ALL)?;
    let front = if kind == Kind::Ud { GRH } else { 0 };
    let ah = match kind {
        Kind::Ud => Some(Ah::new(&end.pd, |attr| {
            attr.port_num = 1;
            attr.is_global = 1;
            attr.grh.dgid.raw = end.path.gid;
            attr.grh.sgid_index = end.path.gid_index;
            attr.grh.hop_limit = 64;
        })?),
        Kind::Rc | Kind::Uc => None,
    };
    let to = ah.as_ref().map(|ah| To {
        ah,
        qpn: end.path.qpn,
        qkey: QKEY,
    });
    let message = bytes(9, 500);
    let pieces = [mr.sge(0, 200), mr.sge(200, 300)];
    let referred = [mr.sge(0, 50)];
    if session.active() {
        mr.write(0, &message);
        let wr = |id, op, payload| SendWr {
            payload,
            to,
            ..SendWr::new(id, op, &[])
        };
        let wrs = [
            wr(1, Op::SendImm(0x0102_0304), Payload::Sges(&pieces)),
            wr(
                2,
                Op::Send,
                match short {
                    Short::Referred => Payload::Sges(&referred),
                    Short::Inline => Payload::Inline(&message[..50]),
                },
            ),
        ];
        session.peer.meet()?;
        // A dropped batch has no effect.
        end.qp.build(&wrs, End::Abort)?;
        end.qp.build(&wrs, End::Complete)?;
        for (id, wc) in (1..).zip(end.cq.wait(2, LIMIT)?) {
            let wc = wc.ok()?;
            ensure!(wc.id == id && wc.opcode == ffi::IBV_WC_SEND, "{wc:?}");
        }
    } else {
        end.qp.recv(11, &[mr.sge(0, 1000)])?;
        end.qp.recv(12, &[mr.sge(1000, 1000)])?;
        session.peer.meet()?;
        let wcs = end.cq.wait(2, LIMIT)?;
        for (wc, (id, at, length, imm)) in wcs
            .iter()
            .zip([(11, 0, 500, Some(0x0102_0304)), (12, 1000, 50, None)])
        {
            let wc = wc.ok()?;
            ensure!(wc.id == id && wc.opcode == ffi::IBV_WC_RECV, "{wc:?}");
            ensure!(
                wc.bytes as usize == front + length && wc.imm == imm,
                "{wc:?}"
            );
            ensure!(wc.qpn == end.qp.qpn(), "{wc:?}");
            ensure!(kind != Kind::Ud || wc.source == end.path.qpn, "{wc:?}");
            compare("message", &mr.read(at + front, length), &message[..length])?;
        }
    }
    session.peer.meet()?;
    end.cq.expect_empty()
}

/// SENDs of RC QPs.
pub fn reliable_sends(session: &mut Session) -> Result<()> {
    sends(session, Kind::Rc, Short::Referred)
}

/// SENDs of UC QPs.
pub fn unreliable_sends(session: &mut Session) -> Result<()> {
    sends(session, Kind::Uc, Short::Referred)
}

/// SENDs of UD QPs.
pub fn datagram_sends(session: &mut Session) -> Result<()> {
    sends(session, Kind::Ud, Short::Referred)
}

/// Inline payload, for each QP type.
pub fn inline(session: &mut Session) -> Result<()> {
    for kind in [Kind::Rc, Kind::Uc] {
        one_sided(session, kind, Short::Inline)?;
    }
    for kind in [Kind::Rc, Kind::Uc, Kind::Ud] {
        sends(session, kind, Short::Inline)?;
    }
    Ok(())
}

/// Verbs for a CQ and its QPs may be called within a batch of completions of this CQ.
pub fn control(session: &mut Session) -> Result<()> {
    const COUNT: u64 = 8;
    let end = connect(session, Kind::Rc)?;
    let mr = Mr::new(&end.pd, SIZE, access::ALL)?;
    let mut ids = Vec::new();
    for id in 0..COUNT {
        end.qp.recv(id, &[mr.sge(0, 100)])?;
    }
    session.peer.meet()?;
    let sges = [mr.sge(0, 100)];
    for id in 0..COUNT {
        end.qp.send(&SendWr::new(COUNT + id, Op::Send, &sges))?;
    }
    let mut entries = 256;
    while ids.len() < 2 * COUNT as usize {
        entries *= 2;
        ids.extend(end.cq.batch(LIMIT, || {
            end.cq.arm(false)?;
            let caps = Options::default().caps;
            let other = Qp::extended(Kind::Rc, &end.pd, [&end.cq, &end.cq], caps, |_| ())?;
            other.init(access::ALL)?;
            other.recv(1000, &[mr.sge(0, 100)])?;
            other.to_state(ffi::IBV_QPS_ERR)?;
            other.to_state(ffi::IBV_QPS_RESET)?;
            if entries <= 1024 {
                end.cq.resize(entries)?;
            }
            Ok(())
        })?);
    }
    // Receives and sends completed once and in order, and destroyed QPs have no completions.
    let of = |sends: bool| ids.iter().filter(move |id| (**id >= COUNT) == sends);
    ensure!(of(false).copied().eq(0..COUNT), "receives: {ids:?}");
    ensure!(of(true).copied().eq(COUNT..2 * COUNT), "sends: {ids:?}");
    session.peer.meet()?;
    end.cq.expect_empty()
}

/// A datagram without a destination is refused, and no request of its batch is sent.
pub fn destination(session: &mut Session) -> Result<()> {
    let end = connect(session, Kind::Ud)?;
    let mr = Mr::new(&end.pd, SIZE, access::ALL)?;
    let sges = [mr.sge(0, 100)];
    let wr = SendWr::new(1, Op::Send, &sges);
    let error = refused("no destination", end.qp.build(&[wr], End::Complete))?;
    ensure!(errno(&error) == Some(EINVAL), "{error:#}");
    session.peer.meet()?;
    end.cq.expect_empty()
}

/// Parent domain and thread domain can't be deallocated while a QP is in the parent domain.
pub fn parent_domain(session: &mut Session) -> Result<()> {
    let pd = Pd::new(&session.context)?;
    let cq = create_cq(&session.context, 16, |_| ())?;
    let mut domain = ParentDomain::new(&pd)?;
    let qp = domain.qp(Kind::Rc, [&cq, &cq], Options::default().caps)?;
    for (what, result) in ["parent domain", "thread domain"]
        .iter()
        .zip(domain.deallocate())
    {
        let error = refused(what, result)?;
        ensure!(errno(&error) == Some(EBUSY), "{what}: {error:#}");
    }
    drop(qp);
    for result in domain.deallocate() {
        result?;
    }
    session.peer.meet()
}

/// Requests for features that the device does not support are refused.
pub fn refusals(session: &mut Session) -> Result<()> {
    let unsupported = |what: &str, result: Result<()>| -> Result<()> {
        let error = refused(what, result)?;
        ensure!(errno(&error) == Some(EOPNOTSUPP), "{what}: {error:#}");
        Ok(())
    };
    let context = Rc::clone(&session.context);
    for flag in [
        ffi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
        ffi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
        ffi::IBV_WC_EX_WITH_CVLAN,
        ffi::IBV_WC_EX_WITH_FLOW_TAG,
        ffi::IBV_WC_EX_WITH_TM_INFO,
    ] {
        let cq = create_cq(&context, 16, |attr| attr.wc_flags |= u64::from(flag));
        unsupported(&format!("completion field {flag:#x}"), cq.map(drop))?;
    }
    let pd = Pd::new(&context)?;
    let cq = create_cq(&context, 16, |attr| {
        attr.comp_mask = ffi::IBV_CQ_INIT_ATTR_MASK_FLAGS;
        attr.flags = ffi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    })?;
    let caps = Options::default().caps;
    let qp = |kind, edit: &dyn Fn(&mut ffi::ibv_qp_init_attr_ex)| {
        Qp::extended(kind, &pd, [&cq, &cq], caps, edit).map(drop)
    };
    for (kind, flags) in [
        (Kind::Ud, ffi::IBV_QP_EX_WITH_BIND_MW),
        (Kind::Rc, ffi::IBV_QP_EX_WITH_TSO),
        (Kind::Uc, ffi::IBV_QP_EX_WITH_FLUSH),
        (Kind::Uc, ffi::IBV_QP_EX_WITH_ATOMIC_WRITE),
        (Kind::Uc, ffi::IBV_QP_EX_WITH_RDMA_READ),
        (Kind::Ud, ffi::IBV_QP_EX_WITH_RDMA_WRITE),
    ] {
        let result = qp(kind, &|attr| attr.send_ops_flags |= u64::from(flags));
        unsupported(&format!("send operation {flags:#x} of {kind:?}"), result)?;
    }
    for flags in [
        ffi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
        ffi::IBV_QP_CREATE_SCATTER_FCS,
    ] {
        let result = qp(Kind::Rc, &|attr| {
            attr.comp_mask |= ffi::IBV_QP_INIT_ATTR_CREATE_FLAGS;
            attr.create_flags = flags;
        });
        unsupported(&format!("create flags {flags:#x}"), result)?;
    }
    qp(Kind::Rc, &|_| ())?;
    let without_sq = Qp::extended(
        Kind::Rc,
        &pd,
        [&cq, &cq],
        Caps { send_wr: 0, ..caps },
        |_| (),
    )?;
    let built = without_sq.build(&[SendWr::new(1, Op::Send, &[])], End::Complete);
    let error = refused("a batch for an absent SQ", built)?;
    ensure!(errno(&error) == Some(ENOMEM), "{error:#}");
    session.peer.meet()
}
