// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Device side of a shared receive queue.

use super::abi::ring::RingLayout;
use super::DeviceQueue;
use super::RingError;
use super::RingMemory;

/// Consumer of the work requests of a shared receive queue.
#[derive(Debug)]
pub struct DeviceSharedQueue(DeviceQueue);

impl DeviceSharedQueue {
    /// The device side of a ring that is all zeroes.
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// The device side of a ring whose two sides are both at `position`.
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self(DeviceQueue::starting_at(layout, position))
    }

    /// Where the parts of the ring lie.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        self.0.layout()
    }

    /// As [`DeviceQueue::available`].
    #[inline]
    pub fn available<M: RingMemory + ?Sized>(&self, memory: &M) -> u32 {
        self.0.available(memory)
    }

    /// Takes the next work request and returns its slot, or `None` when there is none.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] or [`RingError::BadSlot`] if the ring makes no sense; the queue
    /// stays where it is.
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

    /// As [`DeviceQueue::complete`], in any order.
    #[inline]
    pub fn complete(&mut self) {
        self.0.complete();
    }

    /// As [`DeviceQueue::suppress_doorbell`].
    pub fn suppress_doorbell<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        self.0.suppress_doorbell(memory);
    }

    /// Goes on in another ring, of which the layout is this and which has no fewer slots. The
    /// driver has copied what was not fetched to the same positions there.
    pub fn moved(&mut self, layout: RingLayout) {
        self.0.moved(layout);
    }
}
