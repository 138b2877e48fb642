// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A ring of entries that many threads write without locks and without waiting.
//!
//! The ring consists of integers of fixed size and no addresses, so it can be in memory that
//! outlives the process: another process can read what was written.

use std::hint;

#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub use std::sync::atomic::AtomicU64;

#[cfg(loom)]
use loom::sync::atomic::{fence, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{fence, Ordering};

/// Words of a slot: its sequence number, then the entry.
const SLOT: usize = 5;
/// Words before the first slot: the number of entries ever begun.
const HEAD: usize = 1;
/// In a sequence number: a thread writes the slot.
const BUSY: u64 = 1 << 63;
/// Looks of a reader at a slot that is being written, before it leaves the slot out.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 100 };

/// The largest number of entries that memory of another process may tell.
const MOST: u64 = 1 << 60;

/// Memory for a ring, which is zero before its first ring.
pub trait Words: Send + Sync {
    /// The word at an index below [`Ring::words`].
    fn word(&self, at: usize) -> &AtomicU64;
}

/// Memory of this process.
struct OwnWords(Box<[AtomicU64]>);

impl Words for OwnWords {
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[at]
    }
}

/// The words that a writer stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub [u64; SLOT - 1]);

/// A ring of the last entries.
///
/// A slot's sequence number is 0, or 1 plus the number of the entry in it, and [`BUSY`] while a
/// thread writes. Only the thread that set `BUSY` writes the slot.
pub struct Ring {
    memory: Box<dyn Words>,
    slots: usize,
}

impl Ring {
    /// The number of words that `slots` slots take.
    pub const fn words(slots: usize) -> usize {
        HEAD + slots * SLOT
    }

    /// An empty ring of `slots` slots in memory of this process.
    pub fn own(slots: usize) -> Self {
        let words = (0..Self::words(slots)).map(|_| AtomicU64::new(0));
        Self::new(Box::new(OwnWords(words.collect())), slots)
    }

    /// A ring of `slots` slots in `memory`, with the entries that it contains. No other ring may
    /// use the memory meanwhile. Another process may have written anything.
    pub fn new(memory: Box<dyn Words>, slots: usize) -> Self {
        let ring = Self { memory, slots };
        if ring.head().load(Ordering::Relaxed) > MOST {
            ring.head().store(0, Ordering::Relaxed);
        }
        let head = ring.head().load(Ordering::Relaxed);
        for slot in (0..slots).map(|slot| HEAD + slot * SLOT) {
            // A slot stays busy if its writer's process ended.
            let sequence = ring.memory.word(slot);
            if sequence.load(Ordering::Relaxed) > head {
                sequence.store(0, Ordering::Relaxed);
            }
        }
        ring
    }

    /// Bytes of the ring's memory.
    pub fn bytes(&self) -> u64 {
        (Self::words(self.slots) * size_of::<u64>()) as u64
    }

    /// Adds an entry, in place of the oldest one. The entry is lost if the ring went around while
    /// another thread wrote the same slot.
    pub fn push(&self, entry: Entry) {
        if self.slots == 0 {
            return;
        }
        let number = self.head().fetch_add(1, Ordering::Relaxed);
        let [sequence, words @ ..] = self.slot(number);
        let seen = sequence.load(Ordering::Relaxed);
        // Either the slot is busy, or has a later entry: this thread was delayed for a whole round.
        if seen > number {
            return;
        }
        let taken = sequence.compare_exchange(seen, BUSY, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            return;
        }
        // A reader that sees a word of this entry also sees that the slot is busy.
        fence(Ordering::Release);
        for (word, value) in words.iter().zip(entry.0) {
            word.store(value, Ordering::Relaxed);
        }
        sequence.store(number + 1, Ordering::Release);
    }

    /// The entries from number `from` on, as far as the ring still has them, each with its number.
    /// Returns the number of the next entry too.
    pub fn read(&self, from: u64) -> (Vec<(u64, Entry)>, u64) {
        let head = self.head().load(Ordering::Acquire);
        let oldest = head.saturating_sub(self.slots as u64);
        let read = |number| Some((number, Self::entry(&self.slot(number), number + 1)?));
        let entries = (from.max(oldest)..head).filter_map(read).collect();
        (entries, head)
    }

    /// The entry in a slot, if the slot has this sequence number.
    fn entry([first, words @ ..]: &[&AtomicU64; SLOT], sequence: u64) -> Option<Entry> {
        for _ in 0..LOOKS {
            let before = first.load(Ordering::Acquire);
            if before & BUSY != 0 {
                hint::spin_loop();
                continue;
            }
            let entry = words.map(|word| word.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if first.load(Ordering::Relaxed) == before {
                return (before == sequence).then_some(Entry(entry));
            }
        }
        None
    }

    fn head(&self) -> &AtomicU64 {
        self.memory.word(0)
    }

    fn slot(&self, number: u64) -> [&AtomicU64; SLOT] {
        // There is at least one slot, and the remainder is below their number.
        let start = HEAD + (number % self.slots as u64) as usize * SLOT;
        std::array::from_fn(|word| self.memory.word(start + word))
    }
}
