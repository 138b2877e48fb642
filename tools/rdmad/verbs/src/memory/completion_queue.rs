// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completion queues in either kind of memory: an own ring, or in virtqueue mode a virtqueue.

use dma::DmaView;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ctrl::NotifyFlags;
use virtio_rdma_abi::ib::WcFlags;
use virtio_rdma_abi::ring::ArmWord;
use virtio_rdma_ring::{ArmLatchState, DeviceCq, RingError, RingMemory};

use super::virtqueue::{CqProgress, VirtqueueCq, VirtqueueMem, VirtqueueView};
use super::{RingMem, RingState, RingView};
use crate::error::{at_least, Result, What};

/// The memory of a CQ, and the device's position in it.
#[derive(Debug)]
pub(crate) enum CompletionProducer {
    /// An own ring: memory that the driver provides.
    Own {
        /// The ring's memory.
        mem: RingMem,
        /// The ring's producer.
        ring: DeviceCq,
    },
    /// A virtqueue of the device.
    Virtqueue {
        /// The virtqueue's memory.
        mem: VirtqueueMem,
        /// The virtqueue's producer.
        queue: VirtqueueCq,
    },
}

impl CompletionProducer {
    /// The producer of a new CQ whose ring is `mem`.
    pub(crate) fn own(mem: RingMem) -> Self {
        let ring = DeviceCq::new(*mem.layout());
        Self::Own { mem, ring }
    }

    /// The producer of a new CQ of `cqe` entries, whose virtqueue was just enabled.
    pub(crate) fn virtqueue(mem: VirtqueueMem, cqe: u32) -> Self {
        let queue = VirtqueueCq::new(&mem, cqe);
        Self::Virtqueue { mem, queue }
    }

    /// The CQ's virtqueue; `None` if the CQ is an own ring.
    pub(crate) fn as_virtqueue(&self) -> Option<&VirtqueueMem> {
        match self {
            Self::Own { .. } => None,
            Self::Virtqueue { mem, .. } => Some(mem),
        }
    }

    /// The producer of an own ring that another process has left with `latch`.
    pub(crate) fn resumed(mem: RingMem, latch: &ArmLatchState) -> Self {
        let ring = DeviceCq::resumed(*mem.layout(), latch);
        Self::Own { mem, ring }
    }

    /// The memory and state of an own ring. `None` for a virtqueue.
    pub(crate) fn save(&self) -> Option<(RingState, ArmLatchState)> {
        match self {
            Self::Own { mem, ring } => Some((mem.save(), ring.state())),
            Self::Virtqueue { .. } => None,
        }
    }

    /// How far producer and driver are.
    pub(crate) fn progress(&self, view: &DmaView) -> CqProgress {
        match self {
            Self::Own { mem, ring } => {
                let memory = RingView::new(mem, view);
                let word = u64::from_le(memory.load_u64(mem.layout().arm()));
                CqProgress {
                    completions: ring.published(),
                    unpolled: ring.unpolled(&memory).ok(),
                    arm: ArmWord::from_u64(word),
                    latch: ring.state(),
                }
            }
            Self::Virtqueue { mem, queue } => queue.progress(&VirtqueueView::new(mem, view)),
        }
    }

    /// Access to the CQ's memory through `view`.
    #[inline]
    pub(crate) fn enter<'a>(&'a mut self, view: &'a DmaView) -> CompletionView<'a> {
        match self {
            Self::Own { mem, ring } => CompletionView::Own {
                memory: RingView::new(mem, view),
                ring,
            },
            Self::Virtqueue { mem, queue } => CompletionView::Virtqueue {
                memory: VirtqueueView::new(mem, view),
                queue,
            },
        }
    }

    /// Replaces an own ring by `new`. Returns the position at which the old ring ends, or `None`
    /// for a virtqueue or a corrupt ring.
    ///
    /// # Errors
    ///
    /// More than `cqe` completions are unpolled.
    pub(crate) fn resize(&mut self, view: &DmaView, new: RingMem, cqe: u32) -> Option<Result<u32>> {
        let Self::Own { mem, ring } = self else {
            return None;
        };
        let unpolled = ring.unpolled(&RingView::new(mem, view)).ok()?;
        let fits = at_least(What::Cqe, cqe, unpolled);
        Some(fits.map(|()| {
            let end = ring.published();
            ring.moved(*new.layout());
            *mem = new;
            end
        }))
    }
}

/// Access to the memory of a CQ. Exists only while a view of guest memory is held.
pub(crate) enum CompletionView<'a> {
    /// Access to an own ring.
    Own {
        /// Access to the ring's memory.
        memory: RingView<'a>,
        /// The ring's producer.
        ring: &'a mut DeviceCq,
    },
    /// Access to a virtqueue.
    Virtqueue {
        /// Access to the virtqueue's memory.
        memory: VirtqueueView<'a>,
        /// The virtqueue's producer.
        queue: &'a mut VirtqueueCq,
    },
}

impl CompletionView<'_> {
    /// Writes a CQE. The driver sees it after the next [`publish`](Self::publish). `solicited` is
    /// true if the sender requested a solicited event, and for every error.
    ///
    /// # Errors
    ///
    /// The queue is full or corrupt, and must not be used any more.
    #[inline]
    pub(crate) fn push(
        &mut self,
        cqe: &Cqe,
        solicited: bool,
    ) -> std::result::Result<(), RingError> {
        match self {
            Self::Own { memory, ring } => ring.push(memory, &cqe.to_bytes(), solicited),
            Self::Virtqueue { memory, queue } => {
                let mut cqe = *cqe;
                if solicited {
                    cqe.wc_flags = cqe.wc_flags | WcFlags::SOLICITED;
                }
                queue.push(memory, &cqe.to_bytes(), solicited)
            }
        }
    }

    /// Executes REQ_NOTIFY_CQ for a virtqueue. A ring has an arm word instead.
    pub(crate) fn request_notify(&mut self, flags: NotifyFlags) {
        if let Self::Virtqueue { memory, queue } = self {
            queue.request_notify(memory, flags);
        }
    }

    /// Makes the pushed CQEs visible to the driver. Returns whether the completion event (own ring)
    /// or interrupt (virtqueue) is due. Also called when the CQ's doorbell rings.
    #[inline]
    #[must_use = "an event that is due is fired only once"]
    pub(crate) fn publish(&mut self) -> bool {
        match self {
            Self::Own { memory, ring } => ring.publish(memory),
            Self::Virtqueue { memory, queue } => queue.publish(memory),
        }
    }

    /// Whether an access failed: the ring's memory was unmapped, or the virtqueue was reset or has
    /// a bad address or descriptor.
    #[inline]
    pub(crate) fn lost(&self) -> bool {
        match self {
            Self::Own { memory, .. } => memory.lost(),
            Self::Virtqueue { memory, .. } => memory.lost(),
        }
    }
}
