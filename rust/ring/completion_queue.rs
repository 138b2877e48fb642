// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Driver side of a completion queue.

use core::mem::replace;

use super::abi::ring::ArmKind;
use super::abi::ring::RingLayout;
use super::offer_every_slot;
use super::Arm;
use super::Armed;
use super::RingError;
use super::RingMemory;

/// Consumer of a completion queue.
///
/// All slots are the device's but those between [`take`](Self::take) and [`publish`](Self::publish). The device takes
/// them in the order in which they were made available and completes in the same order, so the completion at position `p`
/// is in slot `p` modulo the number of slots: the ring of available slot numbers never changes, and the entries of the
/// used ring say nothing new.
#[derive(Debug)]
pub struct CompletionQueue {
    layout: RingLayout,
    slots: u16,
    /// Position of the next completion.
    next: u16,
    /// used.idx as last read and checked.
    seen: u16,
    /// `next` as of the last publication.
    published: u16,
    arm: Arm,
}

impl CompletionQueue {
    /// Starts a queue in `memory`, which is all zeroes and not yet known to the device, and makes all its slots
    /// available.
    pub fn new<M: RingMemory + ?Sized>(layout: RingLayout, memory: &M) -> Self {
        let slots = offer_every_slot(&layout, memory);
        memory.store_u16_release(layout.avail_idx(), slots.to_le());
        Self {
            layout,
            slots,
            next: 0,
            seen: 0,
            published: 0,
            arm: Arm::new(),
        }
    }

    /// Where the parts of the ring lie.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Takes the oldest completion and returns its position, or `None` when the queue is empty. Its CQE is at
    /// [`RingLayout::slot`] of the position, and stays there until the next [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// [`RingError::IndexJump`] if `used.idx` makes no sense.
    #[inline]
    pub fn take<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u16>, RingError> {
        let position = self.next;
        if position == self.seen {
            let used = u16::from_le(memory.load_u16_acquire(self.layout.used_idx()));
            if used == position {
                return Ok(None);
            }
            if used.wrapping_sub(position) > self.slots {
                return Err(RingError::IndexJump);
            }
            self.seen = used;
        }
        self.next = position.wrapping_add(1);
        Ok(Some(position))
    }

    /// Whether all completions before `used.idx` `index` were taken.
    #[inline]
    pub fn is_at(&self, index: u16) -> bool {
        self.next == index
    }

    /// Lets the device have the slots of all completions that were taken, once a batch.
    #[inline]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        // A consumer that polls an empty queue leaves the device's cache line alone.
        if self.published != self.next {
            self.published = self.next;
            let avail = self.next.wrapping_add(self.slots);
            memory.store_u16_release(self.layout.avail_idx(), avail.to_le());
        }
    }

    /// Calls `visit` with the position of each completion that has not been taken, oldest first. They stay where they
    /// are: to kill one, its owner overwrites the CQE with one that polling skips.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    pub fn for_each_unpolled<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        mut visit: impl FnMut(u16),
    ) -> Result<(), RingError> {
        let used = u16::from_le(memory.load_u16_acquire(self.layout.used_idx()));
        let unpolled = used.wrapping_sub(self.next);
        if unpolled > self.slots || unpolled < self.seen.wrapping_sub(self.next) {
            return Err(RingError::IndexJump);
        }
        self.seen = used;
        for ahead in 0..unpolled {
            visit(self.next.wrapping_add(ahead));
        }
        Ok(())
    }

    /// Asks for a completion event: `kind` says whether any completion or only a solicited one (errors are) causes it.
    /// Completions that came since the consumer last looked, which is at polling and at an event, cause it too. With
    /// `report_missed`, completions that are there already are reported instead of waited for.
    #[inline]
    pub fn arm<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        kind: ArmKind,
        report_missed: bool,
    ) -> Armed {
        let missed_after = report_missed.then_some(self.next);
        self.arm
            .arm(&self.layout, memory, kind, self.seen, missed_after)
    }

    /// The queue goes on in `memory`, a ring that [`new`](Self::new) has made `next` in and that the device has moved to.
    /// It was drained up to the index that the old ring ends with. `missed` says that completions from there wait elsewhere
    /// to be polled. Returns whether the CQ's doorbell is to be rung.
    pub fn moved<M: RingMemory + ?Sized>(&mut self, next: Self, memory: &M, missed: bool) -> bool {
        let mut arm = replace(self, next).arm;
        let ring_doorbell = arm.moved(&self.layout, memory, missed);
        self.arm = arm;
        ring_doorbell
    }

    /// A completion event for this queue was received: the next [`arm`](Self::arm) asks for another, which those that are
    /// there already do not cause. Called before the consumer is told, with the queue's lock held.
    #[inline]
    pub fn event_received<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        self.arm.event_received();
        let used = u16::from_le(memory.load_u16_acquire(self.layout.used_idx()));
        // Else it makes no sense, as polling will find.
        if used.wrapping_sub(self.next) <= self.slots {
            self.seen = used;
        }
    }
}
