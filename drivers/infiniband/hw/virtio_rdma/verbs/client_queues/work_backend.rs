// SPDX-License-Identifier: GPL-2.0

//! The memory of a send or receive queue of the kernel: a ring, or in virtqueue mode a virtqueue.

use super::{
    ring::KernelRing,
    wqe::Wqe, //
};
use crate::{
    ring::{
        RingError,
        WorkQueue,
        WorkSlots, //
    },
    transport::{
        Element,
        Leasable,
        WorkVirtqueue, //
    },
    virtio::Buffer, //
};
use core::mem::take;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The memory of a work queue and its positions.
pub(super) enum WorkBackend {
    /// A ring in DMA memory.
    Ring {
        /// The memory.
        ring: Arc<KernelRing>,
        /// Positions of the producer.
        queue: WorkQueue,
    },
    /// A virtqueue of the transport.
    Virtqueue {
        queue: Arc<WorkVirtqueue>,
        /// Positions of outstanding work requests, as in a ring.
        slots: WorkSlots,
        /// Elements that are not in the virtqueue. Used elements are taken out of the virtqueue
        /// when `spare` is empty.
        spare: KVec<Element>,
        /// Bytes of an element.
        size: usize,
        /// Whether elements were added to the virtqueue since the device was notified last.
        is_fresh: bool,
    },
}

impl WorkBackend {
    /// Creates the backend of a queue in `ring`. The QP does not exist on the device yet.
    pub(super) fn ring(ring: Arc<KernelRing>) -> Self {
        let queue = WorkQueue::new(*ring.layout());
        Self::Ring { ring, queue }
    }

    /// Creates the backend of a queue in a virtqueue. `slots`, a power of two, is the number of
    /// work requests, each of up to `size` bytes.
    pub(super) fn virtqueue(queue: Arc<WorkVirtqueue>, slots: u32, size: usize) -> Result<Self> {
        let mut spare = KVec::with_capacity(usize::try_from(slots)?, GFP_KERNEL)?;
        for _ in 0..slots {
            spare.push(Buffer::new(size, 0, (), GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Ok(Self::Virtqueue {
            queue,
            slots: WorkSlots::new(slots),
            spare,
            size,
            is_fresh: false,
        })
    }

    /// Reserves a slot, in which `build` writes the WQE and returns its length. Returns the slot's
    /// position. If `build` fails, the slot stays free.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full, `EIO` if the device broke the rules of the queue; the errors
    /// of `build`.
    #[inline]
    pub(super) fn post(
        &mut self,
        build: impl FnOnce(u32, &mut Wqe<'_>) -> Result<usize>,
    ) -> Result<u32> {
        let mut taken = None;
        // There is one call of `build` for both kinds of memory, so that the compiler inlines it.
        let (position, mut wqe) = match self {
            Self::Ring { ring, queue } => {
                let position = queue.reserve().ok_or(ENOMEM)?;
                (position, Wqe::new(ring.slot(position)))
            }
            Self::Virtqueue {
                queue,
                slots,
                spare,
                size,
                ..
            } => {
                let position = slots.reserve().ok_or(ENOMEM)?;
                let element = take_spare(queue, spare, *size).inspect_err(|_| slots.cancel())?;
                (position, Wqe::new(taken.insert(element).readable_mut()))
            }
        };
        let result = build(position, &mut wqe);
        match (result, taken) {
            (Ok(_), None) => (),
            (Ok(length), Some(element)) => self.add(element, length)?,
            (Err(error), taken) => {
                self.cancel(taken);
                return Err(error);
            }
        }
        Ok(position)
    }

    /// Reserves a slot without a WQE, for a post on a stopped device. Returns the slot's position.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full.
    pub(super) fn post_unseen(&mut self) -> Result<u32> {
        let Self::Virtqueue { slots, .. } = self else {
            // Only a virtqueue runs out of elements before it runs out of slots.
            return Err(ENOMEM);
        };
        let position = slots.reserve().ok_or(ENOMEM)?;
        slots.publish();
        Ok(position)
    }

    /// Frees the slot that was reserved last, and adds its element to `spare`.
    #[cold]
    fn cancel(&mut self, taken: Option<Element>) {
        match self {
            Self::Ring { queue, .. } => queue.cancel(),
            Self::Virtqueue { slots, spare, .. } => {
                slots.cancel();
                if let Some(element) = taken {
                    // The vector has room for all elements.
                    let _ = spare.push_within_capacity(element);
                }
            }
        }
    }

    /// Adds an element with a WQE of `length` bytes to the virtqueue. If this fails, frees its
    /// slot.
    #[inline(never)]
    fn add(&mut self, mut element: Element, length: usize) -> Result {
        let Self::Virtqueue {
            queue,
            slots,
            is_fresh,
            ..
        } = self
        else {
            return Err(EINVAL);
        };
        let added = match element.set_len(length, 0) {
            Ok(()) => queue.elements().add(element),
            Err(error) => Err((error, element)),
        };
        match added {
            Ok(()) => {
                slots.publish();
                *is_fresh = true;
                Ok(())
            }
            Err((error, element)) => {
                self.cancel(Some(element));
                Err(if error == ENOSPC { ENOMEM } else { error })
            }
        }
    }

    /// Publishes the posted WQEs. Returns whether the device needs a notification.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        match self {
            Self::Ring { ring, queue } => queue.publish(&**ring),
            Self::Virtqueue { is_fresh, .. } => take(is_fresh),
        }
    }

    /// Whether the work request at `position` is posted, and its completion not polled yet.
    #[inline]
    pub(super) fn is_outstanding(&self, position: u32) -> bool {
        match self {
            Self::Ring { queue, .. } => queue.is_outstanding(position),
            Self::Virtqueue { slots, .. } => slots.is_outstanding(position),
        }
    }

    /// Frees the slots up to `position`, whose completion was polled.
    #[inline]
    pub(super) fn complete(&mut self, position: u32) -> Result<(), RingError> {
        match self {
            Self::Ring { queue, .. } => queue.complete(position),
            Self::Virtqueue { slots, .. } => slots.complete(position),
        }
    }

    /// Whether any work request is outstanding.
    pub(super) fn has_outstanding(&self) -> bool {
        match self {
            Self::Ring { queue, .. } => queue.has_outstanding(),
            Self::Virtqueue { slots, .. } => slots.has_outstanding(),
        }
    }

    /// Positions of the producer and of the oldest outstanding work request.
    pub(super) fn positions(&self) -> (u32, u32) {
        match self {
            Self::Ring { queue, .. } => queue.positions(),
            Self::Virtqueue { slots, .. } => (slots.published(), slots.tail()),
        }
    }

    /// Frees all slots, without completions of their work requests, and returns the position of the
    /// next slot.
    pub(super) fn reset(&mut self) -> u32 {
        match self {
            Self::Ring { queue, .. } => queue.reset(),
            Self::Virtqueue { slots, .. } => slots.reset(),
        }
    }
}

/// An element of `size` bytes for a WQE: a spare element, else an element that the device has used.
/// Each free slot has such an element, since the device uses an element before it writes the CQE
/// that frees the slot.
fn take_spare(queue: &WorkVirtqueue, spare: &mut KVec<Element>, size: usize) -> Result<Element> {
    let used = || queue.elements().get_buf().map(|(element, _)| element);
    let mut element = spare.pop().or_else(used).ok_or(ENOMEM)?;
    element.set_len(size, 0)?;
    Ok(element)
}
