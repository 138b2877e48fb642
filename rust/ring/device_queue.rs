// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Device side of a send or receive queue.

use super::abi::ring::RingLayout;
use super::RingError;
use super::RingMemory;

/// Consumer of the work requests that a driver posts.
#[derive(Debug)]
pub struct DeviceQueue {
    layout: RingLayout,
    /// Position of the next work request.
    next: u32,
    /// The producer's position as last read and checked.
    seen: u32,
    /// Number of work requests that are done since the queue began, in whatever order.
    done: u32,
    /// The driver may ring for the work request at `next` or a later one.
    awaits_doorbell: bool,
}

/// Where a device serves a ring: what it needs to go on in another process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePositions {
    /// Number of work requests that are done since the queue began.
    pub done: u32,
    /// Position of the next work request.
    pub next: u32,
}

impl DevicePositions {
    /// Number of work requests that were fetched and are not done.
    #[inline]
    pub const fn outstanding(&self) -> u32 {
        self.next.wrapping_sub(self.done)
    }
}

impl DeviceQueue {
    /// The device side of a ring that is all zeroes.
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// The device side of a ring whose two sides are both at `position`.
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self {
            layout,
            next: position,
            seen: position,
            done: position,
            // The zeroed word asks for the doorbell of position 0.
            awaits_doorbell: true,
        }
    }

    /// The device side of a ring that was served up to `positions`.
    pub const fn resumed(layout: RingLayout, positions: DevicePositions) -> Self {
        Self {
            done: positions.done,
            ..Self::starting_at(layout, positions.next)
        }
    }

    /// Where the ring is served.
    #[inline]
    pub const fn positions(&self) -> DevicePositions {
        DevicePositions {
            done: self.done,
            next: self.next,
        }
    }

    /// Where the parts of the ring lie.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Number of work requests that were fetched and are not done.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.next.wrapping_sub(self.done)
    }

    #[inline]
    fn produced<M: RingMemory + ?Sized>(&self, memory: &M) -> u32 {
        u32::from_le(memory.load_u32_acquire(self.layout.owner()))
    }

    /// Number of slots that may hold work requests which were not fetched.
    #[inline]
    fn room(&self) -> u32 {
        self.layout.slots() - self.outstanding()
    }

    /// Number of work requests that were posted and not fetched, as far as the producer's position
    /// makes sense.
    #[inline]
    pub fn available<M: RingMemory + ?Sized>(&self, memory: &M) -> u32 {
        let ahead = self.produced(memory).wrapping_sub(self.next);
        ahead.min(self.room())
    }

    /// The position of the next work request, or `None` when there is none. It stays the next one.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] if the producer's position makes no sense.
    #[inline]
    pub(super) fn peek<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
    ) -> Result<Option<u32>, RingError> {
        if self.next == self.seen {
            let produced = self.produced(memory);
            if produced.wrapping_sub(self.next) > self.room() {
                return Err(RingError::PositionJump);
            }
            self.seen = produced;
            if self.next == self.seen {
                return Ok(None);
            }
        }
        Ok(Some(self.next))
    }

    /// Counts the work request that [`peek`](Self::peek) has just found as fetched.
    #[inline]
    pub(super) fn advance(&mut self) {
        debug_assert_ne!(self.next, self.seen);
        self.next = self.next.wrapping_add(1);
    }

    /// Takes the next work request and returns its position, or `None` when there is none. At most
    /// as many as the ring has slots are outstanding at a time.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] if the producer's position makes no sense; the queue stays where
    /// it is.
    #[inline]
    pub fn fetch<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u32>, RingError> {
        let position = self.peek(memory)?;
        if position.is_some() {
            self.advance();
        }
        Ok(position)
    }

    /// A fetched work request is done: its owner may use the slot again once it has polled the CQE.
    #[inline]
    pub fn complete(&mut self) {
        debug_assert_ne!(self.outstanding(), 0);
        self.done = self.done.wrapping_add(1);
    }

    /// Asks for a doorbell at the next work request. Returns whether one is posted already, which a
    /// device that is about to leave the queue must then serve, as no doorbell will come for it.
    #[must_use = "work requests that are posted already cause no doorbell"]
    pub fn enable_doorbell<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        self.awaits_doorbell = true;
        memory.store_u32(self.layout.device(), self.next.to_le());
        // The driver stores its position and then looks at this one: one of the two sees the
        // other's store.
        memory.full_barrier();
        self.next != self.produced(memory)
    }

    /// Tells the driver that the queue is being polled: no doorbell is wanted for the next
    /// 4,294,967,295 work requests.
    pub fn suppress_doorbell<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        if self.awaits_doorbell {
            self.awaits_doorbell = false;
            memory.store_u32(self.layout.device(), self.next.wrapping_sub(1).to_le());
        }
    }

    /// Goes on in another ring, of which the layout is this and which has no fewer slots. The
    /// driver has copied what was not fetched to the same positions there.
    pub(super) fn moved(&mut self, layout: RingLayout) {
        debug_assert!(layout.slots() >= self.layout.slots());
        self.layout = layout;
        self.awaits_doorbell = true;
    }

    /// Counts all that was ever posted as done, without a look at it: QP state RESET. The driver
    /// posts nothing until it was told that the reset is done; work requests that are still
    /// outstanding here are forgotten.
    pub fn reset<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        *self = Self {
            awaits_doorbell: self.awaits_doorbell,
            ..Self::starting_at(self.layout, self.produced(memory))
        };
    }
}
