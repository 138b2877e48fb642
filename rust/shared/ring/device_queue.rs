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
    /// Number of completed work requests, which may complete in any order.
    done: u32,
    /// Whether the driver may ring the doorbell for the work request at `next` or for a later work
    /// request.
    awaits_doorbell: bool,
}

/// Positions of the device side of a ring: enough for another process to resume it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePositions {
    /// Number of completed work requests.
    pub done: u32,
    /// Position of the next work request.
    pub next: u32,
}

impl DevicePositions {
    /// Number of work requests that were fetched and are not complete.
    #[inline]
    pub const fn outstanding(&self) -> u32 {
        self.next.wrapping_sub(self.done)
    }
}

impl DeviceQueue {
    /// The device side of a zeroed ring.
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// The device side of a ring in which both sides are at `position`.
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self {
            layout,
            next: position,
            seen: position,
            done: position,
            // A zeroed doorbell word requests the doorbell at position 0.
            awaits_doorbell: true,
        }
    }

    /// The device side of a ring, resumed at `positions`.
    pub const fn resumed(layout: RingLayout, positions: DevicePositions) -> Self {
        Self {
            done: positions.done,
            ..Self::starting_at(layout, positions.next)
        }
    }

    /// The device's positions in the ring.
    #[inline]
    pub const fn positions(&self) -> DevicePositions {
        DevicePositions {
            done: self.done,
            next: self.next,
        }
    }

    /// Offsets of the parts of the ring.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Number of work requests that were fetched and are not complete.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.positions().outstanding()
    }

    #[inline]
    fn produced<M: RingMemory + ?Sized>(&self, memory: &M) -> u32 {
        u32::from_le(memory.load_u32_acquire(self.layout.owner()))
    }

    /// Maximum number of posted work requests that wait to be fetched.
    #[inline]
    fn room(&self) -> u32 {
        self.layout.slots() - self.outstanding()
    }

    /// Number of work requests posted but not yet fetched. At most the number of slots without
    /// outstanding work requests, even if the producer's position is invalid.
    #[inline]
    pub fn available<M: RingMemory + ?Sized>(&self, memory: &M) -> u32 {
        let ahead = self.produced(memory).wrapping_sub(self.next);
        ahead.min(self.room())
    }

    /// The position of the next work request, without fetching it, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] if the producer's position is invalid.
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

    /// Fetches the work request that [`peek`](Self::peek) has just returned.
    #[inline]
    pub(super) fn advance(&mut self) {
        debug_assert_ne!(self.next, self.seen);
        self.next = self.next.wrapping_add(1);
    }

    /// Fetches the next work request and returns its position, or `None` if there is none. At most
    /// as many work requests are outstanding as the ring has slots.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] if the producer's position is invalid; the device's position
    /// does not change.
    #[inline]
    pub fn fetch<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u32>, RingError> {
        let position = self.peek(memory)?;
        if position.is_some() {
            self.advance();
        }
        Ok(position)
    }

    /// Completes a fetched work request. The owner may reuse its slot once it has polled the CQE.
    #[inline]
    pub fn complete(&mut self) {
        debug_assert_ne!(self.outstanding(), 0);
        self.done = self.done.wrapping_add(1);
    }

    /// Requests a doorbell for the next work request. Returns whether a work request is posted
    /// already. The device must then serve it before it sleeps, since no doorbell will ring for it.
    #[must_use = "work requests that are posted already cause no doorbell"]
    pub fn enable_doorbell<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        self.awaits_doorbell = true;
        memory.store_u32(self.layout.device(), self.next.to_le());
        // The driver stores its position and then loads this doorbell position, so one of the two
        // sides sees the other's store.
        memory.full_barrier();
        self.next != self.produced(memory)
    }

    /// Turns doorbells off while the device polls the queue, for the next 2³² − 1 work
    /// requests.
    pub fn suppress_doorbell<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        if self.awaits_doorbell {
            self.awaits_doorbell = false;
            memory.store_u32(self.layout.device(), self.next.wrapping_sub(1).to_le());
        }
    }

    /// Switches to another ring, with `layout` and at least as many slots. The driver has copied
    /// the work requests not yet fetched to the same positions.
    pub(super) fn moved(&mut self, layout: RingLayout) {
        debug_assert!(layout.slots() >= self.layout.slots());
        self.layout = layout;
        self.awaits_doorbell = true;
    }

    /// Counts all posted work requests as complete, without reading them (QP state RESET). The
    /// driver must not post until the reset is complete. Outstanding work requests are dropped.
    pub fn reset<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        *self = Self {
            awaits_doorbell: self.awaits_doorbell,
            ..Self::starting_at(self.layout, self.produced(memory))
        };
    }
}
