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
/// Each of `runs` is mapped for `device`, and consists of pages of `_pages`. The mapping is dropped
/// while `device` is bound.
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
            // SAFETY: The device is bound. The run has 2^`order` contiguous pages.
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
            // SAFETY: The address is the result of mapping for this device.
            if unsafe { bindings::dma_mapping_error(as_raw_device(device), address) } != 0 {
                return Err(ENOMEM);
            }
            // INVARIANT: The run was just mapped. The vector has room for it.
            this.runs.push(Mapped { address, order }, GFP_KERNEL)?;
        }
        Ok(this)
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        for run in &self.runs {
            // SAFETY: By the type invariants the run is mapped, with these arguments, and the
            // device is bound.
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
/// the memory cgroup of the task that allocated it, and does not count as locked memory of the
/// process.
///
/// The kernel itself does not access the memory. The pages are freed when this is dropped and no
/// process maps them any more. If this is dropped after the driver was unbound from its device, the
/// memory stays allocated and mapped for the device.
pub struct UserMemory {
    mapping: WhileBound<DmaMapping>,
    pages: Arc<UserPages>,
    page_shift: u8,
}

impl UserMemory {
    /// Allocates at least `size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `size` is 0, `ENOMEM` if the device can't access the memory, and the errors of
    /// `UserPages::new`.
    pub fn new<T: Driver>(device: &Device<T>, size: usize) -> Result<Self> {
        let (pages, runs) = UserPages::new(page_count(size)?)?;
        let pages = Arc::new(pages, GFP_KERNEL)?;
        // INVARIANT: The DMA device is the bound device or an ancestor of it. The mapping is
        // dropped while the bound device is bound, so the DMA device is bound then too.
        let mapping = DmaMapping::new(device.dma_device(), &pages, &runs)?;
        // The page size for the device is the largest one to which all addresses and lengths of
        // runs are aligned.
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

    /// Number of bytes that [`new`](Self::new) allocates for `size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `size` is 0 or too large.
    pub fn length_for(size: usize) -> Result<usize> {
        page_count(size)?.checked_mul(PAGE_SIZE).ok_or(EINVAL)
    }

    /// Binary logarithm of the device's page size.
    pub fn page_shift(&self) -> u8 {
        self.page_shift
    }

    /// Number of pages of the device's page size.
    pub fn page_count(&self) -> usize {
        self.pages.count() >> (usize::from(self.page_shift) - PAGE_SHIFT)
    }

    /// The DMA addresses of the pages of the device's page size.
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

/// Number of pages of the machine's memory.
pub fn total_pages() -> usize {
    // SAFETY: The function only reads a counter. LOSSY: A number of pages has fewer bits than an
    // address.
    unsafe { bindings::totalram_pages() as usize }
}

/// Number of pages for `size` bytes, rounded up so that the device can use larger pages. At most
/// one page in 64 is added.
fn page_count(size: usize) -> Result<usize> {
    let count = size.div_ceil(PAGE_SIZE);
    let unit = 1 << (count / 64).checked_ilog2().unwrap_or(0);
    match count {
        0 => Err(EINVAL),
        count => count.checked_next_multiple_of(unit).ok_or(EINVAL),
    }
}
