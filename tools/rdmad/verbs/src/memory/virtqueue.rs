// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! RFC mode: queues that are virtqueues of the transport.
//!
//! A split virtqueue has an available and a used ring with indices of 16 bits, and a chain of
//! descriptors with addresses where an own ring has a slot (virtio 1.3, 2.7). The driver notifies
//! as virtio says.

use std::cell::Cell;
use std::sync::atomic::{fence, AtomicBool, Ordering};

use dma::DmaView;
use virtio_rdma_abi::ctrl::NotifyFlags;
use virtio_rdma_abi::ring::{ArmKind, ArmWord, WORK_SLOTS};
use virtio_rdma_ring::{ArmLatch, RingError};
use virtqueue::{Chain, ChainError, Split};

use crate::error::{require, Result};

/// Descriptors of a WQE or CQE buffer at most: twice what header and SGEs need that have one each.
/// Longer chains would cost more than the turn they are charged for.
const MAX_DESCRIPTORS: u16 = 64;

/// A virtqueue that carries work requests or completions.
#[derive(Debug)]
pub(crate) struct VirtqueueMem {
    number: u16,
    split: Split,
    /// The driver has reset the queue: its memory is not ours any more.
    gone: AtomicBool,
}

impl VirtqueueMem {
    /// Virtqueue `number`, which lies at `split`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it has fewer entries than a queue of work requests can have, or more.
    pub(crate) fn new(number: u16, split: Split) -> Result<Self> {
        require(split.size.is_power_of_two() && WORK_SLOTS.contains(&split.size.into()))?;
        Ok(Self {
            number,
            split,
            gone: AtomicBool::new(false),
        })
    }

    /// Its number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// From now on a view that is made accesses nothing.
    pub(crate) fn retire(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Tells the driver that it need not notify of new buffers.
    pub(crate) fn suppress_notifications(
        &self,
        view: &DmaView,
    ) -> std::result::Result<(), ChainError> {
        Ok(self.split.set_quiet(view, true)?)
    }
}

/// Access to a virtqueue as long as a view of guest memory is held.
///
/// When an address or a descriptor is bad, or the driver has reset the queue, loads give 0, stores
/// vanish, and [`lost`](Self::lost) tells. Nothing of the queue is accessed any more then.
pub(crate) struct VirtqueueView<'a> {
    queue: &'a VirtqueueMem,
    view: &'a DmaView,
    lost: Cell<bool>,
}

impl<'a> VirtqueueView<'a> {
    /// Access through `view`.
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

    /// Does `access` unless one has failed.
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

    /// Fills `bytes` with what the chain at `head` holds, and zeroes behind it; returns how many
    /// bytes there were.
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
    /// Position after the last entry of the used ring, published or not.
    used: u16,
    /// The used ring's index as the driver sees it.
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

    /// Number of descriptors.
    pub(super) fn size(&self) -> u16 {
        self.size
    }

    /// Number of chains that may be available: those that were fetched and not given back are not.
    fn room(&self) -> u16 {
        self.size - self.next.wrapping_sub(self.used)
    }

    /// Number of chains that are available and were not fetched, as far as the available ring makes
    /// sense.
    pub(super) fn available(&self, view: &VirtqueueView<'_>) -> u16 {
        let ahead = view.available_index().wrapping_sub(self.next);
        ahead.min(self.room())
    }

    /// Whether chains are available, looked at after whatever the driver was told.
    pub(super) fn look_again(&self, view: &VirtqueueView<'_>) -> bool {
        fence(Ordering::SeqCst);
        self.next != view.available_index()
    }

    /// Takes the head of the next available chain, or `None` when there is none.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] or [`RingError::BadSlot`] if the available ring makes no sense;
    /// the queue stays where it is.
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

    /// Gives a fetched chain back after `len` bytes were written to it. The driver sees it after
    /// the next [`publish`](Self::publish).
    pub(super) fn give_back(&mut self, view: &VirtqueueView<'_>, head: u16, len: u32) {
        debug_assert_ne!(self.next, self.used);
        view.store_used_entry(self.used, head, len);
        self.used = self.used.wrapping_add(1);
    }

    /// Lets the driver see every chain that was given back.
    pub(super) fn publish(&mut self, view: &VirtqueueView<'_>) {
        if self.published != self.used {
            self.published = self.used;
            view.store_used_index(self.used);
        }
    }
}

/// Producer of completions, which are written into the driver's buffers in the order of the
/// available ring.
#[derive(Debug)]
pub(crate) struct VirtqueueCq {
    buffers: VirtqueueConsumer,
    /// Entries of the CQ, which are the buffers that its driver makes available.
    cqe: u32,
    /// Number of completions, which wraps.
    completed: u32,
    latch: ArmLatch,
    /// The requests of REQ_NOTIFY_CQ since the last interrupt.
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
                // 0 counts as answered.
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
    /// [`RingError::Overflow`] without a buffer, and those of [`VirtqueueConsumer::fetch`]. The CQ
    /// is dead then.
    pub(super) fn push(
        &mut self,
        view: &VirtqueueView<'_>,
        cqe: &[u8],
        solicited: bool,
    ) -> std::result::Result<(), RingError> {
        let head = self.buffers.fetch(view)?.ok_or(RingError::Overflow)?;
        view.scatter(head, cqe);
        // LOSSLESS: a CQE is short.
        self.buffers.give_back(view, head, cqe.len() as u32);
        self.completed = self.completed.wrapping_add(1);
        self.latch.record(solicited);
        Ok(())
    }

    /// Asks for an interrupt at the next completion that the driver has not polled yet and that is
    /// of this kind. All that was pushed is published.
    pub(super) fn request_notify(&mut self, view: &VirtqueueView<'_>, flags: NotifyFlags) {
        // Another thread may sleep for any completion: its wish is not narrowed.
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

    /// Lets the driver see every CQE that was pushed, and returns whether the interrupt is due.
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
