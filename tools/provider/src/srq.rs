// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The verbs of shared receive queues.

use std::cell::UnsafeCell;
use std::io;
use std::ptr;

use libc::c_int;
use virtio_rdma_abi::number::Srqn;
use virtio_rdma_abi::ring::slot_shift_for;
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::ring::WORK_SLOTS;
use virtio_rdma_abi::uverbs::CreateSrqReq;
use virtio_rdma_abi::uverbs::CreateSrqResp;
use virtio_rdma_abi::uverbs::ModifySrqReq;
use virtio_rdma_abi::uverbs::RingMapping;
use virtio_rdma_abi::wqe::rq_wqe_size;

use crate::allocation::boxed;
use crate::arc::Arc;
use crate::command::command;
use crate::context::Context;
use crate::context::Shared;
use crate::driver_data;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::memory::PlannedRing;
use crate::memory::RingMap;
use crate::pd::Domain;
use crate::pd::Pd;
use crate::place::Object;
use crate::place::Place;
use crate::shared_ring::SharedRing;
use crate::work_ring::List;

/// A shared receive queue, as libibverbs sees it.
///
/// # Invariants
///
/// `ibv` belongs to libibverbs, and is accessed through its raw pointer only.
#[repr(C)]
pub struct Srq {
    ibv: UnsafeCell<ffi::verbs_srq>,
    ring: Arc<SharedRing>,
    max_sge: u32,
    shared: Arc<Shared>,
    /// The number of the SRQ on the device.
    srqn: Srqn,
}

// SAFETY: libibverbs' part is not accessed through a reference, and the rest can be sent.
unsafe impl Send for Srq {}
// SAFETY: libibverbs' part is not accessed through a reference, and the rest can be shared.
unsafe impl Sync for Srq {}

// SAFETY: the type is `repr(C)` and starts with the cell of libibverbs' structure.
unsafe impl Object for Srq {
    type Ibv = ffi::verbs_srq;
}

type CreateSrqCommand = driver_data::UverbsCommand<ffi::ibv_create_srq, CreateSrqReq>;
type Response = driver_data::Response<ffi::ib_uverbs_create_srq_resp, CreateSrqResp>;
type ModifySrqCommand = driver_data::UverbsCommand<ffi::ibv_modify_srq, ModifySrqReq>;

/// Slots of a ring for `wrs` work requests, or `None` if there is no such ring.
fn slots_for(wrs: u32) -> Option<u32> {
    wrs.max(*WORK_SLOTS.start())
        .checked_next_power_of_two()
        .filter(|slots| WORK_SLOTS.contains(slots))
}

impl Srq {
    /// The SRQ with the device's number `srqn` and the ring `memory`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new(
        memory: RingMap,
        srqn: Srqn,
        max_sge: u32,
        shared: &Arc<Shared>,
        domain: &Domain,
    ) -> io::Result<Self> {
        // INVARIANT: libibverbs fills `ibv` in.
        Ok(Self {
            ibv: UnsafeCell::new(Zeroed::zeroed()),
            ring: Arc::try_new(SharedRing::new(memory, domain)?)?,
            max_sge,
            shared: shared.clone(),
            srqn,
        })
    }

    /// An SRQ of a device in the same process.
    ///
    /// # Errors
    ///
    /// Errors of [`PlannedRing::new`] and [`PlannedRing::in_memory`], and `ENOMEM`.
    pub fn in_memory(
        layout: RingLayout,
        max_sge: u32,
        shared: &Arc<Shared>,
        domain: &Domain,
    ) -> io::Result<Box<Self>> {
        let memory = PlannedRing::new(layout, domain.lender.as_ref())?.in_memory()?;
        boxed(Self::new(memory, Srqn::NONE, max_sge, shared, domain)?)
    }

    /// The SRQ behind libibverbs' pointer.
    ///
    /// # Safety
    ///
    /// The SRQ was made by this provider and is not destroyed during `'a`.
    pub unsafe fn from_ibv<'a>(srq: *mut ffi::ibv_srq) -> &'a Self {
        // SAFETY: the ibv_srq is at the start of an Srq. By the invariants, its `ibv` is accessed
        // through raw pointers only; the other members may be shared.
        unsafe { &*srq.cast::<Self>() }
    }

    /// libibverbs' view of this SRQ.
    pub fn as_ibv(&self) -> *mut ffi::ibv_srq {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// The ring of the SRQ.
    pub fn ring(&self) -> &Arc<SharedRing> {
        &self.ring
    }

    /// Posts work requests, up to the first invalid one. Returns 0 or the error number.
    #[inline]
    fn post_recv(&self, list: &mut List<'_, ffi::ibv_recv_wr>) -> c_int {
        let mut posting = self.ring.lock();
        let status = list.try_each(|wr| posting.post(wr, self.max_sge));
        let ring_doorbell = posting.publish();
        // A doorbell may take long, since the device may be emulated: the lock is released first.
        drop(posting);
        if ring_doorbell {
            let doorbell = Doorbell::Srq(self.srqn);
            self.shared.doorbell.ring(doorbell.to_u32());
        }
        status
    }
}

/// Creates an SRQ.
///
/// # Errors
///
/// The error number.
///
/// # Safety
///
/// `pd` is a PD of this provider, of an open context.
unsafe fn create(pd: *mut ffi::ibv_pd, attr: &mut ffi::ibv_srq_init_attr) -> Result<Box<Srq>, i32> {
    // SAFETY: the caller passes a valid PD.
    let (shared, pd_of_it) = unsafe { (Context::shared((*pd).context), Pd::from_ibv(pd)) };
    let domain = pd_of_it.domain(shared.threads, ffi::VIRTIO_RDMA_DV_RES_SRQ);
    if attr.attr.max_wr == 0 {
        return Err(libc::EINVAL);
    }
    let max_sge = attr.attr.max_sge;
    let layout = slots_for(attr.attr.max_wr)
        .zip(slot_shift_for(rq_wqe_size(max_sge as usize)))
        .and_then(|(slots, shift)| RingLayout::new(RingKind::Shared, slots, shift))
        .ok_or(libc::EINVAL)?;
    let number = |error| errno::number(&error);
    let ring = PlannedRing::new(layout, domain.lender.as_ref()).map_err(number)?;
    let mut place = Place::<Srq>::new().map_err(number)?;
    let request = CreateSrqReq {
        ring: ring.user_ring(),
    };
    let mut command = CreateSrqCommand::new(&request);
    let mut response = Response::empty();
    // SAFETY: the caller's arguments are passed on, the SRQ stays in its place, and command and
    // response are as long as stated.
    let status = unsafe {
        ffi::ibv_cmd_create_srq(
            pd,
            place.as_ibv().cast(),
            attr,
            &mut command.core,
            CreateSrqCommand::SIZE,
            &mut response.core,
            Response::SIZE,
        )
    };
    if status != 0 {
        return Err(status);
    }
    let response = response.get();
    let memory = ring.map(shared.fd, &response.ring);
    match memory.and_then(|memory| Srq::new(memory, response.srqn, max_sge, shared, &domain)) {
        Ok(srq) => Ok(place.finish(srq)),
        Err(error) => {
            // SAFETY: the kernel has created the SRQ above. If this fails, closing the context
            // destroys it.
            unsafe { ffi::ibv_cmd_destroy_srq(place.as_ibv().cast()) };
            Err(number(error))
        }
    }
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn create_srq(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_srq_init_attr,
) -> *mut ffi::ibv_srq {
    // SAFETY: libibverbs passes a PD of an open context, and attributes.
    match unsafe { create(pd, &mut *attr) } {
        Ok(srq) => Box::into_raw(srq).cast(),
        Err(number) => errno::null(number),
    }
}

/// Changes attributes in the kernel; `request` is the provider's part of the command.
///
/// # Safety
///
/// The same as for [`modify_srq`].
unsafe fn command(
    srq: *mut ffi::ibv_srq,
    attr: *mut ffi::ibv_srq_attr,
    mask: c_int,
    request: ModifySrqReq,
) -> c_int {
    let mut command = ModifySrqCommand::new(&request);
    // SAFETY: the caller's arguments are passed on, with a command as long as stated.
    unsafe { ffi::ibv_cmd_modify_srq(srq, attr, mask, &mut command.core, ModifySrqCommand::SIZE) }
}

/// `modify_srq`. The ring is replaced only if it is too short for the requested number of work
/// requests.
///
/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn modify_srq(
    srq: *mut ffi::ibv_srq,
    attr: *mut ffi::ibv_srq_attr,
    mask: c_int,
) -> c_int {
    const MAX_WR: c_int = ffi::IBV_SRQ_MAX_WR as c_int;
    // SAFETY: libibverbs passes an SRQ of this provider, and attributes.
    let (this, max_wr) = unsafe { (Srq::from_ibv(srq), (*attr).max_wr) };
    let ring = &this.ring;
    if mask & MAX_WR == 0 {
        // SAFETY: the caller passes valid arguments.
        return unsafe { command(srq, attr, mask, ModifySrqReq::default()) };
    }
    let Some(slots) = slots_for(max_wr).filter(|_| max_wr != 0) else {
        return libc::EINVAL;
    };
    let _control = ring.control();
    if slots <= ring.slots() {
        return match mask & !MAX_WR {
            0 => 0,
            // SAFETY: the caller passes valid arguments.
            mask => unsafe { command(srq, attr, mask, ModifySrqReq::default()) },
        };
    }
    let map = |planned: PlannedRing| {
        let mut mapping = [0; RingMapping::SIZE];
        if !planned.is_lent() {
            let request = ModifySrqReq {
                ring: planned.user_ring(),
                mapping_addr: mapping.as_mut_ptr().expose_provenance() as u64,
            };
            // SAFETY: the caller's arguments are passed on. The kernel writes a `RingMapping`, for
            // which `mapping` has room.
            match unsafe { command(srq, attr, MAX_WR, request) } {
                0 => (),
                number => return Err(io::Error::from_raw_os_error(number)),
            }
        }
        planned.map(this.shared.fd, &RingMapping::from_bytes(&mapping))
    };
    match ring.prepare_with(slots, map, RingMap::move_request) {
        Ok(ring) => {
            let request = ModifySrqReq {
                ring,
                ..ModifySrqReq::default()
            };
            // SAFETY: the caller passes valid arguments.
            let status = unsafe { command(srq, attr, mask, request) };
            this.ring.moved(status == 0);
            status
        }
        Err(error) => errno::number(&error),
    }
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn query_srq(srq: *mut ffi::ibv_srq, attr: *mut ffi::ibv_srq_attr) -> c_int {
    // SAFETY: libibverbs' arguments are passed on.
    unsafe { command!(ibv_cmd_query_srq(srq, attr), ibv_query_srq) }
}

/// # Safety
///
/// The arguments are objects of this provider.
pub unsafe extern "C" fn destroy_srq(srq: *mut ffi::ibv_srq) -> c_int {
    // SAFETY: the SRQ was made by `create_srq`. After the command, no QP uses it, and the caller
    // does not use it any more.
    unsafe { errno::destroyed::<Srq, _>(ffi::ibv_cmd_destroy_srq(srq), srq) }
}

/// # Safety
///
/// `srq` is an SRQ of this provider, and `srq_num` can be written.
pub unsafe extern "C" fn get_srq_num(srq: *mut ffi::ibv_srq, srq_num: *mut u32) -> c_int {
    // SAFETY: the caller passes an SRQ of this provider and a writable `srq_num`.
    unsafe { srq_num.write(Srq::from_ibv(srq).srqn.get()) };
    0
}

/// # Safety
///
/// `srq` is an SRQ of this provider, `wr` a list of valid work requests, and `bad_wr` can be
/// written.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ffi::ibv_srq,
    wr: *mut ffi::ibv_recv_wr,
    bad_wr: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes an SRQ of this provider and a list of valid work requests.
    let (srq, mut list) = unsafe { (Srq::from_ibv(srq), List::new(wr)) };
    let status = srq.post_recv(&mut list);
    if status != 0 {
        // SAFETY: the caller passes a writable `bad_wr`.
        unsafe { bad_wr.write(list.first()) };
    }
    status
}
