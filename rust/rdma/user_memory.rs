// SPDX-License-Identifier: GPL-2.0

//! Memory of the kernel that a process maps and a device accesses.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use super::{
    device::as_raw_device,
    user_pages::{
        Run,
        UserPages, //
    },
    while_bound::WhileBound,
    Device,
    Driver, //
};
use crate::bindings;
use kernel::{
    device,
    dma::{
        DataDirection,
        DmaAddress, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

/// Coherent, since process and device access the memory concurrently, without calls of the DMA API.
const ATTRIBUTES: c_ulong = bindings::DMA_ATTR_REQUIRE_COHERENT as c_ulong;

/// A contiguous run of pages at its DMA address.
struct Mapped {
    address: DmaAddress,
    order: u32,
}

/// Pages that are mapped for a device.
///
/// # Invariants
///
/// Each of `runs` is mapped for `device`, and consists of pages of `_pages`. It is dropped while
/// `device` is bound.
struct DmaMapping {
    device: ARef<device::Device>,
    runs: KVVec<Mapped>,
    _pages: Arc<UserPages>,
}

impl DmaMapping {
    fn new(
        device: &device::Device<device::Bound>,
        pages: &Arc<UserPages>,
        runs: &[Run],
    ) -> Result<Self> {
        let mut this = Self {
            device: device.into(),
            runs: KVVec::with_capacity(runs.len(), GFP_KERNEL)?,
            _pages: pages.clone(),
        };
        for &Run { first, order } in runs {
            let page = pages.get(first).ok_or(EINVAL)?;
            // SAFETY: The device is bound. The run has so many pages, which lie beside each other.
            let address = unsafe {
                bindings::dma_map_page_attrs(
                    as_raw_device(device),
                    page.as_ptr(),
                    0,
                    PAGE_SIZE << order,
                    DataDirection::Bidirectional.into(),
                    ATTRIBUTES,
                )
            };
            // SAFETY: The address is what mapping for this device returned.
            if unsafe { bindings::dma_mapping_error(as_raw_device(device), address) } != 0 {
                return Err(ENOMEM);
            }
            // INVARIANT: It was just mapped. There is room.
            this.runs.push(Mapped { address, order }, GFP_KERNEL)?;
        }
        Ok(this)
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        for run in &self.runs {
            // SAFETY: By the type invariants it is mapped, in this way, and the device is bound.
            unsafe {
                bindings::dma_unmap_page_attrs(
                    as_raw_device(&self.device),
                    run.address,
                    PAGE_SIZE << run.order,
                    DataDirection::Bidirectional.into(),
                    ATTRIBUTES,
                )
            };
        }
    }
}

/// Zeroed memory of the kernel that a process maps and a device reads and writes. It is charged to
/// the memory cgroup of the task that allocated it, and not locked memory of the process.
///
/// The kernel itself does not access it. Its pages are freed when this is dropped and no process
/// maps them any more. The driver drops this before it is unbound from its device, or never: the
/// memory stays allocated and mapped for the device if it is dropped later.
pub struct UserMemory {
    mapping: WhileBound<DmaMapping>,
    pages: Arc<UserPages>,
    page_shift: u8,
}

impl UserMemory {
    /// Allocates `size` bytes at least.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no bytes, those of [`UserPages::new`], and `ENOMEM` where the device can't have
    /// the memory.
    pub fn new<T: Driver>(device: &Device<T>, size: usize) -> Result<Self> {
        let (pages, runs) = UserPages::new(page_count(size)?)?;
        let pages = Arc::new(pages, GFP_KERNEL)?;
        // INVARIANT: The bound device, by whose binding it is dropped, is the DMA device or below
        // it, so that stays bound for as long.
        let mapping = DmaMapping::new(device.dma_device(), &pages, &runs)?;
        // All runs can be cut into pages of the size to which every address and length is aligned.
        let all = mapping.runs.iter().fold(0, |all, run| {
            all | run.address | (PAGE_SIZE as DmaAddress) << run.order
        });
        let page_shift = u8::try_from(all.trailing_zeros())?;
        Ok(Self {
            mapping: WhileBound::new(device, mapping),
            pages,
            page_shift,
        })
    }

    /// Bytes that are allocated for `size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no bytes, and for more than there can be.
    pub fn length_for(size: usize) -> Result<usize> {
        page_count(size)?.checked_mul(PAGE_SIZE).ok_or(EINVAL)
    }

    /// Pages of the device have 2ⁿ bytes.
    pub fn page_shift(&self) -> u8 {
        self.page_shift
    }

    /// Number of such pages.
    pub fn page_count(&self) -> usize {
        self.pages.count() >> (usize::from(self.page_shift) - PAGE_SHIFT)
    }

    /// The DMA addresses of these pages.
    pub fn pages(&self) -> impl Iterator<Item = DmaAddress> + '_ {
        let step = 1 << self.page_shift;
        self.mapping.runs.iter().flat_map(move |run| {
            let length = PAGE_SIZE << run.order;
            (0..length)
                .step_by(step)
                .map(|offset| run.address + offset as DmaAddress)
        })
    }

    /// The pages that processes map.
    pub(super) fn user_pages(&self) -> &Arc<UserPages> {
        &self.pages
    }
}

/// Pages of memory that the machine has for all.
pub fn total_pages() -> usize {
    // SAFETY: It reads a counter. LOSSY: A number of pages has fewer bits than an address.
    unsafe { bindings::totalram_pages() as usize }
}

/// Pages for `size` bytes: a few more where that lets long memory be cut into fewer pages for the
/// device, at most one in 64.
fn page_count(size: usize) -> Result<usize> {
    let count = size.div_ceil(PAGE_SIZE);
    let unit = 1 << (count / 64).checked_ilog2().unwrap_or(0);
    match count {
        0 => Err(EINVAL),
        count => count.checked_next_multiple_of(unit).ok_or(EINVAL),
    }
}
