// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The verbs of completion queues.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

use libc::c_int;
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::ring::CQ_SLOTS;
use virtio_rdma_abi::uverbs::CreateCqReq;
use virtio_rdma_abi::uverbs::CreateCqResp;
use virtio_rdma_abi::uverbs::ResizeCqReq;
use virtio_rdma_abi::uverbs::ResizeCqResp;
use virtio_rdma_abi::uverbs::RingMapping;

use crate::allocation::boxed;
use crate::arc::Arc;
use crate::completion_ring::CompletionRing;
use crate::context::Context;
use crate::context::Shared;
use crate::cq_ex;
use crate::driver_data;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::libibverbs;
use crate::lock::Threads;
use crate::memory::PlannedRing;
use crate::memory::RingMap;
use crate::pd::Domain;
use crate::pd::Pd;
use crate::place::Object;
use crate::place::Place;

/// A completion queue, as libibverbs sees it.
///
/// # Invariants
///
/// `ibv` belongs to libibverbs, and is accessed through its raw pointer only.
#[repr(C)]
pub struct Cq {
    ibv: UnsafeCell<ffi::verbs_cq>,
    ring: Arc<CompletionRing>,
    shared: Arc<Shared>,
    /// The number that is written to the doorbell.
    cqn: Cqn,
}

// SAFETY: libibverbs' part is not accessed through a reference, and the rest can be sent.
unsafe impl Send for Cq {}
// SAFETY: libibverbs' part is not accessed through a reference, and the rest can be shared.
unsafe impl Sync for Cq {}

// SAFETY: the type is `repr(C)` and starts with the cell of libibverbs' structure.
unsafe impl Object for Cq {
    type Ibv = ffi::verbs_cq;
}

type CreateCqCommand = driver_data::UverbsCommand<ffi::ibv_create_cq_ex, CreateCqReq>;
type Response = driver_data::Response<ffi::ib_uverbs_ex_create_cq_resp, CreateCqResp>;

/// The ring of a CQ for `cqe` completions, or `None` if there is no such ring.
pub fn ring_layout(cqe: u32, max_slots: u32) -> Option<RingLayout> {
    let slots = cqe
        .max(*CQ_SLOTS.start())
        .checked_next_power_of_two()
        .filter(|&slots| slots <= max_slots)?;
    RingLayout::completions(slots)
}

impl Cq {
    /// The CQ with the device's number `cqn` and the ring `map`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new(map: RingMap, cqn: Cqn, shared: &Arc<Shared>, domain: &Domain) -> io::Result<Self> {
        // INVARIANT: libibverbs fills `ibv` in.
        Ok(Self {
            ibv: UnsafeCell::new(Zeroed::zeroed()),
            ring: CompletionRing::new(map, domain)?,
            shared: shared.clone(),
            cqn,
        })
    }

    /// A CQ of a device in the same process.
    ///
    /// # Errors
    ///
    /// Errors of [`PlannedRing::new`] and [`PlannedRing::in_memory`], and `ENOMEM`.
    pub fn in_memory(
        layout: RingLayout,
        shared: &Arc<Shared>,
        domain: &Domain,
    ) -> io::Result<Box<Self>> {
        let map = PlannedRing::new(layout, domain.lender.as_ref())?.in_memory()?;
        boxed(Self::new(map, Cqn::new(0), shared, domain)?)
    }

    /// The CQ behind libibverbs' pointer.
    ///
    /// # Safety
    ///
    /// The CQ was made by this provider and is not destroyed during `'a`.
    pub unsafe fn from_ibv<'a>(cq: *mut ffi::ibv_cq) -> &'a Self {
        // SAFETY: the ibv_cq is at the start of a Cq. By the invariants only its `ibv` changes,
        // which is accessed through raw pointers.
        unsafe { &*cq.cast::<Self>() }
    }

    /// libibverbs' view of this CQ.
    pub fn as_ibv(&self) -> *mut ffi::ibv_cq {
        ptr::from_ref(self).cast_mut().cast()
    }

    fn ring_doorbell(&self) {
        let doorbell = Doorbell::Cq(self.cqn);
        self.shared.doorbell.ring(doorbell.to_u32());
    }

    /// The ring of this CQ.
    #[inline]
    pub fn ring(&self) -> &Arc<CompletionRing> {
        &self.ring
    }
}

/// The locking and the memory source of a CQ that is created with `attr`. `threads` is the locking
/// of the context's queues.
///
/// # Errors
///
/// `EOPNOTSUPP` for flags and completion fields that are not supported, such as timestamps.
///
/// # Safety
///
/// A parent domain that the attributes name is this provider's.
unsafe fn domain(attr: &ffi::ibv_cq_init_attr_ex, threads: Threads) -> Result<Domain, i32> {
    const KNOWN: u32 = ffi::IBV_CQ_INIT_ATTR_MASK_FLAGS | ffi::IBV_CQ_INIT_ATTR_MASK_PD;
    let flags = match attr.comp_mask & ffi::IBV_CQ_INIT_ATTR_MASK_FLAGS {
        0 => 0,
        _ => attr.flags,
    };
    if attr.comp_mask & !KNOWN != 0
        || attr.wc_flags & !u64::from(ffi::IBV_WC_STANDARD_FLAGS) != 0
        || flags & !ffi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    let mut domain = Domain::from(threads);
    if attr.comp_mask & ffi::IBV_CQ_INIT_ATTR_MASK_PD != 0 {
        if attr.parent_domain.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the parent domain is this provider's, by the function's safety requirements.
        let pd = unsafe { Pd::from_ibv(attr.parent_domain) };
        domain = pd.domain(threads, ffi::VIRTIO_RDMA_DV_RES_CQ);
    }
    Ok(domain)
}

/// Creates a CQ.
///
/// # Errors
///
/// The error number.
///
/// # Safety
///
/// `context` is an open context of this provider, and the attributes name objects of this provider.
unsafe fn create(
    context: *mut ffi::ibv_context,
    attr: &ffi::ibv_cq_init_attr_ex,
) -> Result<Box<Cq>, i32> {
    // SAFETY: the caller passes an open context of this provider.
    let shared = unsafe { Context::shared(context) };
    // SAFETY: the caller passes valid attributes.
    let domain = unsafe { domain(attr, shared.threads)? };
    if attr.cqe == 0 {
        return Err(libc::EINVAL);
    }
    let layout = ring_layout(attr.cqe, shared.limits.max_cq_slots).ok_or(libc::EINVAL)?;
    let number = |error| errno::number(&error);
    let ring = PlannedRing::new(layout, domain.lender.as_ref()).map_err(number)?;
    let mut place = Place::<Cq>::new().map_err(number)?;
    let request = CreateCqReq {
        ring: ring.user_ring(),
    };
    let mut command = CreateCqCommand::new(&request);
    let mut response = Response::empty();
    // SAFETY: the caller's arguments are passed on, the CQ stays in its place, and command and
    // response are as long as stated.
    let status = unsafe {
        libibverbs::create_cq_ex(
            context,
            attr,
            place.as_ibv(),
            &mut command.core,
            CreateCqCommand::SIZE,
            &mut response.core,
            Response::SIZE,
        )
    };
    if status != 0 {
        return Err(status);
    }
    let response = response.get();
    let map = ring.map(shared.fd, &response.ring);
    match map.and_then(|map| Cq::new(map, response.cqn, shared, &domain)) {
        Ok(cq) => Ok(place.finish(cq)),
        Err(error) => {
            // SAFETY: the kernel has created the CQ above. If this fails, closing the context
            // destroys it.
            unsafe { ffi::ibv_cmd_destroy_cq(place.as_ibv().cast()) };
            Err(number(error))
        }
    }
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn create_cq(
    context: *mut ffi::ibv_context,
    cqe: c_int,
    channel: *mut ffi::ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ffi::ibv_cq {
    let attr = ffi::ibv_cq_init_attr_ex {
        // A negative number becomes a number that is too large.
        cqe: cqe as u32,
        channel,
        comp_vector: comp_vector as u32,
        ..Zeroed::zeroed()
    };
    // SAFETY: libibverbs passes an open context of this provider.
    match unsafe { create(context, &attr) } {
        Ok(cq) => Box::into_raw(cq).cast(),
        Err(number) => errno::null(number),
    }
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex {
    // SAFETY: libibverbs passes an open context of this provider, and attributes.
    match unsafe { create(context, &*attr) } {
        Ok(cq) => {
            let cq: *mut ffi::ibv_cq_ex = Box::into_raw(cq).cast();
            // SAFETY: only this function uses the CQ until it is returned.
            cq_ex::install(unsafe { &mut *cq });
            cq
        }
        Err(number) => errno::null(number),
    }
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn destroy_cq(cq: *mut ffi::ibv_cq) -> c_int {
    // SAFETY: the CQ was made by `create_cq`. After the command, no QP completes to it, and the
    // caller does not use it any more.
    unsafe { errno::destroyed::<Cq, _>(ffi::ibv_cmd_destroy_cq(cq), cq) }
}

/// # Safety
///
/// `cq` is a CQ of this provider, and `wc` has room for `num_entries` work completions.
pub unsafe extern "C" fn poll_cq(
    cq: *mut ffi::ibv_cq,
    num_entries: c_int,
    wc: *mut ffi::ibv_wc,
) -> c_int {
    if num_entries <= 0 {
        return none();
    }
    // LOSSLESS: not negative.
    let room = num_entries as usize;
    // SAFETY: the caller passes a CQ of this provider.
    let cq = unsafe { Cq::from_ibv(cq) };
    // SAFETY: the caller passes room for `num_entries` completions.
    let out = unsafe { slice::from_raw_parts_mut(wc.cast::<MaybeUninit<ffi::ibv_wc>>(), room) };
    match cq.ring.poll(out) {
        // LOSSLESS: at most num_entries.
        Some(delivered) => delivered as c_int,
        None => -libc::EIO,
    }
}

/// The result of a poll for no completions.
// Cold, so that the usual case needs no jump.
#[cold]
fn none() -> c_int {
    0
}

/// # Safety
///
/// `cq` is a CQ of this provider.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ffi::ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller passes a CQ of this provider.
    let cq = unsafe { Cq::from_ibv(cq) };
    if cq.ring.arm(solicited_only != 0) {
        cq.ring_doorbell();
    }
    0
}

/// `modify_cq`: sets the moderation of a CQ.
///
/// # Safety
///
/// The arguments are a CQ of this provider, and attributes that are valid for the call.
pub unsafe extern "C" fn modify_cq(
    cq: *mut ffi::ibv_cq,
    attr: *mut ffi::ibv_modify_cq_attr,
) -> c_int {
    let mut command = ffi::ibv_modify_cq::zeroed();
    let size = size_of_val(&command);
    // SAFETY: the caller's arguments are passed on, with a command as long as stated.
    unsafe { ffi::ibv_cmd_modify_cq(cq, attr, &mut command, size) }
}

type ResizeCqCommand = driver_data::UverbsCommand<ffi::ibv_resize_cq, ResizeCqReq>;
type ResizeResponse = driver_data::Response<ffi::ib_uverbs_resize_cq_resp, ResizeCqResp>;

/// # Safety
///
/// `cq` is a CQ of this provider.
pub unsafe extern "C" fn resize_cq(ibv: *mut ffi::ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller passes a CQ of this provider.
    let cq = unsafe { Cq::from_ibv(ibv) };
    let layout = u32::try_from(cqe)
        .ok()
        .filter(|&cqe| cqe != 0)
        .and_then(|cqe| ring_layout(cqe, cq.shared.limits.max_cq_slots));
    let Some(layout) = layout else {
        return libc::EINVAL;
    };
    let command = |ring| {
        let mut command = ResizeCqCommand::new(&ResizeCqReq { ring });
        let mut response = ResizeResponse::empty();
        // SAFETY: the caller's arguments are passed on, and command and response are as long as
        // stated.
        let status = unsafe {
            ffi::ibv_cmd_resize_cq(
                ibv,
                cqe,
                &mut command.core,
                ResizeCqCommand::SIZE,
                &mut response.core,
                ResizeResponse::SIZE,
            )
        };
        match status {
            0 => Ok(response.get()),
            number => Err(number),
        }
    };
    let map = |ring: PlannedRing| {
        let mapping = match ring.is_lent() {
            true => RingMapping::default(),
            false => {
                command(ring.user_ring())
                    .map_err(io::Error::from_raw_os_error)?
                    .ring
            }
        };
        ring.map(cq.shared.fd, &mapping)
    };
    let resized = cq.ring.resize_with(layout, map, |ring| {
        command(ring.move_request()).map(|response| response.end)
    });
    match resized {
        Ok(true) => cq.ring_doorbell(),
        Ok(false) => (),
        Err(number) => return number,
    }
    0
}

/// `cq_event`: libibverbs has fetched a completion event of this CQ.
///
/// # Safety
///
/// `cq` is a CQ of this provider.
pub unsafe extern "C" fn cq_event(cq: *mut ffi::ibv_cq) {
    // SAFETY: the caller passes a CQ of this provider.
    unsafe { Cq::from_ibv(cq) }.ring.event_received();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pd::alloc_parent_domain;
    use crate::pd::alloc_td;
    use crate::pd::dealloc_pd;
    use crate::pd::dealloc_td;

    /// Whether a CQ that is created with `attr` is locked, in a context that several threads may
    /// use.
    fn is_locked(attr: &ffi::ibv_cq_init_attr_ex) -> bool {
        // SAFETY: a parent domain of the tests is this provider's.
        let domain = unsafe { domain(attr, Threads::MANY) };
        domain.unwrap().threads.are_many()
    }

    #[test]
    fn no_attribute_unlocks_a_cq() {
        let pd = Pd::for_tests();
        let mut init = ffi::ibv_td_init_attr { comp_mask: 0 };
        let mut parent = ffi::ibv_parent_domain_init_attr {
            pd: ptr::from_ref(&*pd).cast_mut().cast(),
            ..Zeroed::zeroed()
        };
        let flag = ffi::ibv_cq_init_attr_ex {
            comp_mask: ffi::IBV_CQ_INIT_ATTR_MASK_FLAGS,
            flags: ffi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
            ..Zeroed::zeroed()
        };
        assert!(is_locked(&flag), "QPs of other threads complete to it");
        // SAFETY: all objects are this provider's, and none is used after it is deallocated.
        unsafe {
            parent.td = alloc_td(ptr::null_mut(), &mut init);
            let parent_domain = alloc_parent_domain(ptr::null_mut(), &mut parent);
            let both = ffi::ibv_cq_init_attr_ex {
                comp_mask: flag.comp_mask | ffi::IBV_CQ_INIT_ATTR_MASK_PD,
                parent_domain,
                ..flag
            };
            assert!(is_locked(&both), "a thread domain promises nothing for it");
            assert_eq!(dealloc_pd(parent_domain), 0);
            assert_eq!(dealloc_td(parent.td), 0);
        }
    }
}
