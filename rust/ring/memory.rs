// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Access to the memory that holds a ring.

use super::abi::ring::RingLayout;

/// The bytes of one ring.
///
/// Both sides of a queue touch them at the same time, so every access is one that a data race
/// cannot make undefined: whole-word atomic for 16, 32 and 64 bits, and a copy that tolerates
/// concurrent writes for slots. Words are exchanged as they lie in memory, in little-endian order;
/// the ring logic converts them.
///
/// Offsets are in bytes from the start of the ring, and come from its layout only, so they are
/// aligned to the size of the access and never beyond
/// [`RingLayout::size`](super::abi::ring::RingLayout::size): an implementation is made for a ring
/// of known size, checks at that moment that it can reach all of it, and cannot fail afterwards. No
/// slot crosses a page.
pub trait RingMemory {
    /// Loads a position, unordered.
    fn load_u32(&self, offset: u32) -> u32;
    /// Loads a position; accesses after it stay after it.
    fn load_u32_acquire(&self, offset: u32) -> u32;
    /// Stores a position, unordered.
    fn store_u32(&self, offset: u32, value: u32);
    /// Stores a position; accesses before it stay before it.
    fn store_u32_release(&self, offset: u32, value: u32);
    /// Loads the position that the device writes, unordered.
    ///
    /// This and the two that follow are in the way of each post and poll. Memory that is looked up
    /// page by page has these words at hand.
    #[inline]
    fn load_device(&self, layout: &RingLayout) -> u32 {
        self.load_u32(layout.device())
    }
    /// Loads the position that the device writes; accesses after it stay after it.
    #[inline]
    fn load_device_acquire(&self, layout: &RingLayout) -> u32 {
        self.load_u32_acquire(layout.device())
    }
    /// Stores the position that the owner writes; accesses before it stay before it.
    #[inline]
    fn store_owner_release(&self, layout: &RingLayout, value: u32) {
        self.store_u32_release(layout.owner(), value);
    }
    /// [Stores](Self::store_owner_release) the position that the owner writes, and then
    /// [loads](Self::load_device) the one that the device writes, with a
    /// [full barrier](Self::full_barrier) between the two. Some processors have one instruction for
    /// the store and the barrier.
    #[inline]
    fn publish_owner(&self, layout: &RingLayout, value: u32) -> u32 {
        self.store_owner_release(layout, value);
        self.full_barrier();
        self.load_device(layout)
    }
    /// Loads an arm word, unordered.
    fn load_u64(&self, offset: u32) -> u64;
    /// Stores an arm word, unordered.
    fn store_u64(&self, offset: u32, value: u64);
    /// Loads an entry of `order`, unordered.
    fn load_u16(&self, offset: u32) -> u16;
    /// Stores an entry of `order`, unordered.
    fn store_u16(&self, offset: u32, value: u16);
    /// Copies `bytes.len()` bytes of one slot out of the ring.
    fn read(&self, offset: u32, bytes: &mut [u8]);
    /// Copies `bytes` into one slot of the ring.
    fn write(&self, offset: u32, bytes: &[u8]);
    /// Orders every access before it against every access after it, stores against later loads
    /// included.
    fn full_barrier(&self);
}
