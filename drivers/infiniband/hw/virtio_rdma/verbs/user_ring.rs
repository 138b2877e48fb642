// SPDX-License-Identifier: GPL-2.0

//! Rings of processes. The kernel never looks into them.

use super::{
    device::IbDevice,
    pages::Pages,
    ring_share::Charge, //
};
use crate::{
    abi::{
        ring::{
            RingAddr,
            RingKind,
            RingLayout,
            PAGE_SHIFT_RANGE, //
        },
        uverbs::{
            self,
            RingMapping, //
        }, //
    },
    rdma::{
        self,
        mmap::{
            Mappings,
            Offer, //
        },
        mr::AccessFlags,
        umem::Umem,
        user_memory::UserMemory, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// Where a ring lies.
enum Memory {
    /// In memory of the process, pinned and charged to it as locked memory.
    Process(Umem),
    /// In memory of the kernel, charged to the process's memory cgroup, which the process may map
    /// while the offer exists.
    Kernel {
        offer: Offer<IbDevice>,
        memory: UserMemory,
        _charge: Charge,
    },
}

/// A ring of a process.
pub(super) struct UserRing {
    memory: Memory,
    layout: RingLayout,
}

/// The layout of the ring that a process asks for, of at least `entries` slots of at least
/// `slot_size` bytes.
///
/// # Errors
///
/// `EINVAL` for a ring that the ABI does not have, that is not page-aligned or is too small.
fn layout(
    kind: RingKind,
    ring: &uverbs::UserRing,
    entries: u32,
    slot_size: usize,
) -> Result<RingLayout> {
    let layout = RingLayout::new(kind, ring.slots, ring.slot_shift).ok_or(EINVAL)?;
    let valid = ring.reserved == [0; 3]
        && ring.addr % PAGE_SIZE as u64 == 0
        && layout.slots() >= entries
        && layout.slot_size() as usize >= slot_size;
    valid.then_some(layout).ok_or(EINVAL)
}

impl UserRing {
    /// Makes the ring that a process asks for, of at least `entries` slots of at least `slot_size`
    /// bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a ring that the ABI does not have, that is not page-aligned or is too small,
    /// and those of [`Umem::pin`], [`UserMemory::new`] and [`Mappings::offer`]. `ENOMEM` beyond the
    /// [share](super::ring_share).
    pub(super) fn new(
        device: &rdma::Device<IbDevice>,
        mappings: &Mappings<IbDevice>,
        kind: RingKind,
        ring: &uverbs::UserRing,
        entries: u32,
        slot_size: usize,
    ) -> Result<Self> {
        let layout = layout(kind, ring, entries, slot_size)?;
        let memory = if ring.addr == 0 {
            let size = usize::try_from(layout.size())?;
            let charge = device.ring_share.charge(UserMemory::length_for(size)?)?;
            let memory = UserMemory::new(device, size)?;
            Memory::Kernel {
                offer: mappings.offer(&memory)?,
                memory,
                _charge: charge,
            }
        } else {
            // Always with the right to write: pinned read-only, a shared mapping of a file that the
            // process may only read would let it have the device write that file.
            let access = AccessFlags::LOCAL_WRITE;
            let size = layout.size().into();
            Memory::Process(Umem::pin(device, ring.addr, size, access)?)
        };
        Ok(Self { memory, layout })
    }

    /// Where the process maps it, if it is memory of the kernel.
    pub(super) fn mapping(&self) -> RingMapping {
        match &self.memory {
            Memory::Process(_) => RingMapping::default(),
            Memory::Kernel { offer, .. } => RingMapping {
                offset: offer.offset().0,
                length: offer.length(),
            },
        }
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> u32 {
        self.layout.slots()
    }

    /// The ring as the device is told of it, and the list that it reads when the queue is created.
    pub(super) fn address(&mut self, device: &rdma::Device<IbDevice>) -> Result<(RingAddr, Pages)> {
        let (page_shift, npages, list) = match &mut self.memory {
            Memory::Process(umem) => {
                let supported = PAGE_SHIFT_RANGE.fold(0, |mask, shift| mask | 1 << shift);
                let page_shift = umem.best_page_shift(supported, 0)?;
                let npages = umem.page_count(page_shift)?;
                let pages = umem.pages(page_shift)?;
                let list = Pages::new(device.dma_device(), npages, true, pages)?;
                (page_shift, npages, list)
            }
            Memory::Kernel { memory, .. } => {
                let npages = memory.page_count();
                let pages = memory.pages(device)?;
                let list = Pages::new(device.dma_device(), npages, true, pages)?;
                (memory.page_shift(), npages, list)
            }
        };
        let address = RingAddr {
            pages: list.dma_address(),
            npages: u32::try_from(npages)?,
            slots: self.layout.slots(),
            page_shift,
            slot_shift: self.layout.slot_shift(),
            depth: list.depth().value(),
            ..RingAddr::default()
        };
        Ok((address, list))
    }
}

/// The ring of a queue that moves to other rings, and the one that it moves to next.
///
/// A ring in memory of the kernel is prepared by one verb, so that the process can map and fill it,
/// and taken by another. So a process that can't map it has lost nothing.
pub(super) struct MovingRing {
    mappings: Mappings<IbDevice>,
    kind: RingKind,
    /// Empty while the queue is destroyed.
    present: Option<UserRing>,
    prepared: Option<UserRing>,
}

/// Steps of a verb that moves a queue.
pub(super) enum Step {
    /// The ring is prepared, and the process maps it here.
    Prepared(RingMapping),
    /// The device is to be told of this ring.
    Move(UserRing),
}

impl MovingRing {
    /// The ring of a queue that the device does not know yet.
    pub(super) fn new(mappings: &Mappings<IbDevice>, kind: RingKind) -> Self {
        Self {
            mappings: mappings.clone(),
            kind,
            present: None,
            prepared: None,
        }
    }

    /// Takes the step that a process asks for, to a ring of at least `entries` slots of at least
    /// `slot_size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if no such ring was prepared, and those of [`UserRing::new`].
    pub(super) fn step(
        &mut self,
        device: &rdma::Device<IbDevice>,
        request: &uverbs::UserRing,
        entries: u32,
        slot_size: usize,
    ) -> Result<Step> {
        if *request == uverbs::UserRing::default() {
            let prepared = self.prepared.take_if(|ring| ring.slots() >= entries);
            return prepared.map(Step::Move).ok_or(EINVAL);
        }
        let ring = UserRing::new(
            device,
            &self.mappings,
            self.kind,
            request,
            entries,
            slot_size,
        )?;
        if request.addr != 0 {
            return Ok(Step::Move(ring));
        }
        let mapping = ring.mapping();
        self.prepared = Some(ring);
        Ok(Step::Prepared(mapping))
    }

    /// The device uses `ring`, and the one before no more. Processes can't map that any more.
    pub(super) fn moved(&mut self, ring: UserRing) {
        self.present = Some(ring);
    }

    /// The rings of a queue that is destroyed.
    pub(super) fn take(&mut self) -> Option<UserRing> {
        self.prepared = None;
        self.present.take()
    }
}
