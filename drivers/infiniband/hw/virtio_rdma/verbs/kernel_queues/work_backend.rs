// SPDX-License-Identifier: GPL-2.0

//! Where a send or receive queue of the kernel lies.

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
        Claimable,
        Element,
        WorkVirtqueue, //
    },
    virtio::Buffer, //
};
use core::mem::take;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The slots of a queue, and how the device gets at them.
pub(super) enum WorkBackend {
    /// A ring in DMA memory.
    Ring {
        /// The memory.
        ring: Arc<KernelRing>,
        /// Its slots.
        queue: WorkQueue,
    },
    /// A virtqueue of the transport.
    Virtqueue {
        /// The virtqueue.
        queue: Arc<WorkVirtqueue>,
        /// Slots that are in use: a number for each work request that may be outstanding.
        slots: WorkSlots,
        /// Elements that are not in the virtqueue. Elements that the device used stay there until
        /// they are needed.
        spare: KVec<Element>,
        /// Bytes of an element.
        size: usize,
        /// Whether something was added that the device was not told of.
        is_fresh: bool,
    },
}

impl WorkBackend {
    /// The queue in `ring`, which the device does not know yet.
    pub(super) fn ring(ring: Arc<KernelRing>) -> Self {
        let queue = WorkQueue::new(*ring.layout());
        Self::Ring { ring, queue }
    }

    /// The queue in a virtqueue, for `slots` work requests, a power of two, of up to `size` bytes.
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

    /// Takes a slot and lets `build` write the WQE in it, of which it returns the length. Returns
    /// its position. If `build` fails, the slot stays free.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full, `EIO` if the device broke its rules; those of `build`.
    #[inline]
    pub(super) fn post(
        &mut self,
        build: impl FnOnce(u32, &mut Wqe<'_>) -> Result<usize>,
    ) -> Result<u32> {
        let mut taken = None;
        // One call of `build` for either, so that it is compiled in place.
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

    /// Takes a slot without a WQE, of a dead device. Returns its position.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full.
    pub(super) fn post_unseen(&mut self) -> Result<u32> {
        let Self::Virtqueue { slots, .. } = self else {
            // A ring has a WQE for each slot.
            return Err(ENOMEM);
        };
        let position = slots.reserve().ok_or(ENOMEM)?;
        slots.publish();
        Ok(position)
    }

    /// Frees the slot that was taken last, and keeps its element.
    #[cold]
    fn cancel(&mut self, taken: Option<Element>) {
        match self {
            Self::Ring { queue, .. } => queue.cancel(),
            Self::Virtqueue { slots, spare, .. } => {
                slots.cancel();
                if let Some(element) = taken {
                    // There is room for all that there are.
                    let _ = spare.push_within_capacity(element);
                }
            }
        }
    }

    /// Adds an element with a WQE of `length` bytes to the virtqueue, or cancels it.
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

    /// Lets the device have what was posted. Returns whether it has to be told.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        match self {
            Self::Ring { ring, queue } => queue.publish(&**ring),
            Self::Virtqueue { is_fresh, .. } => take(is_fresh),
        }
    }

    /// Whether the device has the slot at `position`, and its completion was not polled.
    #[inline]
    pub(super) fn is_outstanding(&self, position: u32) -> bool {
        match self {
            Self::Ring { queue, .. } => queue.is_outstanding(position),
            Self::Virtqueue { slots, .. } => slots.is_outstanding(position),
        }
    }

    /// Frees the slots up to that at `position`, whose completion was polled.
    #[inline]
    pub(super) fn complete(&mut self, position: u32) -> Result<(), RingError> {
        match self {
            Self::Ring { queue, .. } => queue.complete(position),
            Self::Virtqueue { slots, .. } => slots.complete(position),
        }
    }

    /// Whether the device has slots that are not completed.
    pub(super) fn has_outstanding(&self) -> bool {
        match self {
            Self::Ring { queue, .. } => queue.has_outstanding(),
            Self::Virtqueue { slots, .. } => slots.has_outstanding(),
        }
    }

    /// Frees all slots, which the device gave back without completions, and returns the position of
    /// the next.
    pub(super) fn reset(&mut self) -> u32 {
        match self {
            Self::Ring { queue, .. } => queue.reset(),
            Self::Virtqueue { slots, .. } => slots.reset(),
        }
    }
}

/// An element of `size` bytes for a WQE. There is one for each slot that is free: the device uses
/// it before the completion is seen that frees the slot.
fn take_spare(queue: &WorkVirtqueue, spare: &mut KVec<Element>, size: usize) -> Result<Element> {
    let used = || queue.elements().get_buf().map(|(element, _)| element);
    let mut element = spare.pop().or_else(used).ok_or(ENOMEM)?;
    element.set_len(size, 0)?;
    Ok(element)
}
