// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Polling side of a completion queue, without arming.

use super::abi::ring::RingLayout;
use super::offer_every_slot;
use super::RingError;
use super::RingMemory;

/// Consumer of the completions in one ring.
///
/// All slots are the device's but those between [`take`](Self::take) and
/// [`publish`](Self::publish). The device takes them in the order in which they were made available
/// and completes in the same order, so the completion at position `p` is in slot `p` modulo the
/// number of slots: the ring of available slot numbers never changes, and the entries of the used
/// ring say nothing new.
#[derive(Debug)]
pub struct CompletionConsumer {
    layout: RingLayout,
    slots: u16,
    /// Position of the next completion.
    next: u16,
    /// used.idx as last read and checked.
    seen: u16,
    /// `next` as of the last publication.
    published: u16,
}

impl CompletionConsumer {
    /// Starts a queue in `memory`, which is all zeroes and not yet known to the device, and makes
    /// all its slots available.
    pub fn new<M: RingMemory + ?Sized>(layout: RingLayout, memory: &M) -> Self {
        let slots = offer_every_slot(&layout, memory);
        memory.store_u16_release(layout.avail_idx(), slots.to_le());
        Self {
            layout,
            slots,
            next: 0,
            seen: 0,
            published: 0,
        }
    }

    /// Where the parts of the ring lie.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Position of the next completion.
    #[inline]
    pub fn next(&self) -> u16 {
        self.next
    }

    /// used.idx as the consumer knows it.
    #[inline]
    pub fn seen(&self) -> u16 {
        self.seen
    }

    /// used.idx as it is now. It makes no sense if it is further from [`next`](Self::next) than the
    /// ring is long.
    #[inline]
    pub fn used_idx<M: RingMemory + ?Sized>(layout: &RingLayout, memory: &M) -> u16 {
        u16::from_le(memory.load_u16_acquire(layout.used_idx()))
    }

    /// The position of the oldest completion, or `None` when the queue is empty. Its CQE is at
    /// [`RingLayout::slot`] of the position. `show` is called with used.idx if that had to be
    /// looked at and there is a new one.
    ///
    /// # Errors
    ///
    /// [`RingError::IndexJump`] if `used.idx` makes no sense.
    #[inline]
    pub fn peek<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        show: impl FnOnce(u16),
    ) -> Result<Option<u16>, RingError> {
        let position = self.next;
        if position == self.seen {
            let used = Self::used_idx(&self.layout, memory);
            if used == position {
                return Ok(None);
            }
            if used.wrapping_sub(position) > self.slots {
                return Err(RingError::IndexJump);
            }
            self.seen = used;
            show(used);
        }
        Ok(Some(position))
    }

    /// Takes the completion that [`peek`](Self::peek) has just found. The CQE stays where it is
    /// until the next [`publish`](Self::publish).
    #[inline]
    pub fn advance(&mut self) {
        debug_assert_ne!(self.next, self.seen);
        self.next = self.next.wrapping_add(1);
    }

    /// [Looks](Self::peek) for the oldest completion and [takes](Self::advance) it.
    ///
    /// # Errors
    ///
    /// As [`peek`](Self::peek).
    #[inline]
    pub fn take<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u16>, RingError> {
        let position = self.peek(memory, |_| ())?;
        if position.is_some() {
            self.advance();
        }
        Ok(position)
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

    /// Calls `visit` with the position of each completion before `end`, a used.idx, that has not
    /// been taken, oldest first. They stay where they are: to drop one, its owner overwrites the
    /// CQE with one that polling skips. There is nothing to visit if the consumer has passed `end`.
    pub fn for_each_before(&self, end: u16, mut visit: impl FnMut(u16)) {
        let unpolled = end.wrapping_sub(self.next);
        if unpolled <= self.slots {
            for ahead in 0..unpolled {
                visit(self.next.wrapping_add(ahead));
            }
        }
    }

    /// An event told of all completions before `used`: they need no look to be known.
    #[inline]
    pub(super) fn know(&mut self, used: u16) {
        // Else it makes no sense, as polling will find.
        if used.wrapping_sub(self.next) <= self.slots {
            self.seen = used;
        }
    }
}
