// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The verbs of queue pairs.

use std::cell::UnsafeCell;
use std::io;
use std::iter;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use libc::c_int;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::inline_room;
use virtio_rdma_abi::ring::slot_shift_for;
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::ring::DoorbellKind;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::ring::WORK_SLOTS;
use virtio_rdma_abi::uverbs::CreateQpReq;
use virtio_rdma_abi::uverbs::ModifyQpReq;
use virtio_rdma_abi::wqe::rq_wqe_size;
use virtio_rdma_abi::wqe::sq_wqe_size;
use virtio_rdma_abi::wqe::INLINE_OFFSET;

use crate::allocation::boxed;
use crate::allocators::Lender;
use crate::arc::Arc;
use crate::command::command;
use crate::completion_ring::Attachment;
use crate::completion_ring::QpRings;
use crate::context::Shared;
use crate::cq::Cq;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::memory::DoorbellPage;
use crate::memory::PlannedRing;
use crate::memory::RingMap;
use crate::opcodes::Opcodes;
use crate::opcodes::SendLimits;
use crate::pd::Domain;
use crate::place::Object;
use crate::rate_limit;
use crate::recv::RecvQueue;
use crate::send::SendQueue;
use crate::srq::Srq;
use crate::verbs_qp::VerbsQp;
use crate::work_ring::WorkRing;

/// A queue pair, as libibverbs sees it.
///
/// # Invariants
///
/// `ibv` belongs to libibverbs, and is accessed through its raw pointer only.
#[repr(C)]
pub struct Qp {
    ibv: UnsafeCell<VerbsQp>,
    rings: Arc<QpRings>,
    send: SendQueue,
    recv: RecvQueue,
    shared: Arc<Shared>,
    qpn: Qpn,
    /// State according to the last successful modify, or ERR according to a later query. The device
    /// may have moved the QP to ERR meanwhile.
    state: AtomicU32,
    send_cq: Attachment,
    /// The receive CQ, or `None` if it is the send CQ too.
    recv_cq: Option<Attachment>,
    /// Keeps the parent domain in use.
    _domain: Option<Lender>,
}

// SAFETY: libibverbs' part is not accessed through a reference, and the rest can be sent.
unsafe impl Send for Qp {}
// SAFETY: libibverbs' part is not accessed through a reference, and the rest can be shared.
unsafe impl Sync for Qp {}

// SAFETY: the type is `repr(C)` and starts with the cell of libibverbs' structure.
unsafe impl Object for Qp {
    type Ibv = VerbsQp;
}

/// The operations and rings of a future QP.
pub struct Plan {
    qp_type: ffi::ibv_qp_type,
    cap: ffi::ibv_qp_cap,
    opcodes: Opcodes,
    send: Option<PlannedRing>,
    recv: Option<PlannedRing>,
}

impl Plan {
    /// Plans a QP of a type, with capabilities, with or without an SRQ, and with the locking and
    /// the memory source of `domain`.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for an unsupported type, `EINVAL` for capabilities that no queue has, and the
    /// errors of [`PlannedRing::new`].
    pub fn new(
        qp_type: ffi::ibv_qp_type,
        cap: &ffi::ibv_qp_cap,
        has_srq: bool,
        shared: &Shared,
        domain: &Domain,
    ) -> io::Result<Self> {
        let opcodes = Opcodes::of(qp_type, shared.limits.flags)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        if cap.max_inline_data > shared.limits.max_inline_data {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let inline_size = INLINE_OFFSET + cap.max_inline_data as usize;
        let send_size = sq_wqe_size(cap.max_send_sge as usize).max(inline_size);
        let recv_size = rq_wqe_size(cap.max_recv_sge as usize);
        let mut cap = *cap;
        let send = planned_ring(cap.max_send_wr, send_size, shared, domain)?;
        if let Some(ring) = &send {
            // Some programs send small messages inline without requesting it.
            let slot_shift = ring.layout().slot_shift();
            cap.max_inline_data = inline_room(slot_shift, shared.limits.max_inline_data);
        }
        Ok(Self {
            qp_type,
            cap,
            opcodes,
            send,
            recv: match has_srq {
                false => planned_ring(cap.max_recv_wr, recv_size, shared, domain)?,
                // With an SRQ, the receive capabilities are ignored.
                true => None,
            },
        })
    }

    /// Bytes of inline payload of a send work request, as many as a slot has room for.
    pub fn max_inline(&self) -> u32 {
        self.cap.max_inline_data
    }

    /// The request to the kernel module.
    pub fn request(&self) -> CreateQpReq {
        let ring = |ring: &Option<PlannedRing>| ring.as_ref().map(PlannedRing::user_ring);
        CreateQpReq {
            sq: ring(&self.send).unwrap_or_default(),
            rq: ring(&self.recv).unwrap_or_default(),
        }
    }
}

/// The ring of a queue for `wrs` work requests whose WQEs have up to `size` bytes.
fn planned_ring(
    wrs: u32,
    size: usize,
    shared: &Shared,
    domain: &Domain,
) -> io::Result<Option<PlannedRing>> {
    if wrs == 0 {
        return Ok(None);
    }
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let slots = wrs
        .max(*WORK_SLOTS.start())
        .checked_next_power_of_two()
        .filter(|&slots| slots <= shared.limits.max_qp_slots)
        .ok_or_else(invalid)?;
    let layout = slot_shift_for(size)
        .and_then(|shift| RingLayout::new(RingKind::Work, slots, shift))
        .ok_or_else(invalid)?;
    PlannedRing::new(layout, domain.lender.as_ref()).map(Some)
}

fn slots(ring: &Option<WorkRing>) -> u32 {
    ring.as_ref().map_or(0, WorkRing::slots)
}

impl Qp {
    /// The planned QP. `map` maps its rings, send queue first. `domain` has the locking of the
    /// queues.
    ///
    /// # Errors
    ///
    /// Errors of `map`, and `ENOMEM`.
    pub fn new(
        plan: Plan,
        map: impl Fn(PlannedRing, DoorbellKind) -> io::Result<RingMap>,
        (send_cq, recv_cq, srq): (&Cq, &Cq, Option<&Srq>),
        shared: &Arc<Shared>,
        domain: &Domain,
    ) -> io::Result<Self> {
        let Plan {
            qp_type,
            cap,
            opcodes,
            ..
        } = plan;
        let queue = |ring: Option<PlannedRing>, kind| {
            let queue = |ring| WorkRing::new(map(ring, kind)?, domain.threads);
            ring.map(queue).transpose()
        };
        let rings = QpRings {
            send: queue(plan.send, DoorbellKind::Sq)?,
            recv: queue(plan.recv, DoorbellKind::Rq)?,
            shared: srq.map(|srq| srq.ring().clone()),
        };
        let is_one_cq = Arc::ptr_eq(send_cq.ring(), recv_cq.ring());
        // INVARIANT: libibverbs fills `ibv` in.
        Ok(Self {
            ibv: UnsafeCell::new(Zeroed::zeroed()),
            rings: Arc::try_new(rings)?,
            send: SendQueue::new(SendLimits {
                opcodes,
                datagrams: qp_type == ffi::IBV_QPT_UD,
                max_sge: cap.max_send_sge,
                max_inline: cap.max_inline_data,
            }),
            recv: RecvQueue {
                max_sge: if srq.is_some() { 0 } else { cap.max_recv_sge },
                doorbell: 0,
            },
            shared: shared.clone(),
            qpn: Qpn::default(),
            state: AtomicU32::new(ffi::IBV_QPS_RESET),
            send_cq: Attachment::new(send_cq.ring())?,
            recv_cq: match is_one_cq {
                true => None,
                false => Some(Attachment::new(recv_cq.ring())?),
            },
            _domain: domain.lender.clone(),
        })
    }

    /// A QP of a device in the same process.
    ///
    /// # Errors
    ///
    /// Errors of [`Plan::new`] and [`PlannedRing::in_memory`], and `ENOMEM`.
    pub fn in_memory(
        qp_type: ffi::ibv_qp_type,
        cap: &ffi::ibv_qp_cap,
        queues: (&Cq, &Cq, Option<&Srq>),
        shared: &Arc<Shared>,
        domain: &Domain,
    ) -> io::Result<Box<Self>> {
        let plan = Plan::new(qp_type, cap, queues.2.is_some(), shared, domain)?;
        let map = |ring: PlannedRing, _| ring.in_memory();
        boxed(Self::new(plan, map, queues, shared, domain)?)
    }

    /// The QP behind libibverbs' pointer.
    ///
    /// # Safety
    ///
    /// The QP was made by this provider and is not destroyed during `'a`.
    pub unsafe fn from_ibv<'a>(qp: *mut ffi::ibv_qp) -> &'a Self {
        // SAFETY: the ibv_qp is at the start of a Qp. By the invariants, its `ibv` is accessed
        // through raw pointers only; the other members may be shared.
        unsafe { &*qp.cast::<Self>() }
    }

    /// libibverbs' view of this QP.
    pub fn as_ibv(&self) -> *mut ffi::ibv_qp {
        ptr::from_ref(self).cast_mut().cast()
    }

    #[inline]
    pub fn rings(&self) -> &QpRings {
        &self.rings
    }

    /// The send queue, without its ring.
    #[inline]
    pub fn send(&self) -> &SendQueue {
        &self.send
    }

    /// The receive queue, without its ring.
    #[inline]
    pub fn recv(&self) -> &RecvQueue {
        &self.recv
    }

    /// The doorbells of the process.
    #[inline]
    pub fn doorbells(&self) -> &DoorbellPage {
        &self.shared.doorbell
    }

    /// Whether the QP is in RESET.
    #[inline]
    pub fn is_reset(&self) -> bool {
        self.state() == ffi::IBV_QPS_RESET
    }

    /// Whether the QP's state allows send work requests.
    #[inline]
    pub fn can_send(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= ffi::IBV_QPS_RTS
    }

    /// The CQs of the QP.
    fn cqs(&self) -> impl Iterator<Item = &Attachment> {
        iter::once(&self.send_cq).chain(&self.recv_cq)
    }

    /// Starts to deliver completions of the QP, which the kernel has created.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. The caller destroys the QP in the kernel and then calls
    /// [`destroyed`](Self::destroyed).
    pub fn created(&mut self, qpn: Qpn) -> io::Result<()> {
        self.qpn = qpn;
        self.send.doorbell = Doorbell::Sq(qpn).to_u32();
        self.recv.doorbell = Doorbell::Rq(qpn).to_u32();
        self.cqs().try_for_each(|cq| cq.attach(qpn, &self.rings))
    }

    /// Stops delivering completions of the QP, which the kernel has destroyed.
    pub fn destroyed(&self) {
        self.cqs().for_each(|cq| cq.detach(self.qpn, &self.rings));
    }

    /// Notes that the QP was moved to `state`.
    pub fn changed(&self, state: ffi::ibv_qp_state) {
        self.state.store(state, Ordering::Relaxed);
        self.send.allow(self.can_send());
        if state == ffi::IBV_QPS_RESET {
            self.cqs().for_each(|cq| cq.reset(self.qpn, &self.rings));
            for ring in [&self.rings.send, &self.rings.recv].into_iter().flatten() {
                ring.reset();
            }
        }
    }

    /// State according to the last modify or query.
    fn state(&self) -> ffi::ibv_qp_state {
        self.state.load(Ordering::Relaxed)
    }

    /// Notes the `state` that a query has returned. The state was `before` when the query began.
    /// Only ERR is stored: the device moves QPs to no other state by itself. It is stored only if
    /// no thread has modified the QP since the query began.
    pub fn queried(&self, before: ffi::ibv_qp_state, state: ffi::ibv_qp_state) {
        let error = ffi::IBV_QPS_ERR;
        let order = Ordering::Relaxed;
        if state == error
            && self
                .state
                .compare_exchange(before, error, order, order)
                .is_ok()
        {
            self.send.allow(self.can_send());
        }
    }

    /// Replaces the requested sizes by the actual sizes of the QP.
    pub fn report(&self, cap: &mut ffi::ibv_qp_cap) {
        cap.max_send_wr = slots(&self.rings.send);
        cap.max_recv_wr = slots(&self.rings.recv);
        cap.max_send_sge = self.send.limits.max_sge;
        cap.max_recv_sge = self.recv.max_sge;
        cap.max_inline_data = self.send.limits.max_inline;
    }
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn destroy_qp(qp: *mut ffi::ibv_qp) -> c_int {
    // SAFETY: libibverbs passes a QP of this provider.
    let status = unsafe { ffi::ibv_cmd_destroy_qp(qp) };
    if status == 0 {
        // SAFETY: the QP was made by `create_qp`, and the caller does not use it any more.
        unsafe { Box::from_raw(qp.cast::<Qp>()) }.destroyed();
    }
    status
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn modify_qp(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let status = if mask as u32 & ffi::IBV_QP_RATE_LIMIT != 0 {
        // SAFETY: libibverbs' arguments are passed on.
        unsafe { rate_limit::modify_qp(qp, attr, mask, ModifyQpReq::default()) }
    } else {
        // SAFETY: libibverbs' arguments are passed on.
        unsafe { command!(ibv_cmd_modify_qp(qp, attr, mask), ibv_modify_qp) }
    };
    if status == 0 && mask as u32 & ffi::IBV_QP_STATE != 0 {
        // SAFETY: libibverbs passes a QP of this provider, and its attributes.
        unsafe { Qp::from_ibv(qp).changed((*attr).qp_state) };
    }
    status
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn query_qp(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    mask: c_int,
    init_attr: *mut ffi::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: libibverbs passes a QP of this provider.
    let before = unsafe { Qp::from_ibv(qp) }.state();
    // SAFETY: libibverbs' arguments are passed on.
    let status = unsafe { command!(ibv_cmd_query_qp(qp, attr, mask, init_attr), ibv_query_qp) };
    if status == 0 {
        // SAFETY: `qp` is a QP of this provider, and the command has filled in the attributes.
        unsafe {
            let qp = Qp::from_ibv(qp);
            qp.queried(before, (*attr).qp_state);
            qp.report(&mut (*attr).cap);
            qp.report(&mut (*init_attr).cap);
        }
    }
    status
}

/// `attach_mcast`. The kernel checks type and group; on Ethernet a group has no LID.
///
/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn attach_mcast(
    qp: *mut ffi::ibv_qp,
    gid: *const ffi::ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: libibverbs' arguments are passed on.
    unsafe { ffi::ibv_cmd_attach_mcast(qp, gid, lid) }
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn detach_mcast(
    qp: *mut ffi::ibv_qp,
    gid: *const ffi::ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: libibverbs' arguments are passed on.
    unsafe { ffi::ibv_cmd_detach_mcast(qp, gid, lid) }
}
