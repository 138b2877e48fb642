// SPDX-License-Identifier: GPL-2.0

//! Mappings of a context: device registers and memory that a process maps at offsets.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    ucontext::UserContexts,
    user_memory::UserMemory,
    user_pages::UserPages,
    Device, //
};
use crate::bindings;
use core::{
    mem::offset_of,
    ops::Deref,
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
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

/// One page of device registers that a process may map, shared and without caching.
///
/// An implementation can return only pages of a region that is claimed for the device to which the
/// driver is bound. So a driver can't give other memory to a process.
///
/// # Examples
///
/// ```
/// use crate::{rdma::mmap::Registers, virtio::SharedMemory};
/// use kernel::{devres::Devres, io::resource::Region, sync::Arc};
///
/// /// A page of doorbells.
/// struct DoorbellPage {
///     memory: Arc<SharedMemory>,
///     number: usize,
/// }
///
/// impl Registers for DoorbellPage {
///     fn region(&self) -> &Devres<Region> {
///         self.memory.region()
///     }
///
///     fn page(&self) -> usize {
///         self.number
///     }
/// }
/// ```
pub trait Registers: Send + Sync {
    /// The region, claimed for the device to which the driver is bound.
    fn region(&self) -> &Devres<Region>;

    /// Number of the page in the region.
    fn page(&self) -> usize;
}

/// Physical address of the page of `registers`.
///
/// # Errors
///
/// `EINVAL` if the region does not belong to `parent`, holds no such page, or is not page-aligned
/// memory.
pub(super) fn phys_addr(
    registers: &impl Registers,
    parent: &device::Device<Bound>,
) -> Result<PhysAddr> {
    let region = registers.region().access(parent)?;
    let offset = registers.page().checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
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

/// The memory that is mapped at an offset.
pub(super) enum Backing<R> {
    /// A page of registers. Mappings end with the context. They are counted, and `R` is dropped
    /// after the last mapping.
    Registers(R),
    /// Memory. Each mapping holds references to the pages, and ends when its process unmaps it.
    Memory(Arc<UserPages>),
}

impl<R> Backing<R> {
    /// Length in bytes.
    fn length(&self) -> usize {
        match self {
            Self::Registers(_) => PAGE_SIZE,
            Self::Memory(pages) => pages.count() * PAGE_SIZE,
        }
    }
}

/// An entry in the core's table of mmap offsets.
#[repr(C)]
struct Entry<R> {
    c: Opaque<bindings::rdma_user_mmap_entry>,
    backing: Backing<R>,
    /// Index in the list of the context. Accessed only under the lock of the list.
    index: usize,
}

impl<R> Entry<R> {
    /// The entry whose C part is `raw`.
    fn from_raw(raw: *mut bindings::rdma_user_mmap_entry) -> *mut Self {
        const { assert!(offset_of!(Self, c) == 0) };
        raw.cast()
    }
}

/// # Invariants
///
/// While `context` is `Some`, the context is valid, and `entries` are the inserted entries, each
/// with its index in this list. Otherwise `entries` is empty.
struct List<R> {
    context: Option<NonNull<bindings::ib_ucontext>>,
    entries: KVec<NonNull<Entry<R>>>,
}

impl<R: Registers> List<R> {
    fn insert(&mut self, backing: Backing<R>) -> Result<NonNull<Entry<R>>> {
        let context = self.context.ok_or(ENODEV)?;
        self.entries.reserve(1, GFP_KERNEL)?;
        let length = backing.length();
        let entry = Entry {
            c: Opaque::zeroed(),
            backing,
            index: self.entries.len(),
        };
        let entry = KBox::into_raw(KBox::new(entry, GFP_KERNEL)?);
        // SAFETY: The context is valid by the type invariants. The entry was allocated above, and
        // only `free` frees it, after its last reference was dropped.
        let inserted = to_result(unsafe {
            bindings::rdma_user_mmap_entry_insert_range(
                context.as_ptr(),
                (*entry).c.get(),
                length,
                0,
                u32::MAX,
            )
        });
        if let Err(error) = inserted {
            // SAFETY: The entry was not inserted, so it is still ours.
            drop(unsafe { KBox::from_raw(entry) });
            return Err(error);
        }
        // SAFETY: A box is not null. Only the core and this list refer to the entry.
        let entry = unsafe { NonNull::new_unchecked(entry) };
        // INVARIANT: The entry was inserted above, with the next index. The list has room for it.
        self.entries.push(entry, GFP_KERNEL)?;
        Ok(entry)
    }

    /// Removes an entry, unless the list is closed.
    ///
    /// # Safety
    ///
    /// `entry` was inserted into this list and not removed.
    unsafe fn remove(&mut self, entry: NonNull<Entry<R>>) {
        let (Some(_), Some(last)) = (self.context, self.entries.pop()) else {
            return;
        };
        // SAFETY: By the safety requirements `entry` is in the list, so by the type invariants the
        // list has a reference to it.
        let index = unsafe { (*entry.as_ptr()).index };
        if let Some(place) = self.entries.get_mut(index) {
            // INVARIANT: The last entry moves to the index of the removed one.
            *place = last;
            // SAFETY: By the type invariants the last entry is valid; the lock of the list is held.
            unsafe { (*last.as_ptr()).index = index };
        }
        // SAFETY: As above, and the entry is not in the list any more.
        unsafe { bindings::rdma_user_mmap_entry_remove((*entry.as_ptr()).c.get()) };
    }

    /// Removes all entries. From then on entries can't be inserted.
    fn close(&mut self) {
        // INVARIANT: There are no entries afterwards.
        self.context = None;
        while let Some(entry) = self.entries.pop() {
            // SAFETY: By the type invariants. The core frees the entry now, or when the last
            // process has unmapped it.
            unsafe { bindings::rdma_user_mmap_entry_remove((*entry.as_ptr()).c.get()) };
        }
    }
}

// SAFETY: Any thread may remove entries and drop their contents, which are `Send`.
unsafe impl<R: Send + Sync> Send for List<R> {}

/// The mappings of a context. After the end of the context, none can be added.
pub struct Mappings<T: UserContexts>(Arc<Mutex<List<T::Registers>>>);

impl<T: UserContexts> Mappings<T> {
    /// Lets processes of the context map `memory` until the result is dropped, at an offset that
    /// the core chooses.
    ///
    /// # Errors
    ///
    /// `ENODEV` after the end of the context, `ENOMEM`.
    pub fn offer(&self, memory: &UserMemory) -> Result<Offer<T>> {
        let pages = memory.user_pages();
        let mut list = self.0.lock();
        let entry = list.insert(Backing::Memory(pages.clone()))?;
        // SAFETY: The entry was just inserted, and the list is locked.
        let offset = unsafe { offset(entry) };
        drop(list);
        // INVARIANT: The entry was just inserted.
        Ok(Offer {
            mappings: self.clone(),
            entry,
            offset,
            length: (pages.count() * PAGE_SIZE) as u64,
        })
    }
}

impl<T: UserContexts> Clone for Mappings<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The offset at which processes map an entry.
///
/// # Safety
///
/// The entry is inserted.
unsafe fn offset<R>(entry: NonNull<Entry<R>>) -> MmapOffset {
    // SAFETY: The entry is inserted. The core has set the offset and will not change it.
    let page = unsafe { (*(*entry.as_ptr()).c.get()).start_pgoff };
    // CAST: A `u64` has at least as many bits.
    MmapOffset((page as u64) << PAGE_SHIFT)
}

/// Memory that processes can map. After this is dropped, processes can't create new mappings of the
/// memory; existing mappings stay.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     mmap::{Mappings, Offer},
///     ucontext::UserContexts,
///     user_memory::UserMemory,
///     Device,
/// };
///
/// /// Lets a process map a page, until the memory is dropped or the context is gone.
/// fn share<T: UserContexts>(
///     device: &Device<T>,
///     mappings: &Mappings<T>,
/// ) -> Result<(Offer<T>, UserMemory)> {
///     let memory = UserMemory::new(device, 4096)?;
///     Ok((mappings.offer(&memory)?, memory))
/// }
/// ```
///
/// # Invariants
///
/// `entry` was inserted into the list of `mappings`. Only the drop of this value and the end of the
/// list remove the entry.
pub struct Offer<T: UserContexts> {
    mappings: Mappings<T>,
    entry: NonNull<Entry<T::Registers>>,
    offset: MmapOffset,
    length: u64,
}

impl<T: UserContexts> Offer<T> {
    /// The offset at which processes map the memory.
    pub fn offset(&self) -> MmapOffset {
        self.offset
    }

    /// Length in bytes. A mapping has exactly this length.
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl<T: UserContexts> Drop for Offer<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { self.mappings.0.lock().remove(self.entry) };
    }
}

// SAFETY: The entry is accessed only under the lock of the list.
unsafe impl<T: UserContexts> Send for Offer<T> {}

// SAFETY: A shared reference gives access only to numbers.
unsafe impl<T: UserContexts> Sync for Offer<T> {}

/// The mappings of a context. Dropping this removes all mappings. Afterwards none can be added.
pub struct OwnedMappings<T: UserContexts>(Mappings<T>);

impl<T: UserContexts> OwnedMappings<T> {
    /// An empty list of mappings.
    ///
    /// # Safety
    ///
    /// `context` is valid, and is not freed before the result is dropped.
    pub(super) unsafe fn new(context: NonNull<bindings::ib_ucontext>) -> Result<Self> {
        // INVARIANT: There are no entries. By the safety requirements, the context is valid until
        // the result is dropped. The drop closes the list.
        let list = List {
            context: Some(context),
            entries: KVec::new(),
        };
        let list = Arc::pin_init(new_mutex!(list, "rdma::mmap"), GFP_KERNEL)?;
        Ok(Self(Mappings(list)))
    }

    /// Lets processes map `registers` as long as the context exists.
    pub(super) fn add(&self, registers: T::Registers) -> Result<MmapOffset> {
        let mut list = self.0 .0.lock();
        let entry = list.insert(Backing::Registers(registers))?;
        // SAFETY: The entry was just inserted, and the list is locked.
        Ok(unsafe { offset(entry) })
    }
}

impl<T: UserContexts> Deref for OwnedMappings<T> {
    type Target = Mappings<T>;

    fn deref(&self) -> &Mappings<T> {
        &self.0
    }
}

impl<T: UserContexts> Drop for OwnedMappings<T> {
    fn drop(&mut self) {
        self.0 .0.lock().close();
    }
}

/// # Safety
///
/// Called by the core as `mmap` of a device of `T`: `context` and `vma` are valid, and `vma` is
/// being set up.
pub(super) unsafe extern "C" fn mmap<T: UserContexts>(
    context: *mut bindings::ib_ucontext,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    from_result(|| {
        // SAFETY: `context` and `vma` are valid. The core finds only entries that `List::insert`
        // made, with the area's length, and only if the area is shared.
        let raw = unsafe { bindings::rdma_user_mmap_entry_get(context, vma) };
        if raw.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: The reference that was just taken keeps the entry valid.
        let backing = unsafe { &(*Entry::<T::Registers>::from_raw(raw)).backing };
        // SAFETY: `vma` is valid, and is being set up.
        let area = unsafe { VmaNew::from_raw(vma) };
        let mapped = match backing {
            Backing::Memory(pages) => pages.map(area),
            Backing::Registers(registers) => {
                let page_frame = || {
                    // Registers contain no code. Not even a later mprotect() may make them
                    // executable.
                    area.try_clear_mayexec()?;
                    // SAFETY: The core has set the context's device, which stays registered during
                    // the call.
                    let device = unsafe { Device::<T>::from_raw((*context).device) };
                    let address = phys_addr(registers, device.bound_device())?;
                    Ok(c_ulong::try_from(address >> PAGE_SHIFT)?)
                };
                page_frame().and_then(|frame| {
                    // SAFETY: The context, the area and the entry are valid; the core checks that
                    // the area has one page.
                    to_result(unsafe {
                        bindings::rdma_user_mmap_io_noncached(context, vma, frame, PAGE_SIZE, raw)
                    })
                })
            }
        };
        // SAFETY: The reference was taken above; a mapping of registers holds another reference.
        unsafe { bindings::rdma_user_mmap_entry_put(raw) };
        mapped.map(|()| 0)
    })
}

/// # Safety
///
/// Called by the core as `mmap_free` of a device of `T`, when the last reference of `raw` is gone.
pub(super) unsafe extern "C" fn free<T: UserContexts>(raw: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: `List::insert` made the entry from a box, and no reference to it is left.
    drop(unsafe { KBox::from_raw(Entry::<T::Registers>::from_raw(raw)) });
}
