// SPDX-License-Identifier: GPL-2.0

//! Shared memory regions: memory of the device that the driver, or a process, maps.
//!
//! C header: [`include/linux/virtio_config.h`](srctree/include/linux/virtio_config.h)

use super::Device;
use crate::bindings;
use kernel::{
    device::{
        self,
        Bound, //
    },
    devres::Devres,
    io::{
        resource::{
            Flags,
            Region,
            Resource, //
        },
        Io,
        Mmio,
        MmioRaw,
        PhysAddr, //
    },
    page::PAGE_SIZE,
    prelude::*,
    str::CString, //
};

/// A shared memory region, claimed for this driver until the device is unbound.
///
/// # Examples
///
/// ```
/// use crate::virtio::{self, shm::MappedPage, SharedMemory};
/// use kernel::{device::Bound, str::CString};
///
/// /// Maps the first page of region 1 and writes to its first word.
/// fn ring(dev: &virtio::Device<Bound>) -> Result<MappedPage> {
///     let memory = SharedMemory::claim(dev, 1, CString::try_from(c"doorbells")?)?;
///     let page = memory.map_page(dev.as_ref(), 0)?;
///     page.write32::<0>(dev.as_ref(), 1);
///     Ok(page)
/// }
/// ```
pub struct SharedMemory {
    region: Devres<Region>,
    start: PhysAddr,
    pages: usize,
}

impl SharedMemory {
    /// Claims region `id`.
    ///
    /// # Errors
    ///
    /// [`ENOENT`] if the device has no region `id`, [`EINVAL`] if the region does not consist of
    /// whole pages, [`EBUSY`] if its addresses are claimed already.
    pub fn claim(dev: &Device<Bound>, id: u8, name: CString) -> Result<Self> {
        let mut raw = bindings::virtio_shm_region::default();
        // SAFETY: The device is valid, and so is the structure to be filled.
        if !unsafe { bindings::virtio_get_shm_region(dev.as_raw(), &mut raw, id) } {
            return Err(ENOENT);
        }
        let page = PAGE_SIZE as u64;
        if raw.len == 0 || raw.addr % page != 0 || raw.len % page != 0 {
            return Err(EINVAL);
        }
        // CAST: `Resource` is a transparent wrapper of `struct resource`.
        let root = (&raw mut bindings::iomem_resource).cast::<Resource>();
        // SAFETY: The root of all memory resources is static.
        let root = unsafe { &*root };
        let region = root
            .request_region(raw.addr, raw.len, name, Flags::IORESOURCE_MEM)
            .ok_or(EBUSY)?;
        Ok(Self {
            region: Devres::new(dev.as_ref(), region)?,
            start: raw.addr,
            pages: usize::try_from(raw.len / page)?,
        })
    }

    /// The region, claimed until the device is unbound.
    pub fn region(&self) -> &Devres<Region> {
        &self.region
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Maps page `index` for the kernel, until `dev` is unbound.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if there is no such page or the region does not belong to `dev`, [`ENOMEM`].
    pub fn map_page(&self, dev: &device::Device<Bound>, index: usize) -> Result<MappedPage> {
        self.region.access(dev)?;
        if index >= self.pages {
            return Err(EINVAL);
        }
        let phys = self.start + (index * PAGE_SIZE) as PhysAddr;
        // SAFETY: The page is within a region that is claimed, as was checked above.
        let addr = unsafe { bindings::ioremap(phys, PAGE_SIZE as c_ulong) };
        if addr.is_null() {
            return Err(ENOMEM);
        }
        // INVARIANT: The page was just mapped.
        let mapping = Mapping(MmioRaw::new_region(addr as usize, PAGE_SIZE)?);
        Ok(MappedPage(Devres::new(dev, mapping)?))
    }
}

/// The layout of a page of I/O memory.
type PageRegion = kernel::io::Region<PAGE_SIZE>;

/// # Invariants
///
/// The page was mapped by `ioremap()`, and stays mapped until this is dropped.
struct Mapping(MmioRaw<PageRegion>);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::iounmap(self.0.addr() as *mut c_void) };
    }
}

/// A page of shared memory that is mapped for the kernel, until the device is unbound.
pub struct MappedPage(Devres<Mapping>);

impl MappedPage {
    /// Writes a 32-bit word at `OFFSET`, ordered after all earlier writes to memory. `dev` is the
    /// device for which the page was mapped; while it is bound, the addresses belong to it.
    #[inline]
    pub fn write32<const OFFSET: usize>(&self, dev: &device::Device<Bound>, value: u32) {
        if let Ok(mapping) = self.0.access(dev) {
            // SAFETY: By the type invariant of `Mapping`.
            unsafe { Mmio::from_raw(mapping.0) }.write32(value, OFFSET);
        }
    }
}
