// SPDX-License-Identifier: GPL-2.0

//! Doorbell pages: shared memory of the device in which a store rings a queue.
//!
//! Page 0 is the kernel's. A page of its own goes to each user context, so that a process rings
//! only what is its own: the device drops what does not belong to a page. A page is given out again
//! only when it was given back, for which its owner has to know that no process maps it any more.

use crate::{
    abi::{
        config::DOORBELL_SHM_ID,
        ring::{
            DOORBELL_PAGE_SIZE,
            KERNEL_DOORBELL_PAGE, //
        },
    },
    rdma::mmap::Mapping,
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
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
};

// A page that a process maps holds one doorbell page.
const _: () = assert!(DOORBELL_PAGE_SIZE as usize == PAGE_SIZE);

/// The doorbell pages of a device.
#[pin_data]
pub(crate) struct Doorbells {
    kernel: MappedPage,
    memory: SharedMemory,
    pages: u32,
    #[pin]
    used: Mutex<IdPool>,
}

impl Doorbells {
    /// Claims the region, which has `pages` pages.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if it is shorter than the configuration says, and those of
    /// [`SharedMemory::claim`].
    pub(crate) fn new(dev: &Device<Bound>, pages: u32) -> Result<Arc<Self>> {
        let name = CString::try_from(c"virtio_rdma doorbells")?;
        let memory = SharedMemory::claim(dev, DOORBELL_SHM_ID, name)
            .inspect_err(|error| dev_err!(dev.as_ref(), "no doorbell region: {:?}\n", error))?;
        if memory.pages() < usize::try_from(pages)? {
            dev_err!(dev.as_ref(), "the doorbell region is too short\n");
            return Err(EINVAL);
        }
        let kernel = memory.map_page(dev.as_ref(), usize::try_from(KERNEL_DOORBELL_PAGE)?)?;
        let mut used = IdPool::with_capacity(usize::try_from(pages)?, GFP_KERNEL)?;
        used.find_unused_id(0).ok_or(EINVAL)?.acquire();
        Arc::pin_init(
            pin_init!(Self {
                kernel,
                memory,
                pages,
                used <- new_mutex!(used, "virtio_rdma::doorbell::used"),
            }),
            GFP_KERNEL,
        )
    }

    /// Rings a queue of the kernel. What was written to memory before is visible to the device when
    /// it hears of it. `bus` is the virtio device.
    #[inline]
    pub(crate) fn ring(&self, bus: &device::Device<Bound>, value: u32) {
        self.kernel.write32::<0>(bus, value);
    }

    /// Takes a page for a user context.
    ///
    /// # Errors
    ///
    /// [`ENOSPC`] if they are all in use.
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
    /// Its number, by which queues are created with it.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

impl Mapping for DoorbellPage {
    fn region(&self) -> &Devres<Region> {
        self.doorbells.memory.region()
    }

    fn page(&self) -> usize {
        // LOSSY: Below the number of pages.
        self.index as usize
    }
}

impl Drop for DoorbellPage {
    fn drop(&mut self) {
        if let Ok(index) = usize::try_from(self.index) {
            self.doorbells.used.lock().release_id(index);
        }
    }
}
