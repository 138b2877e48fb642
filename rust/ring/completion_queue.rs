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

/// One element of a completion queue that the device has filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The slot that holds the CQE.
    pub slot: u16,
}

/// Consumer of a completion queue.
///
/// All slots are the device's but those between [`peek`](Self::peek) and [`give_back`](Self::give_back).
#[derive(Debug)]
pub struct CompletionQueue {
    layout: RingLayout,
    slots: u16,
    /// Position of the next entry of the used ring.
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

    /// The oldest completion that has not been given back, or `None` when the queue is empty.
    ///
    /// # Errors
    ///
    /// [`RingError::IndexJump`] or [`RingError::BadSlot`] if the used ring makes no sense. The queue is of no use
    /// from then on.
    #[inline]
    pub fn peek<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
    ) -> Result<Option<Completion>, RingError> {
        if self.next == self.seen && !self.look(memory)? {
            return Ok(None);
        }
        self.entry(memory, self.next).map(Some)
    }

    /// Whether all completions before `used.idx` `index` were given back.
    #[inline]
    pub fn is_at(&self, index: u16) -> bool {
        self.next == index
    }

    /// Gives the slot of `completion`, the one that [`peek`](Self::peek) returned last, back. The device can use it
    /// after the next [`publish`](Self::publish).
    #[inline]
    pub fn give_back<M: RingMemory + ?Sized>(&mut self, memory: &M, completion: Completion) {
        // The available ring always holds the rest of the slots, so that its end, a whole ring after `next`, has the
        // index of `next`.
        let entry = self.layout.avail_ring(self.next);
        memory.store_u16(entry, completion.slot.to_le());
        self.next = self.next.wrapping_add(1);
    }

    /// Lets the device have every slot that was given back, once a batch of completions.
    #[inline]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        // A consumer that polls an empty queue leaves the device's cache line alone.
        if self.published != self.next {
            self.published = self.next;
            let avail = self.next.wrapping_add(self.slots);
            memory.store_u16_release(self.layout.avail_idx(), avail.to_le());
        }
    }

    /// Calls `visit` with each completion that has not been given back, oldest first. They stay where they are: to
    /// kill one, its owner overwrites the CQE with one that polling skips.
    ///
    /// # Errors
    ///
    /// As [`peek`](Self::peek).
    pub fn for_each_unpolled<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        mut visit: impl FnMut(Completion),
    ) -> Result<(), RingError> {
        self.look(memory)?;
        let mut position = self.next;
        while position != self.seen {
            visit(self.entry(memory, position)?);
            position = position.wrapping_add(1);
        }
        Ok(())
    }

    /// Asks for a completion event: `kind` says whether any completion or only a solicited one (errors are) causes it.
    /// With `report_missed`, completions that are there already are reported instead of waited for.
    #[inline]
    pub fn arm<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        kind: ArmKind,
        report_missed: bool,
    ) -> Armed {
        let missed_after = report_missed.then_some(self.next);
        self.arm.arm(&self.layout, memory, kind, missed_after)
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

    /// A completion event for this queue was received: the next [`arm`](Self::arm) asks for another. Called before
    /// the consumer is told, with the queue's lock held.
    #[inline]
    pub fn event_received(&mut self) {
        self.arm.event_received();
    }

    /// Reads used.idx again and checks it. Returns whether there are completions.
    #[inline]
    fn look<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<bool, RingError> {
        let used = u16::from_le(memory.load_u16_acquire(self.layout.used_idx()));
        let fresh = used.wrapping_sub(self.next);
        if fresh > self.slots || fresh < self.seen.wrapping_sub(self.next) {
            return Err(RingError::IndexJump);
        }
        self.seen = used;
        Ok(fresh != 0)
    }

    /// The used ring's entry for `position`, which lies before `seen`.
    #[inline]
    fn entry<M: RingMemory + ?Sized>(
        &self,
        memory: &M,
        position: u16,
    ) -> Result<Completion, RingError> {
        let entry = self.layout.used_ring(position);
        let id = u32::from_le(memory.load_u32(entry));
        if id >= u32::from(self.slots) {
            return Err(RingError::BadSlot);
        }
        Ok(Completion { slot: id as u16 })
    }
}
