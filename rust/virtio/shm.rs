// SPDX-License-Identifier: GPL-2.0

//! Shared memory regions: memory of the device that the driver, or a process, maps.
//!
//! C header: [`include/linux/virtio_config.h`](srctree/include/linux/virtio_config.h)

use super::Device;
use crate::bindings;
use kernel::{
    device::Bound,
    io::{
        resource::{
            Flags,
            Region,
            Resource, //
        },
        Mmio,
        MmioRaw,
        PhysAddr, //
    },
    page::PAGE_SIZE,
    prelude::*,
    str::CString, //
};

/// A shared memory region that this driver alone uses.
pub struct SharedMemory {
    region: Region,
}

impl SharedMemory {
    /// Claims region `id`.
    ///
    /// # Errors
    ///
    /// [`ENOENT`] if the device has none of that number, [`EINVAL`] if it is not of whole pages,
    /// [`EBUSY`] if something else uses the addresses.
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
        Ok(Self { region })
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        usize::try_from(self.region.size()).unwrap_or(usize::MAX) / PAGE_SIZE
    }

    /// The physical address of page `index`.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if there is no such page.
    pub fn phys(&self, index: usize) -> Result<PhysAddr> {
        if index >= self.pages() {
            return Err(EINVAL);
        }
        Ok(self.region.start() + (index * PAGE_SIZE) as PhysAddr)
    }

    /// Maps page `index` for the kernel.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if there is no such page, [`ENOMEM`].
    pub fn map_page(&self, index: usize) -> Result<MappedPage> {
        let phys = self.phys(index)?;
        // SAFETY: The page is within a region that was claimed.
        let addr = unsafe { bindings::ioremap(phys, PAGE_SIZE as c_ulong) };
        if addr.is_null() {
            return Err(ENOMEM);
        }
        // INVARIANT: It was just mapped.
        Ok(MappedPage {
            io: MmioRaw::new_region(addr as usize, PAGE_SIZE)?,
        })
    }
}

/// What a page of I/O memory looks like.
pub type PageRegion = kernel::io::Region<PAGE_SIZE>;

/// A page of shared memory that is mapped for the kernel.
///
/// # Invariants
///
/// `io` is a page mapped by `ioremap()`, until it is dropped.
pub struct MappedPage {
    io: MmioRaw<PageRegion>,
}

impl MappedPage {
    /// Access to it.
    pub fn io(&self) -> Mmio<'_, PageRegion> {
        // SAFETY: By the type invariant.
        unsafe { Mmio::from_raw(self.io) }
    }
}

impl Drop for MappedPage {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::iounmap(self.io.addr() as *mut c_void) };
    }
}
