// SPDX-License-Identifier: GPL-2.0

//! Device memory that a process maps.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    ucontext::UserContexts,
    Device, //
};
use crate::bindings;
use core::{
    mem::offset_of,
    ptr::NonNull, //
};
use kernel::{
    device::{
        self,
        Bound, //
    },
    devres::Devres,
    error::{
        from_result,
        to_result, //
    },
    io::{
        resource::{
            Flags,
            Region, //
        },
        PhysAddr, //
    },
    mm::virt::VmaNew,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    types::Opaque, //
};

/// One page of device registers that a process may map, shared and without caching.
///
/// A driver can name only pages of a region that is claimed for the device to which it is bound. So no
/// implementation gives a process other memory.
pub trait Mapping: Send + Sync {
    /// The region, which is claimed for the device that the driver is bound to.
    fn region(&self) -> &Devres<Region>;

    /// Number of the page in the region.
    fn page(&self) -> usize;
}

/// Physical address of the page of `mapping`.
///
/// # Errors
///
/// `EINVAL` if the region is not one of `parent`, holds no such page, or is not page-aligned
/// memory.
fn phys_addr(mapping: &impl Mapping, parent: &device::Device<Bound>) -> Result<PhysAddr> {
    let region = mapping.region().access(parent)?;
    let offset = mapping.page().checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
    let offset = PhysAddr::try_from(offset)?;
    let is_valid = region.flags().contains(Flags::IORESOURCE_MEM)
        && region.start() % PAGE_SIZE as PhysAddr == 0
        && offset < region.size()
        && region.size() - offset >= PAGE_SIZE as PhysAddr;
    is_valid.then(|| region.start() + offset).ok_or(EINVAL)
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
        let mapping = unsafe { &(*Entry::<T::Mapping>::from_raw(raw)).mapping };
        // SAFETY: The core has set the context's device, which stays registered during the call.
        let device = unsafe { Device::<T>::from_raw((*context).device) };
        let page = phys_addr(mapping, device.bound_device())
            .and_then(|address| Ok(c_ulong::try_from(address >> PAGE_SHIFT)?));
        let mapped = page.and_then(|page| {
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
