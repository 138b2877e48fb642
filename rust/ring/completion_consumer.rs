// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Polling side of a completion queue, without arming.

use super::abi::ring::RingLayout;
use super::RingError;
use super::RingMemory;

/// Consumer of the completions in one ring.
///
/// The completion at position `p` is in slot `p` modulo the number of slots. Its slot is the
/// consumer's from its publication by the device until the next [`publish`](Self::publish) after it
/// was [taken](Self::take).
#[derive(Debug)]
pub struct CompletionConsumer {
    layout: RingLayout,
    /// Position of the next completion.
    next: u32,
    /// The producer's position as last read and checked.
    seen: u32,
    /// `next` as of the last publication.
    published: u32,
}

impl CompletionConsumer {
    /// The consumer of a ring that is all zeroes.
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// The consumer of a ring whose two sides are both at `position`.
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self {
            layout,
            next: position,
            seen: position,
            published: position,
        }
    }

    /// Where the parts of the ring lie.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Position of the next completion.
    #[inline]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// The producer's position as the consumer knows it.
    #[inline]
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// The producer's position as it is now. It makes no sense if it is further from
    /// [`next`](Self::next) than the ring is long.
    #[inline]
    pub fn produced<M: RingMemory + ?Sized>(layout: &RingLayout, memory: &M) -> u32 {
        u32::from_le(memory.load_device_acquire(layout))
    }

    /// The position of the oldest completion, or `None` when the queue is empty. Its CQE is at
    /// [`RingLayout::slot`] of the position. `show` is called with the producer's position if that
    /// had to be looked at and there is a new one.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] if the producer's position makes no sense.
    #[inline]
    pub fn peek<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        show: impl FnOnce(u32),
    ) -> Result<Option<u32>, RingError> {
        let position = self.next;
        if position == self.seen {
            let produced = Self::produced(&self.layout, memory);
            if !self.layout.holds(produced.wrapping_sub(position)) {
                return match produced == position {
                    true => Ok(None),
                    false => Err(RingError::PositionJump),
                };
            }
            self.seen = produced;
            show(produced);
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
    pub fn take<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u32>, RingError> {
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
            memory.store_owner_release(&self.layout, self.next.to_le());
        }
    }

    /// Calls `visit` with the position of each completion before position `end` that has not been
    /// taken, oldest first. They stay where they are: to drop one, its owner overwrites the
    /// CQE with one that polling skips. There is nothing to visit if the consumer has passed `end`.
    pub fn for_each_before(&self, end: u32, mut visit: impl FnMut(u32)) {
        let unpolled = end.wrapping_sub(self.next);
        if unpolled <= self.layout.slots() {
            for ahead in 0..unpolled {
                visit(self.next.wrapping_add(ahead));
            }
        }
    }

    /// An event told of all completions before position `end`: they need no look to be known.
    #[inline]
    pub(super) fn know(&mut self, end: u32) {
        // Else it makes no sense, as polling will find.
        if end.wrapping_sub(self.next) <= self.layout.slots() {
            self.seen = end;
        }
    }
}
