// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Creation of queue pairs.

use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::DoorbellKind;
use virtio_rdma_abi::uverbs::ContextFlags;
use virtio_rdma_abi::uverbs::CreateQpReq;
use virtio_rdma_abi::uverbs::CreateQpResp;

use crate::context::Context;
use crate::cq::Cq;
use crate::driver_data;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::libibverbs;
use crate::memory::PlannedRing;
use crate::opcodes::Opcodes;
use crate::pd::Pd;
use crate::place::Place;
use crate::qp::Plan;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::verbs_qp::VerbsQp;

type CreateQpCommand = driver_data::UverbsCommand<ffi::ibv_create_qp_ex, CreateQpReq>;
type Response = driver_data::Response<ffi::ib_uverbs_ex_create_qp_resp, CreateQpResp>;

/// Checks the attributes that do not determine the QP's rings, on a device with these `flags`.
///
/// # Errors
///
/// `EOPNOTSUPP` for an unsupported attribute, `EINVAL` for a missing attribute.
fn check(attr: &ffi::ibv_qp_init_attr_ex, flags: ContextFlags) -> Result<(), i32> {
    const KNOWN: u32 = ffi::IBV_QP_INIT_ATTR_PD
        | ffi::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let has = |mask| attr.comp_mask & mask != 0;
    // The kernel checks whether the device supports this flag.
    let create_flags = match attr.qp_type {
        ffi::IBV_QPT_UD => ffi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
        _ => 0,
    };
    let opcodes = Opcodes::of(attr.qp_type, flags).ok_or(libc::EOPNOTSUPP)?;
    if attr.comp_mask & !KNOWN != 0
        || (has(ffi::IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags & !create_flags != 0)
        || (has(ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && !opcodes.has_all(attr.send_ops_flags))
    {
        return Err(libc::EOPNOTSUPP);
    }
    let complete = has(ffi::IBV_QP_INIT_ATTR_PD)
        && !attr.pd.is_null()
        && !attr.send_cq.is_null()
        && !attr.recv_cq.is_null();
    complete.then_some(()).ok_or(libc::EINVAL)
}

/// `create_qp_ex`. If the attributes have `send_ops_flags`, the QP has the `ibv_wr_*` functions.
///
/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    // SAFETY: libibverbs passes an open context of this provider, and attributes.
    let (shared, attr) = unsafe { (Context::shared(context), &mut *attr) };
    if let Err(number) = check(attr, shared.limits.flags) {
        return errno::null(number);
    }
    // SAFETY: the pointers were checked not to be null, so they are objects of this provider.
    let (pd, send_cq, recv_cq) = unsafe {
        (
            Pd::from_ibv(attr.pd),
            Cq::from_ibv(attr.send_cq),
            Cq::from_ibv(attr.recv_cq),
        )
    };
    // SAFETY: an SRQ that is not null is an object of this provider.
    let srq = (!attr.srq.is_null()).then(|| unsafe { Srq::from_ibv(attr.srq) });
    let domain = pd.domain(shared.threads, ffi::VIRTIO_RDMA_DV_RES_QP);
    let plan = Plan::new(attr.qp_type, &attr.cap, srq.is_some(), shared, &domain);
    let (plan, mut place) = match plan.and_then(|plan| Ok((plan, Place::<Qp>::new()?))) {
        Ok(both) => both,
        Err(error) => return errno::null(errno::number(&error)),
    };
    attr.cap.max_inline_data = plan.max_inline();
    let mut command = CreateQpCommand::new(&plan.request());
    let mut response = Response::empty();
    // SAFETY: libibverbs' arguments are passed on, the QP stays in its place, and command and
    // response are as long as stated.
    let status = unsafe {
        VerbsQp::prepare(place.as_ibv());
        libibverbs::create_qp_ex2(
            context,
            place.as_ibv().cast(),
            attr,
            &mut command.core,
            CreateQpCommand::SIZE,
            &mut response.core,
            Response::SIZE,
        )
    };
    if status != 0 {
        return errno::null(status);
    }
    let response = response.get();
    let map = |ring: PlannedRing, kind| {
        let mapping = match kind {
            DoorbellKind::Sq => &response.sq,
            _ => &response.rq,
        };
        ring.map(shared.fd, mapping)
    };
    let send_ops = match attr.comp_mask & ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS {
        0 => None,
        _ => Some(attr.send_ops_flags),
    };
    // SAFETY: the command has succeeded, and only this function uses the QP.
    let made = unsafe { VerbsQp::created(place.as_ibv(), send_ops) }
        .and_then(|()| Qp::new(plan, map, (send_cq, recv_cq, srq), shared, &domain));
    let mut qp = match made {
        Ok(qp) => place.finish(qp),
        Err(error) => {
            // SAFETY: the kernel has created the QP above. If this fails, closing the context
            // destroys it.
            unsafe { ffi::ibv_cmd_destroy_qp(place.as_ibv().cast()) };
            return errno::null(errno::number(&error));
        }
    };
    qp.report(&mut attr.cap);
    // SAFETY: the command has filled in the number.
    let qpn = Qpn::new(unsafe { (*qp.as_ibv()).qp_num });
    if let Err(error) = qp.created(qpn) {
        // SAFETY: the kernel has created the QP above. If this fails, closing the context destroys
        // it.
        unsafe { ffi::ibv_cmd_destroy_qp(qp.as_ibv()) };
        qp.destroyed();
        return errno::null(errno::number(&error));
    }
    Box::into_raw(qp).cast()
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn create_qp(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_qp_init_attr,
) -> *mut ffi::ibv_qp {
    // SAFETY: libibverbs passes a PD of an open context, and attributes.
    let (context, attr) = unsafe { ((*pd).context, &mut *attr) };
    let mut extended = ffi::ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: ffi::IBV_QP_INIT_ATTR_PD,
        pd,
        ..Zeroed::zeroed()
    };
    // SAFETY: the attributes name the caller's objects.
    let qp = unsafe { create_qp_ex(context, &mut extended) };
    if !qp.is_null() {
        attr.cap = extended.cap;
    }
    qp
}
