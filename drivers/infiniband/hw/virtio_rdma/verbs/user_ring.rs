// SPDX-License-Identifier: GPL-2.0

//! Rings of processes. The kernel never reads or writes them.

use super::{
    device::IbDevice,
    pages::Pages,
    resource_limit::Charge, //
};
use crate::{
    abi::{
        ctrl::ControlCommand,
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

/// Memory of a ring.
enum Memory {
    /// Memory of the process, pinned and charged to it as locked memory.
    Process(Umem),
    /// Memory of the kernel, charged to the process's memory cgroup. The process may map it while
    /// the offer exists.
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

/// The layout of the ring that a process requests, with at least `entries` slots of at least
/// `slot_size` bytes.
///
/// # Errors
///
/// `EINVAL` for a size that the ABI does not allow, and for a ring that is not page-aligned or too
/// small.
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
    /// Creates the ring that a process requests, with at least `entries` slots of at least
    /// `slot_size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a size that the ABI does not allow, and for a ring that is not page-aligned or
    /// too small. `ENOMEM` beyond the [limit](IbDevice::ring_pages). The errors of [`Umem::pin`],
    /// [`UserMemory::new`] and [`Mappings::offer`].
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
            // Always pinned for writing: this fails for a shared mapping of a file that the process
            // may only read. With a read-only pin, the device could write to that file.
            let access = AccessFlags::LOCAL_WRITE;
            let size = layout.size().into();
            Memory::Process(Umem::pin(device, ring.addr, size, access)?)
        };
        Ok(Self { memory, layout })
    }

    /// Offset and length with which the process maps the ring; zero if the ring is in memory of the
    /// process.
    pub(super) fn mapping(&self) -> RingMapping {
        match &self.memory {
            Memory::Process(_) => RingMapping::default(),
            Memory::Kernel { offer, .. } => RingMapping {
                offset: offer.offset().0,
                length: offer.length(),
            },
        }
    }

    /// The ring's address for the command that creates the queue, and the page list that the device
    /// reads while it executes the command.
    pub(super) fn address(&mut self, device: &rdma::Device<IbDevice>) -> Result<(RingAddr, Pages)> {
        let (page_shift, npages, list) = match &mut self.memory {
            Memory::Process(umem) => {
                let supported = PAGE_SHIFT_RANGE.fold(0, |mask, shift| mask | 1 << shift);
                let page_shift = umem.best_page_shift(supported, 0)?;
                let npages = umem.page_count(page_shift)?;
                let pages = umem.pages(page_shift)?;
                let list = Pages::new(device, npages, true, pages)?;
                (page_shift, npages, list)
            }
            Memory::Kernel { memory, .. } => {
                let npages = memory.page_count();
                let pages = memory.pages();
                let list = Pages::new(device, npages, true, pages)?;
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

/// A queue of a process that can move to another ring (resize).
///
/// For a ring in memory of the kernel this takes two verbs: the first one prepares the ring, which
/// the process maps and fills; the second one moves the queue. A process that fails to map the ring
/// continues to use the present ring.
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
    /// The ring in use; `None` before the queue is created and after it is destroyed.
    present: Option<UserRing>,
    /// The ring to which the queue moves next.
    prepared: Option<UserRing>,
}

/// Outcomes of a verb that moves a queue.
pub(super) enum Moved<R> {
    /// The ring is prepared. The process maps it with this offset and length.
    Prepared(RingMapping),
    /// The queue has moved. Contains the device's answer.
    Done(R),
}

impl UserQueue {
    /// Creates a queue in the ring that a process requests. `command` makes the command from the
    /// address of the ring. Also returns the mapping for the process, and the device's answer.
    ///
    /// # Errors
    ///
    /// Errors of [`UserRing::new`] and of the device.
    pub(super) fn create<R: ControlCommand>(
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
        let (response, (ring, _list)) = super::create(&device.virtio, &command, (ring, list))?;
        this.rings.lock().present = Some(ring);
        Ok((this, mapping, response))
    }

    /// Executes one of the two steps of a move to a ring of at least `entries` slots of at least
    /// `slot_size` bytes. Once the queue has moved, the process can't map the previous ring.
    ///
    /// # Errors
    ///
    /// `EINVAL` if no such ring was prepared; errors of [`UserRing::new`] and of the device.
    pub(super) fn step<R: ControlCommand>(
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
        let (response, (next, _list)) = super::create(&device.virtio, &command(address), memory)?;
        rings.present = Some(next);
        Ok(Moved::Done(response))
    }

    /// Takes out the ring of a queue that is being destroyed.
    pub(super) fn take(&self) -> Option<UserRing> {
        let mut rings = self.rings.lock();
        rings.prepared = None;
        rings.present.take()
    }
}
