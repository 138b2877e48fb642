// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Virtqueue mode: queues that are virtqueues of the device.
//!
//! A split virtqueue has an available ring and a used ring with 16-bit indices. Each entry is the
//! head of a chain of descriptors, which hold the addresses of buffers (virtio 1.3, 2.7). The
//! driver notifies the device as virtio prescribes.

use std::cell::Cell;
use std::sync::atomic::{fence, AtomicBool, Ordering};

use dma::DmaView;
use virtio_rdma_abi::ctrl::NotifyFlags;
use virtio_rdma_abi::ring::{ArmKind, ArmWord, WORK_SLOTS};
use virtio_rdma_ring::{ArmLatch, ArmLatchState, DevicePositions, RingError};
use virtqueue::{Chain, ChainError, Split};

use crate::error::{power_of_two, within, Result, What};

/// Maximum number of descriptors of a WQE or CQE buffer. Twice the number that is needed if the
/// header and each SGE have a descriptor of their own. To follow a longer chain would cost more
/// than the turn is charged.
const MAX_DESCRIPTORS: u16 = 64;

/// A virtqueue that carries work requests or completions.
#[derive(Debug)]
pub(crate) struct VirtqueueMem {
    number: u16,
    split: Split,
    /// Whether the driver has reset the queue: the device must not access its memory any more.
    gone: AtomicBool,
}

impl VirtqueueMem {
    /// Virtqueue `number`, whose rings are at `split`.
    ///
    /// # Errors
    ///
    /// Its size is not permitted for a queue of work requests.
    pub(crate) fn new(number: u16, split: Split) -> Result<Self> {
        within(What::VirtqueueSize, split.size.into(), &WORK_SLOTS)?;
        power_of_two(What::VirtqueueSize, split.size)?;
        Ok(Self {
            number,
            split,
            gone: AtomicBool::new(false),
        })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Called when the driver resets the virtqueue. Views created after this call access no memory.
    pub(crate) fn retire(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Tells the driver that it need not notify the device of new buffers.
    pub(crate) fn suppress_notifications(
        &self,
        view: &DmaView,
    ) -> std::result::Result<(), ChainError> {
        Ok(self.split.set_quiet(view, true)?)
    }
}

/// Access to the memory of a virtqueue. Exists only while a view of guest memory is held.
///
/// After a bad address or descriptor, or a reset of the queue, loads return 0, stores are dropped,
/// and [`lost`](Self::lost) returns true. The queue's memory is not accessed any more.
pub(crate) struct VirtqueueView<'a> {
    queue: &'a VirtqueueMem,
    view: &'a DmaView,
    lost: Cell<bool>,
}

impl<'a> VirtqueueView<'a> {
    /// Access to `queue` through `view`.
    pub(super) fn new(queue: &'a VirtqueueMem, view: &'a DmaView) -> Self {
        Self {
            queue,
            view,
            lost: Cell::new(queue.gone.load(Ordering::Acquire)),
        }
    }

    /// Whether an access failed.
    pub(super) fn lost(&self) -> bool {
        self.lost.get()
    }

    /// Calls `access` unless an earlier access failed. Returns the default value on failure.
    fn attempt<R: Default, E: std::fmt::Display>(
        &self,
        access: impl FnOnce(&Split, &'a DmaView) -> std::result::Result<R, E>,
    ) -> R {
        if self.lost.get() {
            return R::default();
        }
        access(&self.queue.split, self.view).unwrap_or_else(|error| {
            tracing::debug!("virtqueue {}: {error}", self.queue.number);
            self.lost.set(true);
            R::default()
        })
    }

    fn available_index(&self) -> u16 {
        self.attempt(Split::load_available_index)
    }

    fn available_entry(&self, position: u16) -> u16 {
        self.attempt(|split, view| split.load_available_entry(view, position))
    }

    fn store_used_entry(&self, position: u16, head: u16, len: u32) {
        self.attempt(|split, view| split.store_used_entry(view, position, head, len));
    }

    fn store_used_index(&self, index: u16) {
        self.attempt(|split, view| split.store_used_index(view, index));
    }

    /// Copies the content of the chain at `head` into `bytes` and zeroes the rest. Returns the
    /// number of bytes copied.
    pub(super) fn gather(&self, head: u16, bytes: &mut [u8]) -> usize {
        let present = self.attempt(|split, view| chain(split, view, head).gather(bytes));
        bytes[present..].fill(0);
        present
    }

    /// Writes `bytes` to the chain at `head`.
    fn scatter(&self, head: u16, bytes: &[u8]) {
        self.attempt(|split, view| chain(split, view, head).scatter(bytes));
    }
}

fn chain<'a>(split: &Split, view: &'a DmaView, head: u16) -> Chain<'a> {
    split.chain(view, head).at_most(MAX_DESCRIPTORS)
}

/// Consumer of the chains that a driver makes available.
#[derive(Debug)]
pub(crate) struct VirtqueueConsumer {
    size: u16,
    /// Position of the next entry of the available ring.
    next: u16,
    /// The available ring's index as last read and checked.
    seen: u16,
    /// Position after the last entry written to the used ring, published or not.
    used: u16,
    /// The used ring's index, as published to the driver.
    published: u16,
}

impl VirtqueueConsumer {
    /// The consumer of a queue that was just enabled.
    pub(super) fn new(queue: &VirtqueueMem) -> Self {
        Self {
            size: queue.split.size,
            next: 0,
            seen: 0,
            used: 0,
            published: 0,
        }
    }

    /// Numbers of chains that were given back and fetched, modulo 2^16.
    pub(super) fn positions(&self) -> DevicePositions {
        let next = u32::from(self.next);
        let outstanding = self.next.wrapping_sub(self.used);
        DevicePositions {
            done: next.wrapping_sub(outstanding.into()),
            next,
        }
    }

    /// Number of descriptors.
    pub(super) fn size(&self) -> u16 {
        self.size
    }

    /// Largest number of chains that may be available: the queue's size less the number of chains
    /// that were fetched and not yet given back.
    fn room(&self) -> u16 {
        self.size - self.next.wrapping_sub(self.used)
    }

    /// Number of available chains that are not yet fetched. At most the queue's size, even if the
    /// available ring is corrupt.
    pub(super) fn available(&self, view: &VirtqueueView<'_>) -> u16 {
        let ahead = view.available_index().wrapping_sub(self.next);
        ahead.min(self.room())
    }

    /// Whether chains are available. Reads the driver's index after all earlier stores.
    pub(super) fn look_again(&self, view: &VirtqueueView<'_>) -> bool {
        fence(Ordering::SeqCst);
        self.next != view.available_index()
    }

    /// Fetches the head of the next available chain, or returns `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] or [`RingError::BadSlot`] if the available ring is corrupt. The
    /// consumer's position does not change.
    pub(super) fn fetch(
        &mut self,
        view: &VirtqueueView<'_>,
    ) -> std::result::Result<Option<u16>, RingError> {
        if self.next == self.seen {
            let index = view.available_index();
            if index.wrapping_sub(self.next) > self.room() {
                return Err(RingError::PositionJump);
            }
            self.seen = index;
            if self.next == self.seen {
                return Ok(None);
            }
        }
        let head = view.available_entry(self.next);
        if head >= self.size {
            return Err(RingError::BadSlot);
        }
        self.next = self.next.wrapping_add(1);
        Ok(Some(head))
    }

    /// Gives a fetched chain back, after `len` bytes were written to its buffers. The driver sees
    /// the chain after the next [`publish`](Self::publish).
    pub(super) fn give_back(&mut self, view: &VirtqueueView<'_>, head: u16, len: u32) {
        debug_assert_ne!(self.next, self.used);
        view.store_used_entry(self.used, head, len);
        self.used = self.used.wrapping_add(1);
    }

    /// Makes the chains that were given back visible to the driver.
    pub(super) fn publish(&mut self, view: &VirtqueueView<'_>) {
        if self.published != self.used {
            self.published = self.used;
            view.store_used_index(self.used);
        }
    }
}

/// How far the producer of a CQ and the driver are.
#[derive(Debug)]
pub(crate) struct CqProgress {
    /// Number of completions, modulo 2³².
    pub completions: u32,
    /// Number of completions that the driver has not polled; `None` if its position is invalid.
    pub unpolled: Option<u32>,
    /// The event that the driver requests.
    pub arm: ArmWord,
    /// The request that the device has answered.
    pub latch: ArmLatchState,
}

/// Producer of a CQ's completions. It writes them into the driver's buffers, in the order of the
/// available ring.
#[derive(Debug)]
pub(crate) struct VirtqueueCq {
    buffers: VirtqueueConsumer,
    /// Number of entries of the CQ: the driver makes that many buffers available.
    cqe: u32,
    /// Number of completions, modulo 2³².
    completed: u32,
    latch: ArmLatch,
    /// The request that REQ_NOTIFY_CQ made since the last interrupt, as an arm word.
    arm: ArmWord,
}

impl VirtqueueCq {
    /// The producer of a CQ of `cqe` entries whose virtqueue was just enabled.
    pub(super) fn new(queue: &VirtqueueMem, cqe: u32) -> Self {
        Self {
            buffers: VirtqueueConsumer::new(queue),
            cqe,
            completed: 0,
            latch: ArmLatch::starting_at(queue.split.size.into(), 0),
            arm: ArmWord {
                // A request with sequence 0 would count as answered.
                sequence: 1,
                kind: ArmKind::None,
                position: 0,
            },
        }
    }

    /// Writes a CQE into the next buffer. The driver sees it after the next
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// [`RingError::Overflow`] if there is no buffer, and the errors of
    /// [`VirtqueueConsumer::fetch`]. After an error the CQ must not be used any more.
    pub(super) fn push(
        &mut self,
        view: &VirtqueueView<'_>,
        cqe: &[u8],
        solicited: bool,
    ) -> std::result::Result<(), RingError> {
        let head = self.buffers.fetch(view)?.ok_or(RingError::Overflow)?;
        view.scatter(head, cqe);
        // LOSSLESS: `cqe` is far shorter than 4 GiB.
        self.buffers.give_back(view, head, cqe.len() as u32);
        self.completed = self.completed.wrapping_add(1);
        self.latch.record(solicited);
        Ok(())
    }

    /// How far the device and the driver are.
    pub(super) fn progress(&self, view: &VirtqueueView<'_>) -> CqProgress {
        let available = u32::from(self.buffers.available(view));
        CqProgress {
            completions: self.completed,
            unpolled: Some(self.cqe - available.min(self.cqe)),
            arm: self.arm,
            latch: self.latch.state(),
        }
    }

    /// Requests an interrupt for the next completion of the kind in `flags` that the driver has not
    /// polled yet. All pushed CQEs must be published.
    pub(super) fn request_notify(&mut self, view: &VirtqueueView<'_>, flags: NotifyFlags) {
        // A request for solicited completions does not replace a request for the next completion:
        // another thread may wait for any completion.
        if self.arm.kind != ArmKind::Next {
            self.arm.kind = if flags.contains(NotifyFlags::NEXT_COMPLETION) {
                ArmKind::Next
            } else {
                ArmKind::Solicited
            };
        }
        let available = u32::from(self.buffers.available(view));
        let with_driver = self.cqe - available.min(self.cqe);
        self.arm.position = self.completed.wrapping_sub(with_driver);
    }

    /// Makes all pushed CQEs visible to the driver. Returns whether the interrupt is due.
    pub(super) fn publish(&mut self, view: &VirtqueueView<'_>) -> bool {
        self.buffers.publish(view);
        let is_due = self.latch.event_due(self.arm.to_u64());
        if is_due {
            self.arm.kind = ArmKind::None;
            self.arm.sequence = self.arm.sequence.wrapping_add(1) & ArmWord::SEQUENCE_MASK;
        }
        is_due
    }
}
