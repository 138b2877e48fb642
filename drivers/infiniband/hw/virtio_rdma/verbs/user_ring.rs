// SPDX-License-Identifier: GPL-2.0

//! Rings of processes. The kernel never looks into them.

use super::{
    device::IbDevice,
    pages::Pages,
    quota::Charge, //
};
use crate::{
    abi::{
        ctrl::Request,
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
        ucontext::Context,
        umem::Umem,
        user_memory::UserMemory, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        new_mutex,
        Mutex, //
    }, //
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
    /// [quota](IbDevice::ring_pages).
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
            let charge = device
                .ring_pages
                .charge(UserMemory::length_for(size)?.div_ceil(PAGE_SIZE))?;
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

/// A queue of a process that moves to other rings.
///
/// A ring in memory of the kernel is prepared by one verb, so that the process can map and fill it,
/// and taken by another. So a process that can't map it has lost nothing.
#[pin_data]
pub(super) struct UserQueue {
    mappings: Mappings<IbDevice>,
    kind: RingKind,
    /// Held while the queue moves.
    #[pin]
    rings: Mutex<Rings>,
}

/// The rings of a queue.
#[derive(Default)]
struct Rings {
    /// Empty before the queue is created and after it is destroyed.
    present: Option<UserRing>,
    /// The ring that the queue moves to next.
    prepared: Option<UserRing>,
}

/// Outcomes of a verb that moves a queue.
pub(super) enum Moved<R> {
    /// The ring is prepared, and the process maps it here.
    Prepared(RingMapping),
    /// The queue lies in the ring. This is the answer of the device.
    Done(R),
}

impl UserQueue {
    /// Creates a queue in the ring that a process asks for: `command` is what the device is told,
    /// with the address of the ring. Also returns where the process maps it, and the answer.
    ///
    /// # Errors
    ///
    /// Errors of [`UserRing::new`] and of the device.
    pub(super) fn create<R: Request>(
        context: &Context<IbDevice>,
        kind: RingKind,
        ring: &uverbs::UserRing,
        (entries, slot_size): (u32, usize),
        command: impl FnOnce(RingAddr) -> R,
    ) -> Result<(Pin<KBox<Self>>, RingMapping, R::Response)> {
        let (device, mappings) = (context.device(), context.mappings());
        let mut ring = UserRing::new(device, mappings, kind, ring, entries, slot_size)?;
        let mapping = ring.mapping();
        let (address, list) = ring.address(device)?;
        let command = command(address);
        let this = KBox::pin_init(
            pin_init!(Self {
                mappings: mappings.clone(),
                kind,
                rings <- new_mutex!(Rings::default(), "virtio_rdma::user_ring::rings"),
            }),
            GFP_KERNEL,
        )?;
        let (response, (ring, _list)) = super::create(&device.device, &command, (ring, list))?;
        this.rings.lock().present = Some(ring);
        Ok((this, mapping, response))
    }

    /// Takes the step that a process asks for towards a ring of at least `entries` slots of at
    /// least `slot_size` bytes. Once the queue has moved, processes can't map the ring before.
    ///
    /// # Errors
    ///
    /// `EINVAL` if no such ring was prepared; errors of [`UserRing::new`] and of the device.
    pub(super) fn step<R: Request>(
        &self,
        device: &rdma::Device<IbDevice>,
        ring: &uverbs::UserRing,
        (entries, slot_size): (u32, usize),
        command: impl FnOnce(RingAddr) -> R,
    ) -> Result<Moved<R::Response>> {
        let mut rings = self.rings.lock();
        let mut next = if *ring == uverbs::UserRing::default() {
            let is_long = |ring: &mut UserRing| ring.layout.slots() >= entries;
            rings.prepared.take_if(is_long).ok_or(EINVAL)?
        } else {
            UserRing::new(device, &self.mappings, self.kind, ring, entries, slot_size)?
        };
        if *ring != uverbs::UserRing::default() && ring.addr == 0 {
            let mapping = next.mapping();
            rings.prepared = Some(next);
            return Ok(Moved::Prepared(mapping));
        }
        let (address, list) = next.address(device)?;
        let memory = (next, list);
        let (response, (next, _list)) = super::create(&device.device, &command(address), memory)?;
        rings.present = Some(next);
        Ok(Moved::Done(response))
    }

    /// The ring of a queue that is destroyed.
    pub(super) fn take(&self) -> Option<UserRing> {
        let mut rings = self.rings.lock();
        rings.prepared = None;
        rings.present.take()
    }
}
