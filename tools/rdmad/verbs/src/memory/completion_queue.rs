// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completion queues, wherever they lie: an own ring, or a virtqueue of the transport (RFC mode).

use dma::DmaView;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ctrl::NotifyFlags;
use virtio_rdma_abi::ib::WcFlags;
use virtio_rdma_ring::{DeviceCq, RingError};

use super::virtqueue::{VirtqueueCq, VirtqueueMem, VirtqueueView};
use super::{RingMem, RingView};
use crate::error::{require, Errno, Result};

/// The memory of a CQ, and what the device knows of its place in it.
#[derive(Debug)]
pub(crate) enum CompletionProducer {
    /// In memory that the driver brought along.
    Own {
        /// Where it lies.
        mem: RingMem,
        /// Its producer.
        ring: DeviceCq,
    },
    /// It is a virtqueue of the transport.
    Virtqueue {
        /// Where it lies.
        mem: VirtqueueMem,
        /// Its producer.
        queue: VirtqueueCq,
    },
}

impl CompletionProducer {
    /// A new CQ in `mem`.
    pub(crate) fn own(mem: RingMem) -> Self {
        let ring = DeviceCq::new(*mem.layout());
        Self::Own { mem, ring }
    }

    /// A new CQ of `cqe` entries in a virtqueue that was just enabled.
    pub(crate) fn virtqueue(mem: VirtqueueMem, cqe: u32) -> Self {
        let queue = VirtqueueCq::new(&mem, cqe);
        Self::Virtqueue { mem, queue }
    }

    /// The virtqueue that it is, if it is one.
    pub(crate) fn as_virtqueue(&self) -> Option<&VirtqueueMem> {
        match self {
            Self::Own { .. } => None,
            Self::Virtqueue { mem, .. } => Some(mem),
        }
    }

    /// Drops the producer of an own ring and makes it anew of its committed state. All CQEs are
    /// published.
    #[cfg(feature = "testing")]
    pub(crate) fn rebuild(&mut self) {
        if let Self::Own { mem, ring } = self {
            let state = ring.state();
            *ring = DeviceCq::resumed(*mem.layout(), &state);
            assert_eq!(ring.state(), state);
        }
    }

    /// Access to it through `view`.
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

    /// Goes on in an own ring at `new`, and returns the position that the old one ends with.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a virtqueue, and if more completions than `cqe` are not polled yet.
    pub(crate) fn resize(&mut self, view: &DmaView, new: RingMem, cqe: u32) -> Result<u32> {
        let Self::Own { mem, ring } = self else {
            return Err(Errno::INVAL);
        };
        let unpolled = ring.unpolled(&RingView::new(mem, view));
        require(unpolled.is_ok_and(|unpolled| unpolled <= cqe))?;
        let end = ring.published();
        ring.moved(*new.layout());
        *mem = new;
        Ok(end)
    }
}

/// Access to a CQ as long as a view of guest memory is held.
pub(crate) enum CompletionView<'a> {
    /// In an own ring.
    Own {
        /// Access to its memory.
        memory: RingView<'a>,
        /// Its producer.
        ring: &'a mut DeviceCq,
    },
    /// In a virtqueue.
    Virtqueue {
        /// Access to its memory.
        memory: VirtqueueView<'a>,
        /// Its producer.
        queue: &'a mut VirtqueueCq,
    },
}

impl CompletionView<'_> {
    /// Writes a CQE, which the driver sees after the next [`publish`](Self::publish). `solicited`
    /// is true for those that the sender marked so and for every error.
    ///
    /// # Errors
    ///
    /// The queue is full or makes no sense: it is dead.
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

    /// Executes REQ_NOTIFY_CQ. An own ring has an arm word for that.
    pub(crate) fn request_notify(&mut self, flags: NotifyFlags) {
        if let Self::Virtqueue { memory, queue } = self {
            queue.request_notify(memory, flags);
        }
    }

    /// Lets the driver see what was pushed, and returns whether the event, or the interrupt, is
    /// due. Also the answer to the CQ's doorbell.
    #[inline]
    #[must_use = "an event that is due is fired only once"]
    pub(crate) fn publish(&mut self) -> bool {
        match self {
            Self::Own { memory, ring } => ring.publish(memory),
            Self::Virtqueue { memory, queue } => queue.publish(memory),
        }
    }

    /// Whether an access failed because the memory is gone or, of a virtqueue, was never there.
    #[inline]
    pub(crate) fn lost(&self) -> bool {
        match self {
            Self::Own { memory, .. } => memory.lost(),
            Self::Virtqueue { memory, .. } => memory.lost(),
        }
    }
}
