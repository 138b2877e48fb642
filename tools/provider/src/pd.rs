// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Protection domains, thread domains and parent domains.
//!
//! A thread domain is the program's promise to post to the QPs of the domain from one thread at a
//! time. A parent domain joins a thread domain with a PD. The parent domain is used like that PD,
//! and its QPs do not lock their queues. A parent domain can also have allocators for the memory of
//! queues.

#[cfg(test)]
use std::ffi::c_void;
#[cfg(test)]
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use libc::c_int;

use crate::allocation::boxed;
use crate::allocators::Allocators;
use crate::allocators::Lender;
use crate::command::command;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::lock::Threads;

/// A PD or parent domain, as libibverbs sees it.
#[repr(C)]
pub struct Pd {
    ibv: ffi::ibv_pd,
    /// Number of users. Users of a PD are the parent domains made of it; users of a parent domain
    /// are its queues.
    users: AtomicUsize,
    /// The origin of a parent domain; `None` for a PD.
    parent: Option<Parent>,
}

/// The PD and the thread domain of which a parent domain was made, and its allocators.
#[derive(Clone, Copy)]
struct Parent {
    pd: *mut ffi::ibv_pd,
    td: *mut ffi::ibv_td,
    allocators: Option<Allocators>,
}

/// The properties that a queue gets from its PD.
#[derive(Clone)]
pub struct Domain {
    /// The locking of the queue.
    pub threads: Threads,
    /// The parent domain of the queue, which may have allocators.
    pub lender: Option<Lender>,
}

impl From<Threads> for Domain {
    fn from(threads: Threads) -> Self {
        Self {
            threads,
            lender: None,
        }
    }
}

/// A thread domain, as libibverbs sees it.
#[repr(C)]
pub struct Td {
    ibv: ffi::ibv_td,
    /// Number of parent domains made of this thread domain.
    users: AtomicUsize,
}

impl Pd {
    /// The PD behind libibverbs' pointer.
    ///
    /// # Safety
    ///
    /// The PD was made by this provider and is not deallocated during `'a`.
    pub unsafe fn from_ibv<'a>(pd: *mut ffi::ibv_pd) -> &'a Self {
        // SAFETY: the ibv_pd is at the start of a Pd.
        unsafe { &*pd.cast::<Self>() }
    }

    /// The properties of a queue that is made with this PD. `resource` is one of
    /// `enum virtio_rdma_dv_res_type`. `threads` is the locking of queues without a thread domain.
    pub fn domain(&self, threads: Threads, resource: u32) -> Domain {
        // Only QPs can do without locks. A CQ changes when any thread creates a QP for it, and an
        // SRQ changes when any thread polls a CQ.
        let has_one = resource == ffi::VIRTIO_RDMA_DV_RES_QP;
        let threads = match self.parent {
            // SAFETY: a program that makes a QP in a thread domain promises to use it in one thread
            // at a time.
            Some(parent) if has_one && !parent.td.is_null() => unsafe { Threads::one() },
            _ => threads,
        };
        let lender = |parent: Parent| Lender::new(self, parent.allocators, resource);
        Domain {
            threads,
            lender: self.parent.map(lender),
        }
    }

    /// The number of objects that prevent the deallocation of this domain.
    pub fn users(&self) -> &AtomicUsize {
        &self.users
    }
}

#[cfg(test)]
impl Pd {
    /// A PD that no kernel knows.
    pub fn for_tests() -> Box<Self> {
        Box::new(Self {
            ibv: ffi::ibv_pd {
                context: ptr::null_mut(),
                handle: 7,
            },
            users: AtomicUsize::new(0),
            parent: None,
        })
    }

    /// Calls `test` with a parent domain, and then deallocates the domain, which must not have
    /// users any more. `alloc` and `free` are its allocators, which are called with `program`.
    pub fn with_allocators<P>(
        alloc: unsafe extern "C" fn(
            *mut ffi::ibv_pd,
            *mut c_void,
            usize,
            usize,
            u64,
        ) -> *mut c_void,
        free: unsafe extern "C" fn(*mut ffi::ibv_pd, *mut c_void, *mut c_void, u64),
        program: &P,
        test: impl FnOnce(*mut ffi::ibv_pd),
    ) {
        let pd = Self::for_tests();
        let mut attr = ffi::ibv_parent_domain_init_attr {
            pd: ptr::from_ref(&*pd).cast_mut().cast(),
            comp_mask: ffi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
                | ffi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
            alloc: Some(alloc),
            free: Some(free),
            pd_context: ptr::from_ref(program).cast_mut().cast(),
            ..Zeroed::zeroed()
        };
        // SAFETY: the PD is an object of this provider, and outlives the domain.
        let domain = unsafe { alloc_parent_domain(ptr::null_mut(), &mut attr) };
        assert!(!domain.is_null());
        test(domain);
        // SAFETY: the test does not use the domain any more.
        assert_eq!(unsafe { dealloc_pd(domain) }, 0);
    }
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn alloc_pd(context: *mut ffi::ibv_context) -> *mut ffi::ibv_pd {
    let pd = boxed(Pd {
        ibv: Zeroed::zeroed(),
        users: AtomicUsize::new(0),
        parent: None,
    });
    let Ok(mut pd) = pd else {
        return errno::null(libc::ENOMEM);
    };
    // SAFETY: the context is libibverbs', and command and response are as long as stated.
    let status = unsafe {
        command!(
            ibv_cmd_alloc_pd(context, &mut pd.ibv),
            ibv_alloc_pd,
            ib_uverbs_alloc_pd_resp
        )
    };
    errno::created(status, pd)
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn alloc_parent_domain(
    _context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_parent_domain_init_attr,
) -> *mut ffi::ibv_pd {
    // SAFETY: libibverbs passes attributes.
    let attr = unsafe { &*attr };
    // SAFETY: the PD, if there is one, is this provider's.
    let Some(pd) = (unsafe { attr.pd.cast::<Pd>().as_ref() }) else {
        return errno::null(libc::EINVAL);
    };
    let allocators = match Allocators::of(attr) {
        Ok(allocators) => allocators,
        Err(number) => return errno::null(number),
    };
    if pd.parent.is_some() {
        return errno::null(libc::EINVAL);
    }
    let parent = boxed(Pd {
        // The kernel knows the parent domain by the PD's handle.
        ibv: pd.ibv,
        users: AtomicUsize::new(0),
        parent: Some(Parent {
            pd: attr.pd,
            td: attr.td,
            allocators,
        }),
    });
    let Ok(parent) = parent else {
        return errno::null(libc::ENOMEM);
    };
    pd.users.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the thread domain, if there is one, is this provider's.
    if let Some(td) = unsafe { attr.td.cast::<Td>().as_ref() } {
        td.users.fetch_add(1, Ordering::Relaxed);
    }
    Box::into_raw(parent).cast()
}

/// `dealloc_pd`, of parent domains as well.
///
/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ffi::ibv_pd) -> c_int {
    // SAFETY: the PD was made by `alloc_pd` or `alloc_parent_domain`.
    let domain = unsafe { Pd::from_ibv(pd) };
    if domain.users.load(Ordering::Acquire) != 0 {
        return libc::EBUSY;
    }
    match domain.parent {
        Some(Parent { pd, td, .. }) => {
            // SAFETY: PD and thread domain outlive the parent domain: they can't be deallocated
            // while they have users.
            unsafe {
                Pd::from_ibv(pd).users.fetch_sub(1, Ordering::Relaxed);
                if let Some(td) = td.cast::<Td>().as_ref() {
                    td.users.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        None => {
            // SAFETY: the PD was made by `alloc_pd`.
            let status = unsafe { ffi::ibv_cmd_dealloc_pd(pd) };
            if status != 0 {
                return status;
            }
        }
    }
    // SAFETY: the PD was made by `alloc_pd`, and the caller does not use it any more.
    drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
    0
}

/// # Safety
///
/// The pointers are valid for the call.
pub unsafe extern "C" fn alloc_td(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_td_init_attr,
) -> *mut ffi::ibv_td {
    // SAFETY: libibverbs passes attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return errno::null(libc::EOPNOTSUPP);
    }
    let td = boxed(Td {
        ibv: ffi::ibv_td { context },
        users: AtomicUsize::new(0),
    });
    match td {
        Ok(td) => Box::into_raw(td).cast(),
        Err(error) => errno::null(errno::number(&error)),
    }
}

/// # Safety
///
/// The arguments are objects of this provider.
pub unsafe extern "C" fn dealloc_td(td: *mut ffi::ibv_td) -> c_int {
    let td = td.cast::<Td>();
    // SAFETY: the thread domain was made by `alloc_td`.
    if unsafe { (*td).users.load(Ordering::Relaxed) } != 0 {
        return libc::EBUSY;
    }
    // SAFETY: the thread domain was made by `alloc_td`, and the caller does not use it any more.
    drop(unsafe { Box::from_raw(td) });
    0
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn queues_keep_the_parent_domain_that_they_were_made_in() {
        let pd = Pd::for_tests();
        let mut init = ffi::ibv_td_init_attr { comp_mask: 0 };
        let mut attr = ffi::ibv_parent_domain_init_attr {
            pd: ptr::from_ref(&*pd).cast_mut().cast(),
            ..Zeroed::zeroed()
        };
        // SAFETY: all objects are this provider's, and none is used after it is deallocated.
        unsafe {
            attr.td = alloc_td(ptr::null_mut(), &mut init);
            let parent = alloc_parent_domain(ptr::null_mut(), &mut attr);
            for resource in [
                ffi::VIRTIO_RDMA_DV_RES_QP,
                ffi::VIRTIO_RDMA_DV_RES_CQ,
                ffi::VIRTIO_RDMA_DV_RES_SRQ,
            ] {
                let queue = Pd::from_ibv(parent).domain(Threads::MANY, resource);
                assert_eq!(dealloc_pd(parent), libc::EBUSY);
                assert_eq!(
                    queue.threads.are_many(),
                    resource != ffi::VIRTIO_RDMA_DV_RES_QP,
                    "other threads reach into CQs and SRQs"
                );
            }
            assert_eq!(dealloc_pd(parent), 0);
            assert_eq!(dealloc_td(attr.td), 0);
        }
    }

    #[test]
    fn parent_domains_keep_what_they_were_made_of() {
        let context = ptr::null_mut();
        let pd = Box::into_raw(Pd::for_tests());
        let mut init = ffi::ibv_td_init_attr { comp_mask: 1 };
        let mut attr = ffi::ibv_parent_domain_init_attr {
            pd: ptr::null_mut(),
            ..Zeroed::zeroed()
        };
        // SAFETY: all objects are this provider's, and none is used after it is deallocated.
        unsafe {
            assert!(alloc_td(context, &mut init).is_null());
            init.comp_mask = 0;
            attr.td = alloc_td(context, &mut init);
            assert!(alloc_parent_domain(context, &mut attr).is_null(), "no PD");
            attr.pd = pd.cast();
            attr.comp_mask = ffi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
            assert!(alloc_parent_domain(context, &mut attr).is_null(), "none");
            attr.comp_mask = 1 << 7;
            assert!(alloc_parent_domain(context, &mut attr).is_null(), "unknown");
            attr.comp_mask = 0;
            let parent = alloc_parent_domain(context, &mut attr);
            assert_eq!((*parent).handle, 7);
            let td = attr.td;
            attr.pd = parent;
            assert!(alloc_parent_domain(context, &mut attr).is_null());
            assert_eq!(dealloc_td(td), libc::EBUSY);
            assert_eq!(dealloc_pd(pd.cast()), libc::EBUSY);
            assert_eq!(dealloc_pd(parent), 0);
            assert_eq!(dealloc_td(td), 0);
            assert_eq!((*pd).users.load(Ordering::Relaxed), 0);
            drop(Box::from_raw(pd));
        }
    }
}
