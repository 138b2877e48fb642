// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Device side of a shared receive queue.

use super::abi::ring::RingLayout;
use super::DevicePositions;
use super::DeviceQueue;
use super::RingError;
use super::RingMemory;

/// Consumer of the work requests of a shared receive queue.
#[derive(Debug)]
pub struct DeviceSharedQueue(DeviceQueue);

impl DeviceSharedQueue {
    /// The device side of a zeroed ring.
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// The device side of a ring in which both sides are at `position`.
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self(DeviceQueue::starting_at(layout, position))
    }

    /// The device side of a ring, resumed at `positions`.
    pub const fn resumed(layout: RingLayout, positions: DevicePositions) -> Self {
        Self(DeviceQueue::resumed(layout, positions))
    }

    /// The device's positions in the ring.
    #[inline]
    pub const fn positions(&self) -> DevicePositions {
        self.0.positions()
    }

    /// Offsets of the parts of the ring.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        self.0.layout()
    }

    /// See [`DeviceQueue::available`].
    #[inline]
    pub fn available<M: RingMemory + ?Sized>(&self, memory: &M) -> u32 {
        self.0.available(memory)
    }

    /// Fetches the next work request and returns its slot, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] or [`RingError::BadSlot`] if the ring is corrupt; the device's
    /// position does not change.
    #[inline]
    pub fn fetch<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u16>, RingError> {
        let Some(position) = self.0.peek(memory)? else {
            return Ok(None);
        };
        let layout = self.0.layout();
        let slot = u16::from_le(memory.load_u16(layout.order(position)));
        if u32::from(slot) >= layout.slots() {
            return Err(RingError::BadSlot);
        }
        self.0.advance();
        Ok(Some(slot))
    }

    /// See [`DeviceQueue::complete`]. Work requests may complete in any order.
    #[inline]
    pub fn complete(&mut self) {
        self.0.complete();
    }

    /// See [`DeviceQueue::suppress_doorbell`].
    pub fn suppress_doorbell<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        self.0.suppress_doorbell(memory);
    }

    /// Switches to another ring, with `layout` and at least as many slots. The driver has copied
    /// the work requests not yet fetched to the same positions.
    pub fn moved(&mut self, layout: RingLayout) {
        self.0.moved(layout);
    }
}
