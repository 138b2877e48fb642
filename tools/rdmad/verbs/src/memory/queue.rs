// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Send and receive queues in either kind of memory: an own ring, or in virtqueue mode a virtqueue.
//! A queue may also be absent.

use dma::DmaView;
use virtio_rdma_ring::{DevicePositions, DeviceQueue, RingError};

use super::virtqueue::{VirtqueueConsumer, VirtqueueMem, VirtqueueView};
use super::{RingMem, RingState, RingView};
use crate::error::{at_most, refusal, Reason, Result, What};

#[derive(Debug)]
pub(crate) enum QueueMem {
    /// An own ring: memory that the driver provides.
    Own(RingMem),
    /// A virtqueue of the device.
    Virtqueue(VirtqueueMem),
    /// No memory: the QP was created without this queue, which is always empty.
    Absent,
}

impl QueueMem {
    /// The memory of the queue; `None` if it is absent. Refused for a virtqueue.
    pub(crate) fn save(&self) -> Result<Option<RingState>> {
        match self {
            Self::Own(ring) => Ok(Some(ring.save())),
            Self::Absent => Ok(None),
            Self::Virtqueue(queue) => {
                let number = queue.number();
                Err(refusal(Reason::NotSupported, What::Virtqueue, number))
            }
        }
    }

    /// The queue's virtqueue; `None` if the queue is an own ring or absent.
    pub(crate) fn as_virtqueue(&self) -> Option<&VirtqueueMem> {
        match self {
            Self::Own(_) | Self::Absent => None,
            Self::Virtqueue(queue) => Some(queue),
        }
    }
}

/// Access to the memory of a queue. Exists only while a view of guest memory is held.
pub(crate) enum QueueView<'a> {
    /// Access to an own ring.
    Own(RingView<'a>),
    /// Access to a virtqueue.
    Virtqueue(VirtqueueView<'a>),
    /// An absent queue.
    Absent,
}

impl<'a> QueueView<'a> {
    /// Access to `queue` through `view`.
    #[inline]
    pub(crate) fn new(queue: &'a QueueMem, view: &'a DmaView) -> Self {
        match queue {
            QueueMem::Own(ring) => Self::Own(RingView::new(ring, view)),
            QueueMem::Virtqueue(queue) => Self::Virtqueue(VirtqueueView::new(queue, view)),
            QueueMem::Absent => Self::Absent,
        }
    }

    /// Whether an access failed: the ring's memory was unmapped, or the virtqueue was reset or has
    /// a bad address or descriptor.
    #[inline]
    pub(crate) fn lost(&self) -> bool {
        match self {
            Self::Own(ring) => ring.lost(),
            Self::Virtqueue(queue) => queue.lost(),
            Self::Absent => false,
        }
    }

    /// Like [`RingView::read_wqe`]. For a virtqueue, copies the whole buffer, which may be shorter
    /// than a WQE should be.
    #[inline]
    pub(crate) fn read_wqe(
        &self,
        slot: FetchedWqe,
        wqe: &mut [u8],
        first: usize,
        size: impl FnOnce(&[u8]) -> usize,
    ) -> usize {
        match self {
            Self::Own(ring) => ring.read_wqe(slot.0, wqe, first, size),
            // LOSSLESS: `fetch` returned the slot, a head of 16 bits.
            Self::Virtqueue(queue) => queue.gather(slot.0 as u16, wqe),
            Self::Absent => 0,
        }
    }
}

/// The place of a fetched WQE: its position in a ring, or the head of its descriptor chain in a
/// virtqueue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchedWqe(u32);

/// Proof that the driver will ring the doorbell for the next work request.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForDoorbell(());

/// Consumer of the work requests of a send or receive queue. Callers must pass a view of that queue
/// to all methods.
#[derive(Debug)]
pub(crate) enum WorkConsumer {
    /// Consumer of a ring.
    Own(DeviceQueue),
    Virtqueue(VirtqueueConsumer),
    /// Consumer of an absent queue.
    Absent,
}

impl WorkConsumer {
    pub(crate) fn new(queue: &QueueMem) -> Self {
        match queue {
            QueueMem::Own(ring) => Self::Own(DeviceQueue::new(*ring.layout())),
            QueueMem::Virtqueue(queue) => Self::Virtqueue(VirtqueueConsumer::new(queue)),
            QueueMem::Absent => Self::Absent,
        }
    }

    /// The device's positions in the queue. They are all of a ring's saved state.
    pub(crate) fn positions(&self) -> DevicePositions {
        match self {
            Self::Own(queue) => queue.positions(),
            Self::Virtqueue(queue) => queue.positions(),
            Self::Absent => DevicePositions::default(),
        }
    }

    /// The consumer that resumes a ring at `positions`. Refused if more work requests would be in
    /// progress than the ring has slots.
    pub(crate) fn resumed(queue: &QueueMem, positions: DevicePositions) -> Result<Self> {
        Ok(match queue {
            QueueMem::Own(ring) => {
                let slots = ring.layout().slots();
                at_most(What::Slots, positions.outstanding(), slots)?;
                Self::Own(DeviceQueue::resumed(*ring.layout(), positions))
            }
            QueueMem::Virtqueue(_) | QueueMem::Absent => Self::new(queue),
        })
    }

    /// The WQEs of a ring that were fetched and are not complete.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = FetchedWqe> {
        let positions = self.positions();
        (0..positions.outstanding())
            .map(move |index| FetchedWqe(positions.done.wrapping_add(index)))
    }

    pub(crate) fn slots(&self) -> u32 {
        match self {
            Self::Own(queue) => queue.layout().slots(),
            Self::Virtqueue(queue) => queue.size().into(),
            Self::Absent => 0,
        }
    }

    /// Number of work requests posted but not yet fetched. Never more than the ring's size, even if
    /// the queue is corrupt.
    pub(crate) fn available(&self, view: &QueueView<'_>) -> u32 {
        match (self, view) {
            (Self::Own(queue), QueueView::Own(ring)) => queue.available(ring),
            (Self::Virtqueue(queue), QueueView::Virtqueue(view)) => queue.available(view).into(),
            _ => 0,
        }
    }

    /// Fetches the next work request, or returns `None` if there is none.
    ///
    /// # Errors
    ///
    /// The queue is corrupt.
    #[inline]
    pub(crate) fn fetch(
        &mut self,
        view: &QueueView<'_>,
    ) -> std::result::Result<Option<FetchedWqe>, RingError> {
        match (self, view) {
            (Self::Own(queue), QueueView::Own(ring)) => Ok(queue.fetch(ring)?.map(FetchedWqe)),
            (Self::Virtqueue(queue), QueueView::Virtqueue(view)) => {
                Ok(queue.fetch(view)?.map(|head| FetchedWqe(head.into())))
            }
            _ => Ok(None),
        }
    }

    /// Frees the slot of a fetched work request. Must be called before its CQE is visible.
    #[inline]
    pub(crate) fn complete(&mut self, view: &QueueView<'_>, slot: FetchedWqe) {
        match (self, view) {
            (Self::Own(queue), _) => queue.complete(),
            (Self::Virtqueue(queue), QueueView::Virtqueue(view)) => {
                // LOSSLESS: `fetch` returned the slot, a head of 16 bits.
                queue.give_back(view, slot.0 as u16, 0);
                queue.publish(view);
            }
            _ => {}
        }
    }

    /// Tells the driver that it need not ring the doorbell, since the device polls the queue.
    #[inline]
    pub(crate) fn suppress_doorbell(&mut self, view: &QueueView<'_>) {
        if let (Self::Own(queue), QueueView::Own(ring)) = (self, view) {
            queue.suppress_doorbell(ring);
        }
    }

    /// Requests a doorbell for the next work request. Returns `None` if work requests are posted
    /// already: it is not certain that the driver rings the doorbell for these.
    pub(crate) fn await_doorbell(&mut self, view: &QueueView<'_>) -> Option<ForDoorbell> {
        let has_work = match (self, view) {
            (Self::Own(queue), QueueView::Own(ring)) => queue.enable_doorbell(ring),
            (Self::Virtqueue(queue), QueueView::Virtqueue(view)) => queue.look_again(view),
            _ => false,
        };
        (!has_work).then_some(ForDoorbell(()))
    }

    /// Skips all work requests posted so far to a ring, without reading them. Returns false for a
    /// virtqueue, whose work requests must be given back one by one.
    pub(crate) fn reset(&mut self, view: &QueueView<'_>) -> bool {
        match (self, view) {
            (Self::Own(queue), QueueView::Own(ring)) => queue.reset(ring),
            (Self::Virtqueue(_), _) => return false,
            _ => {}
        }
        true
    }
}
