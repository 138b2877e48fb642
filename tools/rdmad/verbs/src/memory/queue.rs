// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Send and receive queues, wherever they lie: an own ring, a virtqueue of the transport (RFC
//! mode), or nowhere.

use dma::DmaView;
#[cfg(feature = "testing")]
use virtio_rdma_ring::DevicePositions;
use virtio_rdma_ring::{DeviceQueue, RingError};

use super::virtqueue::{VirtqueueConsumer, VirtqueueMem, VirtqueueView};
use super::{RingMem, RingView};

/// Where a queue lies.
#[derive(Debug)]
pub(crate) enum QueueMem {
    /// In memory that the driver brought along.
    Own(RingMem),
    /// It is a virtqueue of the transport.
    Virtqueue(VirtqueueMem),
    /// Its QP was created without it: it is always empty.
    Absent,
}

impl QueueMem {
    /// The virtqueue that it is, if it is one.
    pub(crate) fn as_virtqueue(&self) -> Option<&VirtqueueMem> {
        match self {
            Self::Own(_) | Self::Absent => None,
            Self::Virtqueue(queue) => Some(queue),
        }
    }
}

/// Access to a queue as long as a view of guest memory is held.
pub(crate) enum QueueView<'a> {
    /// To an own ring.
    Own(RingView<'a>),
    /// To a virtqueue.
    Virtqueue(VirtqueueView<'a>),
    /// To nothing.
    Absent,
}

impl<'a> QueueView<'a> {
    /// Access through `view`.
    #[inline]
    pub(crate) fn new(queue: &'a QueueMem, view: &'a DmaView) -> Self {
        match queue {
            QueueMem::Own(ring) => Self::Own(RingView::new(ring, view)),
            QueueMem::Virtqueue(queue) => Self::Virtqueue(VirtqueueView::new(queue, view)),
            QueueMem::Absent => Self::Absent,
        }
    }

    /// Whether an access failed because the memory is gone or, of a virtqueue, was never there.
    #[inline]
    pub(crate) fn lost(&self) -> bool {
        match self {
            Self::Own(ring) => ring.lost(),
            Self::Virtqueue(queue) => queue.lost(),
            Self::Absent => false,
        }
    }

    /// As [`RingView::read_wqe`]. Of a virtqueue all is copied that is there, which may be less
    /// than the WQE needs.
    #[inline]
    pub(crate) fn read_wqe(
        &self,
        slot: Slot,
        wqe: &mut [u8],
        first: usize,
        size: impl FnOnce(&[u8]) -> usize,
    ) -> usize {
        match self {
            Self::Own(ring) => ring.read_wqe(slot.0, wqe, first, size),
            // LOSSLESS: the slot is one that `fetch` returned, a head.
            Self::Virtqueue(queue) => queue.gather(slot.0 as u16, wqe),
            Self::Absent => 0,
        }
    }
}

/// The WQE that [`WorkConsumer::fetch`] has found: its position in an own ring, its head in a
/// virtqueue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot(u32);

/// The owner of a queue rings for what it posts next.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForDoorbell(());

/// Consumer of the work requests of a send or receive queue. Its methods get a view of the queue
/// that it was made for.
#[derive(Debug)]
pub(crate) enum WorkConsumer {
    /// Of an own ring.
    Own(DeviceQueue),
    /// Of a virtqueue.
    Virtqueue(VirtqueueConsumer),
    /// Of a queue that is always empty.
    Absent,
}

impl WorkConsumer {
    /// The consumer of a new queue.
    pub(crate) fn new(queue: &QueueMem) -> Self {
        match queue {
            QueueMem::Own(ring) => Self::Own(DeviceQueue::new(*ring.layout())),
            QueueMem::Virtqueue(queue) => Self::Virtqueue(VirtqueueConsumer::new(queue)),
            QueueMem::Absent => Self::Absent,
        }
    }

    /// Where an own ring is served, or `None` of a virtqueue.
    #[cfg(feature = "testing")]
    pub(crate) fn commit(&self) -> Option<DevicePositions> {
        match self {
            Self::Own(queue) => Some(queue.positions()),
            Self::Virtqueue(_) => None,
            Self::Absent => Some(DevicePositions::default()),
        }
    }

    /// The consumer of a queue that was served up to `positions`, which are those of an own ring.
    #[cfg(feature = "testing")]
    pub(crate) fn resumed(queue: &QueueMem, positions: DevicePositions) -> Self {
        match queue {
            QueueMem::Own(ring) => Self::Own(DeviceQueue::resumed(*ring.layout(), positions)),
            QueueMem::Virtqueue(_) | QueueMem::Absent => Self::new(queue),
        }
    }

    /// WQEs of an own ring that were fetched and are not done.
    #[cfg(feature = "testing")]
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = Slot> {
        let positions = self.commit().unwrap_or_default();
        (0..positions.outstanding()).map(move |index| Slot(positions.done.wrapping_add(index)))
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> u32 {
        match self {
            Self::Own(queue) => queue.layout().slots(),
            Self::Virtqueue(queue) => queue.size().into(),
            Self::Absent => 0,
        }
    }

    /// Number of work requests that were posted and not fetched, as far as the queue makes sense.
    pub(crate) fn available(&self, view: &QueueView<'_>) -> u32 {
        match (self, view) {
            (Self::Own(queue), QueueView::Own(ring)) => queue.available(ring),
            (Self::Virtqueue(queue), QueueView::Virtqueue(view)) => queue.available(view).into(),
            _ => 0,
        }
    }

    /// Takes the next work request, or `None` when there is none.
    ///
    /// # Errors
    ///
    /// The queue makes no sense.
    #[inline]
    pub(crate) fn fetch(&mut self, view: &QueueView<'_>) -> Result<Option<Slot>, RingError> {
        match (self, view) {
            (Self::Own(queue), QueueView::Own(ring)) => Ok(queue.fetch(ring)?.map(Slot)),
            (Self::Virtqueue(queue), QueueView::Virtqueue(view)) => {
                Ok(queue.fetch(view)?.map(|head| Slot(head.into())))
            }
            _ => Ok(None),
        }
    }

    /// A work request that was fetched is done. Called before its completion is visible.
    #[inline]
    pub(crate) fn complete(&mut self, view: &QueueView<'_>, slot: Slot) {
        match (self, view) {
            (Self::Own(queue), _) => queue.complete(),
            (Self::Virtqueue(queue), QueueView::Virtqueue(view)) => {
                // LOSSLESS: a head, as `fetch` has returned it.
                queue.give_back(view, slot.0 as u16, 0);
                queue.publish(view);
            }
            _ => {}
        }
    }

    /// The queue is being polled: no doorbell is wanted.
    #[inline]
    pub(crate) fn suppress_doorbell(&mut self, view: &QueueView<'_>) {
        if let (Self::Own(queue), QueueView::Own(ring)) = (self, view) {
            queue.suppress_doorbell(ring);
        }
    }

    /// Asks for the doorbell. `None` if something was posted that may not be rung for.
    pub(crate) fn await_doorbell(&mut self, view: &QueueView<'_>) -> Option<ForDoorbell> {
        let has_work = match (self, view) {
            (Self::Own(queue), QueueView::Own(ring)) => queue.enable_doorbell(ring),
            (Self::Virtqueue(queue), QueueView::Virtqueue(view)) => queue.look_again(view),
            _ => false,
        };
        (!has_work).then_some(ForDoorbell(()))
    }

    /// Counts all that was ever posted to an own ring as done, without a look at it. Returns
    /// whether that is all there is to it: of a virtqueue each work request has to be given back.
    pub(crate) fn reset(&mut self, view: &QueueView<'_>) -> bool {
        match (self, view) {
            (Self::Own(queue), QueueView::Own(ring)) => queue.reset(ring),
            (Self::Virtqueue(_), _) => return false,
            _ => {}
        }
        true
    }
}
