// SPDX-License-Identifier: GPL-2.0

//! Where a send or receive queue of the kernel lies.

use super::{
    ring::KernelRing,
    wqe::Wqe, //
};
use crate::ring::{
    RingError,
    WorkQueue, //
};
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
}

impl WorkBackend {
    /// The queue in `ring`, which the device does not know yet.
    pub(super) fn ring(ring: Arc<KernelRing>) -> Self {
        let queue = WorkQueue::new(*ring.layout(), &*ring);
        Self::Ring { ring, queue }
    }

    /// Takes a slot and lets `build` write the WQE in it. Returns the slot.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full.
    #[inline]
    pub(super) fn post(&mut self, build: impl FnOnce(u16, &mut Wqe<'_>)) -> Result<u16> {
        match self {
            Self::Ring { ring, queue } => {
                let slot = queue.reserve().ok_or(ENOMEM)?;
                let offset = ring.layout().slot(slot);
                build(slot, &mut Wqe::Slot { ring, offset });
                Ok(slot)
            }
        }
    }

    /// Lets the device have what was posted. Returns whether it has to be told.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        match self {
            Self::Ring { ring, queue } => queue.publish(&**ring),
        }
    }

    /// Frees the slots up to `slot`, whose completion was polled.
    #[inline]
    pub(super) fn complete(&mut self, slot: u16) -> Result<(), RingError> {
        match self {
            Self::Ring { queue, .. } => queue.complete(slot),
        }
    }

    /// Frees all slots, which the device gave back without completions, and returns the position of the next.
    pub(super) fn reset(&mut self) -> u16 {
        match self {
            Self::Ring { queue, .. } => queue.reset(),
        }
    }
}
