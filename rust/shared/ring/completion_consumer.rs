// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Polling side of a completion queue, without arming.

use super::abi::ring::RingLayout;
use super::RingError;
use super::RingMemory;

/// Consumer of the completions of one ring.
///
/// The completion at position `p` is in slot `p` modulo the number of slots. The consumer owns the
/// slot from the completion's publication until the first [`publish`](Self::publish) after the
/// completion is [taken](Self::take).
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
    /// The consumer of a zeroed ring.
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// The consumer of a ring in which both sides are at `position`.
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self {
            layout,
            next: position,
            seen: position,
            published: position,
        }
    }

    /// Offsets of the parts of the ring.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Position of the next completion.
    #[inline]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// The producer's position, as last read.
    #[inline]
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// Reads the producer's position. The position is invalid if it is ahead of
    /// [`next`](Self::next) by more than the ring's length.
    #[inline]
    pub fn produced<M: RingMemory + ?Sized>(layout: &RingLayout, memory: &M) -> u32 {
        u32::from_le(memory.load_device_acquire(layout))
    }

    /// The position of the oldest completion, or `None` if the queue is empty. Its CQE is at
    /// [`RingLayout::slot`] of the position. If a new position of the producer was read, `show` is
    /// called with that position.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] if the producer's position is invalid.
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

    /// Takes the completion that [`peek`](Self::peek) has just returned. Its CQE stays in the ring
    /// until the next [`publish`](Self::publish).
    #[inline]
    pub fn advance(&mut self) {
        debug_assert_ne!(self.next, self.seen);
        self.next = self.next.wrapping_add(1);
    }

    /// [Finds](Self::peek) the oldest completion and [takes](Self::advance) it.
    ///
    /// # Errors
    ///
    /// Errors of [`peek`](Self::peek).
    #[inline]
    pub fn take<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u32>, RingError> {
        let position = self.peek(memory, |_| ())?;
        if position.is_some() {
            self.advance();
        }
        Ok(position)
    }

    /// Gives the slots of all taken completions back to the device, with one store for the batch.
    #[inline]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        // A poll of an empty queue does not touch the device's cache line.
        if self.published != self.next {
            self.published = self.next;
            memory.store_owner_release(&self.layout, self.next.to_le());
        }
    }

    /// Calls `visit` with the position of each untaken completion before position `end`, oldest
    /// first. The completions stay in the ring: to drop a completion, the owner overwrites its CQE
    /// with a CQE that polling skips. If the consumer is beyond `end`, there is nothing to visit.
    pub fn for_each_before(&self, end: u32, mut visit: impl FnMut(u32)) {
        let unpolled = end.wrapping_sub(self.next);
        if unpolled <= self.layout.slots() {
            for ahead in 0..unpolled {
                visit(self.next.wrapping_add(ahead));
            }
        }
    }

    /// Notes that an event announced all completions before position `end`.
    #[inline]
    pub(super) fn know(&mut self, end: u32) {
        // An invalid position is ignored: polling reports it.
        if end.wrapping_sub(self.next) <= self.layout.slots() {
            self.seen = end;
        }
    }
}
