// SPDX-License-Identifier: GPL-2.0

//! Rings in memory of the kernel.

use crate::{
    abi::ring::{
        slot_shift_for,
        RingAddr,
        RingKind,
        RingLayout,
        CQ_SLOTS,
        WORK_SLOTS, //
    },
    rdma::{
        self,
        page_list::PageList,
        queue_memory::{
            QueueMemory,
            Span, //
        }, //
    },
    ring::RingMemory,
    verbs::device::IbDevice, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Indices of a ring's two position words: the owner's and the device's.
const OWNER: usize = 0;
const DEVICE: usize = 1;

/// A ring and the list of its pages, which the device reads when the queue is created.
pub(in crate::verbs) struct KernelRing {
    memory: QueueMemory<2>,
    list: PageList,
    layout: RingLayout,
}

impl KernelRing {
    /// Allocates a zeroed ring of at least `entries` entries of at least `slot_size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a size that the ABI does not allow.
    pub(in crate::verbs) fn new(
        ib_device: &rdma::Device<IbDevice>,
        kind: RingKind,
        entries: u32,
        slot_size: usize,
    ) -> Result<Arc<Self>> {
        let barriers = ib_device.virtio.barriers();
        let least = match kind {
            RingKind::Work | RingKind::Shared => *WORK_SLOTS.start(),
            RingKind::Completion => *CQ_SLOTS.start(),
        };
        let slots = entries.checked_next_power_of_two().ok_or(EINVAL)?;
        let layout = slot_shift_for(slot_size)
            .and_then(|shift| RingLayout::new(kind, slots.max(least), shift))
            .ok_or(EINVAL)?;
        let size = usize::try_from(layout.size())?;
        let mut words = [0; 2];
        words[OWNER] = layout.owner();
        words[DEVICE] = layout.device();
        let memory = QueueMemory::new(ib_device, size, words, barriers)?;
        let list = PageList::new(ib_device, memory.page_count(), memory.pages())?;
        let this = Self {
            memory,
            list,
            layout,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// The offsets of the ring's parts.
    #[inline]
    pub(super) fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Copies the first `N` bytes of the slot at `position`.
    #[inline]
    pub(super) fn read_slot<const N: usize>(&self, position: u32) -> [u8; N] {
        self.memory.array(self.layout.slot(position))
    }

    /// The slot at `position`, for writing. A slot does not cross a page.
    #[inline]
    pub(super) fn slot(&self, position: u32) -> Span<'_> {
        self.memory.span(self.layout.slot(position))
    }

    /// The ring's address, for the command that creates the queue.
    pub(in crate::verbs) fn address(&self) -> Result<RingAddr> {
        Ok(RingAddr {
            pages: self.list.dma_address(),
            npages: u32::try_from(self.memory.page_count())?,
            slots: self.layout.slots(),
            page_shift: self.memory.page_shift(),
            slot_shift: self.layout.slot_shift(),
            ..RingAddr::default()
        })
    }
}

impl RingMemory for KernelRing {
    #[inline]
    fn load_device(&self, _: &RingLayout) -> u32 {
        self.memory.load_fixed::<DEVICE>()
    }

    #[inline]
    fn load_device_acquire(&self, _: &RingLayout) -> u32 {
        self.memory.load_fixed_acquire::<DEVICE>()
    }

    #[inline]
    fn store_owner_release(&self, _: &RingLayout, value: u32) {
        self.memory.store_fixed_release::<OWNER>(value);
    }

    #[inline]
    fn load_u32(&self, offset: u32) -> u32 {
        self.memory.load_u32(offset)
    }

    #[inline]
    fn load_u32_acquire(&self, offset: u32) -> u32 {
        self.memory.load_u32_acquire(offset)
    }

    #[inline]
    fn store_u32(&self, offset: u32, value: u32) {
        self.memory.store_u32(offset, value);
    }

    #[inline]
    fn store_u32_release(&self, offset: u32, value: u32) {
        self.memory.store_u32_release(offset, value);
    }

    #[inline]
    fn load_u64(&self, offset: u32) -> u64 {
        self.memory.load_u64(offset)
    }

    #[inline]
    fn store_u64(&self, offset: u32, value: u64) {
        self.memory.store_u64(offset, value);
    }

    #[inline]
    fn load_u16(&self, offset: u32) -> u16 {
        self.memory.load_u16(offset)
    }

    #[inline]
    fn store_u16(&self, offset: u32, value: u16) {
        self.memory.store_u16(offset, value);
    }

    #[inline]
    fn read(&self, offset: u32, bytes: &mut [u8]) {
        self.memory.read(offset, bytes);
    }

    #[inline]
    fn write(&self, offset: u32, bytes: &[u8]) {
        self.memory.span(offset).put(0, bytes);
    }

    #[inline]
    fn full_barrier(&self) {
        self.memory.full_barrier();
    }
}
