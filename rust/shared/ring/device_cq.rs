// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Device side of a completion queue.

use super::abi::ring::RingLayout;
use super::ArmLatch;
use super::ArmLatchState;
use super::RingError;
use super::RingMemory;

/// Producer of completions.
#[derive(Debug)]
pub struct DeviceCq {
    layout: RingLayout,
    /// Position after the last CQE, published or not.
    produced: u32,
    /// The producer's position, as published to the driver.
    published: u32,
    /// The consumer's position as last read and checked.
    consumed: u32,
    latch: ArmLatch,
}

impl DeviceCq {
    /// The device side of a zeroed ring.
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// The device side of a ring in which both sides are at `position`.
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self {
            latch: ArmLatch::starting_at(layout.slots(), position),
            layout,
            produced: position,
            published: position,
            consumed: position,
        }
    }

    /// The device side of a ring, resumed from `state`. The next [`publish`](Self::publish)
    /// publishes the CQEs that were pushed before.
    pub const fn resumed(layout: RingLayout, state: &ArmLatchState) -> Self {
        // CAST: the low bits are the 32-bit position.
        let produced = state.position as u32;
        Self {
            latch: ArmLatch::resumed(layout.slots(), state),
            produced,
            published: produced.wrapping_sub(1),
            // The ring is treated as full until the consumer's position is read.
            consumed: produced.wrapping_sub(layout.slots()),
            layout,
        }
    }

    /// The state from which the device side can be resumed: the event that was requested last, and
    /// whether it was sent.
    pub const fn state(&self) -> ArmLatchState {
        self.latch.state()
    }

    /// Switches to the start of another ring, which has this layout. All pushed CQEs must be
    /// published.
    pub fn moved(&mut self, layout: RingLayout) {
        let mut next = Self::new(layout);
        next.latch.answered(&self.latch);
        *self = next;
    }

    /// The producer's position, as published to the driver.
    #[inline]
    pub fn published(&self) -> u32 {
        self.published
    }

    /// Number of CQEs whose slots the driver has not given back.
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] if the consumer's position is invalid.
    #[inline]
    pub fn unpolled<M: RingMemory + ?Sized>(&self, memory: &M) -> Result<u32, RingError> {
        let consumed = u32::from_le(memory.load_u32_acquire(self.layout.owner()));
        let unpolled = self.produced.wrapping_sub(consumed);
        if unpolled > self.layout.slots() {
            return Err(RingError::PositionJump);
        }
        Ok(unpolled)
    }

    /// Writes a CQE into the next slot. `solicited` is true if the sender requested a solicited
    /// event, and for every error. The driver sees the CQE after the next
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// [`RingError::Overflow`] if no slot is free, and [`RingError::PositionJump`] if the
    /// consumer's position is invalid. Nothing is written then, and the CQ must not be used any
    /// more.
    #[inline]
    pub fn push<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        cqe: &[u8],
        solicited: bool,
    ) -> Result<(), RingError> {
        debug_assert!(cqe.len() <= self.layout.slot_size() as usize);
        if self.produced.wrapping_sub(self.consumed) == self.layout.slots() {
            let unpolled = self.unpolled(memory)?;
            if unpolled == self.layout.slots() {
                return Err(RingError::Overflow);
            }
            self.consumed = self.produced.wrapping_sub(unpolled);
        }
        memory.write(self.layout.slot(self.produced), cqe);
        self.produced = self.produced.wrapping_add(1);
        self.latch.record(solicited);
        Ok(())
    }

    /// Makes all pushed CQEs visible to the driver, with one store for the batch. Returns whether
    /// the completion event is due. Also called when the CQ's doorbell rings.
    #[inline]
    #[must_use = "an event that is due is fired only once"]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        if self.published != self.produced {
            self.published = self.produced;
            memory.store_u32_release(self.layout.device(), self.produced.to_le());
        }
        // The driver stores the arm word and then loads this position, so one of the two sides sees
        // the other's store.
        memory.full_barrier();
        let word = u64::from_le(memory.load_u64(self.layout.arm()));
        self.latch.event_due(word)
    }
}
