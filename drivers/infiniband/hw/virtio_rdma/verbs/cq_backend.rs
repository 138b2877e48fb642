// SPDX-License-Identifier: GPL-2.0

//! Where a CQ of the kernel lies.

use super::ring::KernelRing;
use crate::{
    abi::{
        cqe::Cqe,
        ring::ArmKind, //
    },
    ring::{
        Armed,
        CompletionQueue,
        RingMemory, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The slots of a CQ, and how the device gets at them.
pub(super) enum CqBackend {
    /// A ring in DMA memory.
    Ring {
        /// The memory.
        ring: Arc<KernelRing>,
        /// Its slots.
        queue: CompletionQueue,
    },
}

impl CqBackend {
    /// The CQ in `ring`, which the device does not know yet.
    pub(super) fn ring(ring: Arc<KernelRing>) -> Self {
        let queue = CompletionQueue::new(*ring.layout(), &*ring);
        Self::Ring { ring, queue }
    }

    /// Takes the oldest CQE, if there is one.
    ///
    /// # Errors
    ///
    /// `EIO` if the device broke the queue's rules.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<Cqe>> {
        match self {
            Self::Ring { ring, queue } => {
                let ring = &**ring;
                let Some(completion) = queue.peek(ring).map_err(|_| EIO)? else {
                    return Ok(None);
                };
                let mut bytes = [0; Cqe::SIZE];
                ring.read(ring.layout().slot(completion.slot), &mut bytes);
                queue.give_back(ring, completion);
                Ok(Some(Cqe::from_bytes(&bytes)))
            }
        }
    }

    /// Lets the device use the slots of what was taken, once a batch.
    #[inline]
    pub(super) fn publish(&mut self) {
        match self {
            Self::Ring { ring, queue } => queue.publish(&**ring),
        }
    }

    /// Overwrites the CQEs of QP `number` that were not taken with some that name no QP.
    ///
    /// # Errors
    ///
    /// `EIO` if the device broke the queue's rules.
    pub(super) fn kill(&mut self, number: u32) -> Result {
        match self {
            Self::Ring { ring, queue } => {
                let ring = &**ring;
                let layout = *ring.layout();
                let visited = queue.for_each_unpolled(ring, |completion| {
                    let slot = layout.slot(completion.slot);
                    let mut bytes = [0; Cqe::SIZE];
                    ring.read(slot, &mut bytes);
                    let mut cqe = Cqe::from_bytes(&bytes);
                    if cqe.qp_num == number {
                        cqe.qp_num = 0;
                        ring.write(slot, &cqe.to_bytes());
                    }
                });
                visited.map_err(|_| EIO)
            }
        }
    }

    /// Asks the device for an event.
    pub(super) fn arm(&mut self, kind: ArmKind, report_missed: bool) -> Armed {
        match self {
            Self::Ring { ring, queue } => queue.arm(&**ring, kind, report_missed),
        }
    }

    /// The event came.
    pub(super) fn event_received(&mut self) {
        match self {
            Self::Ring { queue, .. } => queue.event_received(),
        }
    }
}
