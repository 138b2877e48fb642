// SPDX-License-Identifier: GPL-2.0

//! Doorbell pages: pages in a shared memory region of the device. A store to such a page tells the
//! device of work in a queue.
//!
//! Page 0 is the kernel's. Each user context gets a page of its own. The device ignores doorbells
//! of queues that were not created with the page, so a process rings only its own queues. The owner
//! of a [`DoorbellPage`] drops it when no process maps the page any more. Afterwards another
//! context may get the page.
//!
//! The device states the distance of doorbell pages, which is at least one page of this kernel. A
//! process maps the kernel's page that begins with its doorbell page.

use crate::{
    abi::{
        config::DOORBELL_SHM_ID,
        ring::KERNEL_DOORBELL_PAGE, //
    },
    decode::config::OwnRingsLimits,
    rdma::mmap::Registers,
    virtio::{
        shm::MappedPage,
        Device,
        SharedMemory, //
    },
};
use kernel::{
    device::{
        self,
        Bound, //
    },
    devres::Devres,
    id_pool::IdPool,
    io::resource::Region,
    page::PAGE_SHIFT,
    prelude::*,
    str::CString,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
};

/// The doorbell pages of a device.
#[pin_data]
pub(crate) struct Doorbells {
    kernel: MappedPage,
    memory: SharedMemory,
    pages: u32,
    /// Distance of doorbell pages, in pages of the kernel.
    stride: usize,
    #[pin]
    used: Mutex<IdPool>,
}

impl Doorbells {
    /// Claims the device's region of doorbell pages.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the region is shorter than the configuration says, and the errors of
    /// [`SharedMemory::claim`].
    pub(crate) fn new(dev: &Device<Bound>, limits: &OwnRingsLimits) -> Result<Arc<Self>> {
        let pages = limits.doorbell_pages;
        let stride = usize::from(limits.doorbell_shift)
            .checked_sub(PAGE_SHIFT)
            .ok_or(EINVAL)?;
        let stride = 1 << stride;
        let name = CString::try_from(c"virtio_rdma doorbells")?;
        let memory = SharedMemory::claim(dev, DOORBELL_SHM_ID, name).inspect_err(|error| {
            dev_err!(
                dev.as_ref(),
                "can't use shared memory region {} (doorbells), so the device is not used: \
                     {:?}\n",
                DOORBELL_SHM_ID,
                error
            )
        })?;
        let needed = usize::try_from(pages)?.saturating_mul(stride);
        if memory.pages() < needed {
            dev_err!(
                dev.as_ref(),
                "the doorbell region has {} pages and needs {}: the device is not used\n",
                memory.pages(),
                needed
            );
            return Err(EINVAL);
        }
        let kernel = usize::try_from(KERNEL_DOORBELL_PAGE)? * stride;
        let kernel = memory.map_page(dev.as_ref(), kernel)?;
        let mut used = IdPool::with_capacity(usize::try_from(pages)?, GFP_KERNEL)?;
        used.find_unused_id(0).ok_or(EINVAL)?.acquire();
        Arc::pin_init(
            pin_init!(Self {
                kernel,
                memory,
                pages,
                stride,
                used <- new_mutex!(used, "virtio_rdma::doorbell::used"),
            }),
            GFP_KERNEL,
        )
    }

    /// Rings the doorbell of a queue of the kernel, which `value` names. The device sees all
    /// earlier writes to memory once it sees the doorbell. `bus` is the virtio device.
    #[inline]
    pub(crate) fn ring(&self, bus: &device::Device<Bound>, value: u32) {
        self.kernel.write32::<0>(bus, value);
    }

    /// Takes a page for a user context.
    ///
    /// # Errors
    ///
    /// [`ENOSPC`] if all pages are in use.
    pub(crate) fn alloc(self: &Arc<Self>) -> Result<DoorbellPage> {
        let mut used = self.used.lock();
        let id = used
            .find_unused_id(0)
            .filter(|id| id.as_u32() < self.pages)
            .ok_or(ENOSPC)?;
        let index = id.as_u32();
        id.acquire();
        Ok(DoorbellPage {
            doorbells: self.clone(),
            index,
        })
    }
}

/// A doorbell page of a user context, given back when it is dropped.
pub(crate) struct DoorbellPage {
    doorbells: Arc<Doorbells>,
    index: u32,
}

impl DoorbellPage {
    /// The page's number, which the commands that create queues carry.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

impl Registers for DoorbellPage {
    fn region(&self) -> &Devres<Region> {
        self.doorbells.memory.region()
    }

    fn page(&self) -> usize {
        // CAST: The offset is within the region, whose length `new` checked.
        self.index as usize * self.doorbells.stride
    }
}

impl Drop for DoorbellPage {
    fn drop(&mut self) {
        if let Ok(index) = usize::try_from(self.index) {
            self.doorbells.used.lock().release_id(index);
        }
    }
}
