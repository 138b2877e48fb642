// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Device side of a ring.

use super::abi::ring::RingLayout;
use super::slot_count;
use super::RingError;
use super::RingMemory;

/// Consumer of the slots that a driver makes available, for queues of every kind.
#[derive(Debug)]
pub struct DeviceQueue {
    layout: RingLayout,
    slots: u16,
    /// Position of the next entry of the available ring.
    next: u16,
    /// avail.idx as last read and checked.
    seen: u16,
    /// Position after the last entry of the used ring, published or not.
    used: u16,
    /// used.idx as the driver sees it.
    published: u16,
}

impl DeviceQueue {
    /// The device side of a new ring.
    pub const fn new(layout: RingLayout) -> Self {
        Self {
            slots: slot_count(&layout),
            layout,
            next: 0,
            seen: 0,
            used: 0,
            published: 0,
        }
    }

    /// Where the parts of the ring lie.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// used.idx as the driver sees it.
    #[inline]
    pub fn used_index(&self) -> u16 {
        self.published
    }

    /// Number of slots that were fetched and not given back.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.next.wrapping_sub(self.used)
    }

    /// Number of slots that are available and were not fetched, as far as the available ring makes sense.
    #[inline]
    pub fn available<M: RingMemory + ?Sized>(&self, memory: &M) -> u16 {
        let avail = u16::from_le(memory.load_u16_acquire(self.layout.avail_idx()));
        avail
            .wrapping_sub(self.next)
            .min(self.slots - self.outstanding())
    }

    /// Takes the next available slot, or `None` when there is none. At most as many slots as the ring has are
    /// outstanding at a time.
    ///
    /// # Errors
    ///
    /// [`RingError::IndexJump`] or [`RingError::BadSlot`] if the available ring makes no sense; the queue stays where
    /// it is.
    #[inline]
    pub fn fetch<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u16>, RingError> {
        if self.next == self.seen {
            let avail = u16::from_le(memory.load_u16_acquire(self.layout.avail_idx()));
            if avail.wrapping_sub(self.next) > self.slots - self.outstanding() {
                return Err(RingError::IndexJump);
            }
            self.seen = avail;
            if self.next == self.seen {
                return Ok(None);
            }
        }
        let entry = self.layout.avail_ring(self.next);
        let slot = u16::from_le(memory.load_u16(entry));
        if slot >= self.slots {
            return Err(RingError::BadSlot);
        }
        self.next = self.next.wrapping_add(1);
        Ok(Some(slot))
    }

    /// Gives a fetched slot back after `len` bytes were written to it. The driver sees it after the next
    /// [`publish`](Self::publish). Slots may be given back in any order, each once.
    #[inline]
    pub fn give_back<M: RingMemory + ?Sized>(&mut self, memory: &M, slot: u16, len: u32) {
        debug_assert!(self.outstanding() != 0);
        let entry = self.layout.used_ring(self.used);
        memory.store_u32(entry, u32::from(slot).to_le());
        memory.store_u32(entry + 4, len.to_le());
        self.used = self.used.wrapping_add(1);
    }

    /// Lets the driver see every slot that was given back, once a batch. Returns whether there were any.
    #[inline]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        if self.published == self.used {
            return false;
        }
        self.published = self.used;
        memory.store_u16_release(self.layout.used_idx(), self.used.to_le());
        true
    }

    /// Asks for a doorbell at the next available slot. Returns whether one is available already, which a device that
    /// is about to leave the queue must then serve, as no doorbell will come for it.
    #[must_use = "slots that are available already cause no doorbell"]
    pub fn enable_doorbell<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        memory.store_u16(self.layout.avail_event(), self.next.to_le());
        // The driver stores avail.idx and then looks at avail_event: one of the two sees the other's store.
        memory.full_barrier();
        self.next != u16::from_le(memory.load_u16_acquire(self.layout.avail_idx()))
    }

    /// Tells the driver that the queue is being polled: no doorbell is wanted for the next 65,535 slots.
    pub fn suppress_doorbell<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        memory.store_u16(self.layout.avail_event(), self.next.wrapping_sub(1).to_le());
    }

    /// Goes on in another ring, of which the layout is this and which has no fewer slots. The driver has copied what was
    /// not fetched to the same positions there. The driver sees `used.idx` there at once.
    pub fn moved<M: RingMemory + ?Sized>(&mut self, layout: RingLayout, memory: &M) {
        debug_assert!(slot_count(&layout) >= self.slots);
        self.slots = slot_count(&layout);
        self.layout = layout;
        self.published = self.used;
        memory.store_u16_release(self.layout.used_idx(), self.used.to_le());
    }

    /// Gives back everything that was ever made available, without a look at it: QP state RESET. The driver makes
    /// nothing available until it was told that the reset is done; slots that are still outstanding here are
    /// forgotten.
    pub fn reset<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        let avail = u16::from_le(memory.load_u16_acquire(self.layout.avail_idx()));
        self.next = avail;
        self.seen = avail;
        self.used = avail;
        self.publish(memory);
    }
}
