// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Access to the memory that holds a ring.

use super::abi::ring::RingLayout;

/// The bytes of one ring.
///
/// Both sides of a queue access the memory concurrently, so no access may be undefined under a data
/// race: 16, 32 and 64-bit words are accessed atomically, and slots are copied in a way that
/// tolerates concurrent writes. The methods take and return words as they are in memory, in
/// little-endian order; the ring logic converts them.
///
/// Offsets are in bytes from the start of the ring. They are computed only from the ring's layout,
/// so they are aligned to the size of the access and stay below
/// [`RingLayout::size`](super::abi::ring::RingLayout::size). An implementation is created for a
/// ring of known size and checks at creation that it can access all of it, so accesses can't fail
/// later. No slot crosses a page boundary.
pub trait RingMemory {
    /// Loads a position, unordered.
    fn load_u32(&self, offset: u32) -> u32;
    /// Loads a position, with acquire ordering.
    fn load_u32_acquire(&self, offset: u32) -> u32;
    /// Stores a position, unordered.
    fn store_u32(&self, offset: u32, value: u32);
    /// Stores a position, with release ordering.
    fn store_u32_release(&self, offset: u32, value: u32);
    /// Loads the device's position, unordered.
    ///
    /// Every post and poll calls this method and the two that follow. Implementations that look
    /// pages up can override them with faster versions.
    #[inline]
    fn load_device(&self, layout: &RingLayout) -> u32 {
        self.load_u32(layout.device())
    }
    /// Loads the device's position, with acquire ordering.
    #[inline]
    fn load_device_acquire(&self, layout: &RingLayout) -> u32 {
        self.load_u32_acquire(layout.device())
    }
    /// Stores the owner's position, with release ordering.
    #[inline]
    fn store_owner_release(&self, layout: &RingLayout, value: u32) {
        self.store_u32_release(layout.owner(), value);
    }
    /// [Stores](Self::store_owner_release) the owner's position, executes a [full
    /// barrier](Self::full_barrier), and [loads](Self::load_device) the device's position.
    /// Implementations can compute both addresses first, which takes fewer instructions.
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
    /// Orders all earlier accesses before all later ones, including stores before later loads.
    fn full_barrier(&self);
}
