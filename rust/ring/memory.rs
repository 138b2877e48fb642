// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Access to the memory that holds a ring.

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
