// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Device side of a completion queue.

use super::abi::ring::RingLayout;
use super::slot_count;
use super::ArmLatch;
use super::DeviceQueue;
use super::RingError;
use super::RingMemory;

/// Producer of completions.
#[derive(Debug)]
pub struct DeviceCq {
    queue: DeviceQueue,
    latch: ArmLatch,
}

impl DeviceCq {
    /// The device side of a new completion queue.
    pub const fn new(layout: RingLayout) -> Self {
        Self {
            latch: ArmLatch::new(slot_count(&layout)),
            queue: DeviceQueue::new(layout),
        }
    }

    /// Goes on in another ring, of which the layout is this, from its beginning. What was pushed must be published.
    pub fn moved(&mut self, layout: RingLayout) {
        self.latch.moved(slot_count(&layout));
        self.queue = DeviceQueue::new(layout);
    }

    /// used.idx as the driver sees it.
    #[inline]
    pub fn used_index(&self) -> u16 {
        self.queue.used_index()
    }

    /// Number of slots that the driver has made available and that are not taken yet.
    #[inline]
    pub fn available<M: RingMemory + ?Sized>(&self, memory: &M) -> u16 {
        self.queue.available(memory)
    }

    /// Writes a CQE into the next slot. `solicited` is true for completions that the sender marked so and for every
    /// error. The driver sees the CQE after the next [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// [`RingError::Overflow`] when the driver has left no slot, and the errors of [`DeviceQueue::fetch`]. Nothing was
    /// written then, and the CQ is dead.
    #[inline]
    pub fn push<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        cqe: &[u8],
        solicited: bool,
    ) -> Result<(), RingError> {
        debug_assert!(cqe.len() <= self.queue.layout().slot_size() as usize);
        let slot = self.queue.fetch(memory)?.ok_or(RingError::Overflow)?;
        memory.write(self.queue.layout().slot(slot), cqe);
        self.queue.give_back(memory, slot, cqe.len() as u32);
        self.latch.record(solicited);
        Ok(())
    }

    /// Lets the driver see every CQE that was pushed, once a batch, and returns whether the completion event is due.
    /// Also the answer to the CQ's doorbell.
    #[inline]
    #[must_use = "an event that is due is fired only once"]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        self.queue.publish(memory);
        // The driver stores the arm word and then looks at used.idx: one of the two sees the other's store.
        memory.full_barrier();
        let word = u32::from_le(memory.load_u32(self.queue.layout().arm()));
        self.latch.event_due(word)
    }
}
