// SPDX-License-Identifier: GPL-2.0

//! Device memory that a process maps.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::ucontext::UserContexts;
use crate::bindings;
use core::{
    mem::offset_of,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_result,
        to_result, //
    },
    io::PhysAddr,
    mm::virt::VmaNew,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    types::Opaque, //
};

/// One page of device registers that a process may map, shared and without caching.
pub trait Mapping: Send + Sync {
    /// Physical address of the page.
    fn phys_addr(&self) -> PhysAddr;
}

/// Offset for the `mmap` system call.
#[derive(Clone, Copy)]
pub struct MmapOffset(pub u64);

/// What the core keeps by offset, and the driver's mapping.
#[repr(C)]
struct Entry<M> {
    c: Opaque<bindings::rdma_user_mmap_entry>,
    mapping: M,
}

impl<M: Mapping> Entry<M> {
    /// The entry whose C part is `raw`.
    fn from_raw(raw: *mut bindings::rdma_user_mmap_entry) -> *mut Self {
        const { assert!(offset_of!(Self, c) == 0) };
        raw.cast()
    }
}

/// The entries of a context that processes can still map.
///
/// # Invariants
///
/// Each is an [`Entry`] that was inserted and not removed.
pub struct Entries<T: UserContexts>(KVec<NonNull<Entry<T::Mapping>>>);

impl<T: UserContexts> Entries<T> {
    pub(super) fn new() -> Self {
        Self(KVec::new())
    }

    /// Inserts a mapping at an offset that the core chooses.
    ///
    /// # Safety
    ///
    /// `context` is valid, and is not freed before `self` is dropped.
    pub(super) unsafe fn insert(
        &mut self,
        context: NonNull<bindings::ib_ucontext>,
        mapping: T::Mapping,
    ) -> Result<MmapOffset> {
        self.0.reserve(1, GFP_KERNEL)?;
        let entry = KBox::new(
            Entry {
                c: Opaque::zeroed(),
                mapping,
            },
            GFP_KERNEL,
        )?;
        let entry = KBox::into_raw(entry);
        // SAFETY: The entry was just allocated. It is freed by `free` only, when its last reference is gone.
        let inserted = to_result(unsafe {
            bindings::rdma_user_mmap_entry_insert_range(
                context.as_ptr(),
                (*entry).c.get(),
                PAGE_SIZE,
                0,
                u32::MAX,
            )
        });
        if let Err(error) = inserted {
            // SAFETY: It was not inserted, so it is still ours.
            drop(unsafe { KBox::from_raw(entry) });
            return Err(error);
        }
        // SAFETY: A box is not null. Only the core's reference count and this list refer to it.
        let listed = unsafe { NonNull::new_unchecked(entry) };
        // INVARIANT: It was just inserted. There is room.
        self.0.push(listed, GFP_KERNEL)?;
        // SAFETY: `self` holds a reference. The core has set the offset and will not change it.
        let page = unsafe { (*(*entry).c.get()).start_pgoff };
        Ok(MmapOffset(u64::try_from(page)? << PAGE_SHIFT))
    }
}

impl<T: UserContexts> Drop for Entries<T> {
    fn drop(&mut self) {
        for entry in &self.0 {
            // SAFETY: By the type invariants. It is freed now or when the last process has unmapped it.
            unsafe { bindings::rdma_user_mmap_entry_remove((*entry.as_ptr()).c.get()) };
        }
    }
}

// SAFETY: Entries may be removed by any thread, and mappings dropped.
unsafe impl<T: UserContexts> Send for Entries<T> {}

// SAFETY: A shared reference gives access to nothing.
unsafe impl<T: UserContexts> Sync for Entries<T> {}

/// # Safety
///
/// Called by the core as `mmap` of a device of `T`: `context` and `vma` are valid, and the latter is being set up.
pub(super) unsafe extern "C" fn mmap<T: UserContexts>(
    context: *mut bindings::ib_ucontext,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    from_result(|| {
        // Registers hold no code, now or after a later mprotect().
        // SAFETY: By the function's safety requirements, the area is being set up.
        unsafe { VmaNew::from_raw(vma) }.try_clear_mayexec()?;
        // SAFETY: By the function's safety requirements. The entry is one that `Entries::insert` made.
        let raw = unsafe { bindings::rdma_user_mmap_entry_get(context, vma) };
        if raw.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: The reference that was just taken keeps it.
        let address = unsafe { (*Entry::<T::Mapping>::from_raw(raw)).mapping.phys_addr() };
        let page = c_ulong::try_from(address >> PAGE_SHIFT);
        let mapped = page.map_err(Error::from).and_then(|page| {
            // SAFETY: The context, the area and the entry are valid; the core checks that the area has one page.
            to_result(unsafe {
                bindings::rdma_user_mmap_io_noncached(context, vma, page, PAGE_SIZE, raw)
            })
        });
        // SAFETY: The reference was taken above; the mapping has one of its own.
        unsafe { bindings::rdma_user_mmap_entry_put(raw) };
        mapped.map(|()| 0)
    })
}

/// # Safety
///
/// Called by the core as `mmap_free` of a device of `T`, when the last reference of `raw` is gone.
pub(super) unsafe extern "C" fn free<T: UserContexts>(raw: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: `Entries::insert` made it from a box, and nobody refers to it any more.
    drop(unsafe { KBox::from_raw(Entry::<T::Mapping>::from_raw(raw)) });
}
