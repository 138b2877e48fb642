// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory for rings from the program: the allocators of a parent domain
//! (`ibv_alloc_parent_domain`).
//!
//! The kernel pins the pages of a ring when the queue is made. At a fork, it copies pinned pages
//! for the child (since Linux 5.12), so the parent keeps the pages that the device uses. The
//! child's copies are of no use.

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::ffi;
use crate::pd::Pd;

/// Return value of an allocator that leaves an allocation to the provider
/// (`IBV_ALLOCATOR_USE_DEFAULT`).
pub const USE_DEFAULT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// Alignment of a ring and of its length, in bytes: a ring shares no page with other data.
fn page_size() -> usize {
    // SAFETY: sysconf takes any name.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // sysconf does not return -1: every system knows this name.
    size as usize
}

/// The allocator functions of a parent domain.
#[derive(Clone, Copy)]
pub struct Allocators {
    alloc: unsafe extern "C" fn(*mut ffi::ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void,
    free: unsafe extern "C" fn(*mut ffi::ibv_pd, *mut c_void, *mut c_void, u64),
    /// The program's context, which each call passes on.
    context: *mut c_void,
}

impl Allocators {
    /// The allocators in the attributes of a parent domain, if it has any.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for attributes that are not supported, `EINVAL` if only one of the two
    /// functions is given.
    pub fn of(attr: &ffi::ibv_parent_domain_init_attr) -> Result<Option<Self>, i32> {
        const CONTEXT: u32 = ffi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        const BOTH: u32 = ffi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
        if attr.comp_mask & !(CONTEXT | BOTH) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & BOTH == 0 {
            return Ok(None);
        }
        let (Some(alloc), Some(free)) = (attr.alloc, attr.free) else {
            return Err(libc::EINVAL);
        };
        let context = match attr.comp_mask & CONTEXT {
            0 => ptr::null_mut(),
            _ => attr.pd_context,
        };
        Ok(Some(Self {
            alloc,
            free,
            context,
        }))
    }
}

/// A user of a parent domain: allocates memory for queues of one kind, if the domain has
/// allocators. A domain with users can't be deallocated.
///
/// # Invariants
///
/// `pd` is a parent domain with `allocators`, and counts this lender among its users, so that it is
/// not deallocated.
pub struct Lender {
    pd: NonNull<Pd>,
    allocators: Option<Allocators>,
    /// The purpose of the memory: one of `enum virtio_rdma_dv_res_type`.
    resource: u64,
}

// SAFETY: a program that makes and destroys queues in several threads has allocators that can be
// called in these threads; the domain's count of users is atomic.
unsafe impl Send for Lender {}
// SAFETY: as above.
unsafe impl Sync for Lender {}

impl Lender {
    /// Counts a user of the parent domain `pd`. The user's memory is for `resource`.
    pub fn new(pd: &Pd, allocators: Option<Allocators>, resource: u32) -> Self {
        pd.users().fetch_add(1, Ordering::Relaxed);
        // INVARIANT: the lender is counted.
        Self {
            pd: NonNull::from(pd),
            allocators,
            resource: resource.into(),
        }
    }

    /// Requests `len` bytes, rounded up to pages and page-aligned, from the program. `None` if the
    /// program leaves the allocation to the provider.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the program returns null, `EINVAL` if it returns an unaligned address.
    pub fn lend(&self, len: usize) -> io::Result<Option<NonNull<u8>>> {
        let Some(Allocators { alloc, context, .. }) = self.allocators else {
            return Ok(None);
        };
        let page = page_size();
        let len = len.next_multiple_of(page);
        // SAFETY: by the invariants the program gave the function for this domain, which still
        // exists.
        let given = unsafe { alloc(self.pd.as_ptr().cast(), context, len, page, self.resource) };
        if given == USE_DEFAULT {
            return Ok(None);
        }
        let error = io::Error::from_raw_os_error;
        let base = NonNull::new(given.cast::<u8>()).ok_or_else(|| error(libc::ENOMEM))?;
        if base.as_ptr().addr() % page != 0 {
            self.give_back(base);
            return Err(error(libc::EINVAL));
        }
        Ok(Some(base))
    }

    /// Returns [lent](Self::lend) memory to the program.
    pub fn give_back(&self, base: NonNull<u8>) {
        let Some(Allocators { free, context, .. }) = self.allocators else {
            return;
        };
        // SAFETY: as in `lend`, which returned this memory.
        unsafe {
            free(
                self.pd.as_ptr().cast(),
                context,
                base.as_ptr().cast(),
                self.resource,
            )
        };
    }
}

impl Clone for Lender {
    fn clone(&self) -> Self {
        // SAFETY: by the invariants the domain still exists.
        let pd = unsafe { self.pd.as_ref() };
        pd.users().fetch_add(1, Ordering::Relaxed);
        // INVARIANT: the copy is counted.
        Self { ..*self }
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        // SAFETY: by the invariants the domain still exists, since it counts this lender until now.
        unsafe { self.pd.as_ref() }
            .users()
            .fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::alloc;
    use std::alloc::dealloc;
    use std::alloc::Layout;
    use std::cell::Cell;

    use virtio_rdma_abi::ring::RingKind;
    use virtio_rdma_abi::ring::RingLayout;
    use virtio_rdma_ring::RingMemory;

    use super::*;
    use crate::lock::Threads;
    use crate::memory::PlannedRing;
    use crate::pd::dealloc_pd;
    use crate::shared_ring::SharedRing;

    /// State of the program's allocator: the next result, the last request and the number of
    /// allocations.
    #[derive(Default)]
    struct Program {
        answer: Cell<Option<*mut c_void>>,
        asked: Cell<Option<(usize, usize, u64)>>,
        lent: Cell<i32>,
    }

    const PAGE: usize = 4096;
    const LEN: usize = 4 * PAGE;

    unsafe extern "C" fn take(
        _pd: *mut ffi::ibv_pd,
        context: *mut c_void,
        size: usize,
        alignment: usize,
        resource: u64,
    ) -> *mut c_void {
        // SAFETY: the tests pass a `Program` as context.
        let program = unsafe { &*context.cast::<Program>() };
        program.asked.set(Some((size, alignment, resource)));
        program.answer.get().unwrap_or_else(|| {
            assert!(size <= LEN);
            program.lent.set(program.lent.get() + 1);
            // SAFETY: the size is not 0.
            let base = unsafe { alloc(Layout::from_size_align(LEN, PAGE).unwrap()) };
            // SAFETY: the allocation has `LEN` bytes.
            unsafe { base.write_bytes(0xee, LEN) };
            base.cast()
        })
    }

    unsafe extern "C" fn give(
        _pd: *mut ffi::ibv_pd,
        context: *mut c_void,
        memory: *mut c_void,
        _resource: u64,
    ) {
        // SAFETY: the tests pass a `Program` as context.
        let program = unsafe { &*context.cast::<Program>() };
        program.lent.set(program.lent.get() - 1);
        if program.answer.get().is_none() {
            // SAFETY: `take` allocated the memory.
            unsafe { dealloc(memory.cast(), Layout::from_size_align(LEN, PAGE).unwrap()) };
        }
    }

    /// Calls `test` with a parent domain that has the program's allocators.
    fn with_domain(test: impl Fn(&Program, *mut ffi::ibv_pd)) {
        let program = Program::default();
        Pd::with_allocators(take, give, &program, |domain| test(&program, domain));
        assert_eq!(program.lent.get(), 0);
    }

    fn lender(domain: *mut ffi::ibv_pd, resource: u32) -> Lender {
        // SAFETY: the domain is a parent domain of this provider.
        let pd = unsafe { Pd::from_ibv(domain) };
        pd.domain(Threads::MANY, resource).lender.unwrap()
    }

    // abi: R-959
    #[test]
    fn rings_lie_in_the_programs_memory() {
        with_domain(|program, domain| {
            let lender = lender(domain, ffi::VIRTIO_RDMA_DV_RES_QP);
            let layout = RingLayout::completions(16).unwrap();
            let ring = PlannedRing::new(layout, Some(&lender)).unwrap();
            assert!(ring.is_lent());
            let ring = ring.in_memory().unwrap();
            assert_eq!(ring.move_request(), ring.user_ring());
            drop(lender);
            let (size, alignment, resource) = program.asked.get().unwrap();
            assert!(size >= layout.size() as usize && size % PAGE == 0);
            assert_eq!((alignment, resource), (PAGE, 2));
            assert_eq!(program.lent.get(), 1);
            let mut bytes = vec![1; layout.size() as usize];
            ring.read(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 0));
            // SAFETY: the domain is this provider's, and still has a user.
            assert_eq!(unsafe { dealloc_pd(domain) }, libc::EBUSY);
        });
    }

    #[test]
    fn longer_rings_come_from_there_too() {
        with_domain(|program, domain| {
            // SAFETY: the domain is a parent domain of this provider.
            let pd = unsafe { Pd::from_ibv(domain) };
            let domain = pd.domain(Threads::MANY, ffi::VIRTIO_RDMA_DV_RES_SRQ);
            let layout = RingLayout::new(RingKind::Shared, 4, 6).unwrap();
            let memory =
                PlannedRing::new(layout, domain.lender.as_ref()).and_then(PlannedRing::in_memory);
            let ring = SharedRing::new(memory.unwrap(), &domain).unwrap();
            ring.prepare(8).unwrap();
            assert_eq!(program.lent.get(), 2);
            ring.moved(true);
            assert_eq!(program.lent.get(), 1);
        });
    }

    #[test]
    fn programs_that_give_nothing() {
        with_domain(|program, domain| {
            let lender = lender(domain, ffi::VIRTIO_RDMA_DV_RES_CQ);
            let layout = RingLayout::completions(16).unwrap();
            let result = |answer| {
                program.answer.set(Some(answer));
                let ring = PlannedRing::new(layout, Some(&lender));
                ring.map(|ring| ring.user_ring().addr)
                    .map_err(|error| error.raw_os_error())
            };
            assert_eq!(result(USE_DEFAULT), Ok(0), "memory of the kernel");
            assert_eq!(result(ptr::null_mut()), Err(Some(libc::ENOMEM)));
            assert_eq!(program.lent.get(), 0);
            // Unaligned memory is returned to the program.
            program.lent.set(1);
            let odd = ptr::without_provenance_mut(PAGE + 64);
            assert_eq!(result(odd), Err(Some(libc::EINVAL)));
        });
    }
}
