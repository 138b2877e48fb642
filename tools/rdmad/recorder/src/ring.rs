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

/// Memory for a ring.
pub type Memory = Box<dyn AsRef<[AtomicU64]> + Send + Sync>;

/// The words that a writer stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub [u64; SLOT - 1]);

/// A ring of the last entries.
///
/// A slot's sequence number is 0, or 1 plus the number of the entry in it, and [`BUSY`] while a
/// thread writes. Only the thread that set `BUSY` writes the slot.
pub struct Ring {
    memory: Memory,
    slots: usize,
}

impl Ring {
    /// The number of words that `slots` slots take.
    pub const fn words(slots: usize) -> usize {
        HEAD + slots * SLOT
    }

    /// Zeroed memory of this process for `slots` slots.
    pub fn memory(slots: usize) -> Memory {
        struct Words(Box<[AtomicU64]>);
        impl AsRef<[AtomicU64]> for Words {
            fn as_ref(&self) -> &[AtomicU64] {
                &self.0
            }
        }
        Box::new(Words(
            (0..Self::words(slots)).map(|_| AtomicU64::new(0)).collect(),
        ))
    }

    /// A ring in `memory`, with the entries that it contains. No other ring may use it meanwhile.
    pub fn new(memory: Memory) -> Self {
        let words = (*memory).as_ref();
        let slots = words.len().saturating_sub(HEAD) / SLOT;
        // A slot stays busy if its writer's process ended.
        for slot in words.get(HEAD..).unwrap_or_default().chunks_exact(SLOT) {
            if slot[0].load(Ordering::Relaxed) & BUSY != 0 {
                slot[0].store(0, Ordering::Relaxed);
            }
        }
        Self { memory, slots }
    }

    /// Bytes of the ring's memory.
    pub fn bytes(&self) -> u64 {
        size_of_val((*self.memory).as_ref()) as u64
    }

    /// Adds an entry, in place of the oldest one. The entry is lost if the ring went around while
    /// another thread wrote the same slot.
    pub fn push(&self, entry: Entry) {
        let words = (*self.memory).as_ref();
        if self.slots == 0 {
            return;
        }
        let number = words[0].fetch_add(1, Ordering::Relaxed);
        let slot = self.slot(words, number);
        let seen = slot[0].load(Ordering::Relaxed);
        // Either the slot is busy, or has a later entry: this thread was delayed for a whole round.
        if seen > number {
            return;
        }
        let taken = slot[0].compare_exchange(seen, BUSY, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            return;
        }
        // A reader that sees a word of this entry also sees that the slot is busy.
        fence(Ordering::Release);
        for (word, value) in slot[1..].iter().zip(entry.0) {
            word.store(value, Ordering::Relaxed);
        }
        slot[0].store(number + 1, Ordering::Release);
    }

    /// The entries from number `from` on, as far as the ring still has them, each with its number.
    /// Returns the number of the next entry too.
    pub fn read(&self, from: u64) -> (Vec<(u64, Entry)>, u64) {
        let words = (*self.memory).as_ref();
        let Some(head) = words.first().map(|head| head.load(Ordering::Acquire)) else {
            return (Vec::new(), 0);
        };
        let oldest = head.saturating_sub(self.slots as u64);
        let read = |number| Some((number, Self::entry(self.slot(words, number), number + 1)?));
        let entries = (from.max(oldest)..head).filter_map(read).collect();
        (entries, head)
    }

    /// The entry in a slot, if the slot has this sequence number.
    fn entry(slot: &[AtomicU64], sequence: u64) -> Option<Entry> {
        for _ in 0..LOOKS {
            let before = slot[0].load(Ordering::Acquire);
            if before & BUSY != 0 {
                hint::spin_loop();
                continue;
            }
            let entry = std::array::from_fn(|word| slot[1 + word].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if slot[0].load(Ordering::Relaxed) == before {
                return (before == sequence).then_some(Entry(entry));
            }
        }
        None
    }

    fn slot<'a>(&self, words: &'a [AtomicU64], number: u64) -> &'a [AtomicU64] {
        // There is at least one slot, and the remainder is below their number.
        let start = HEAD + (number % self.slots as u64) as usize * SLOT;
        &words[start..start + SLOT]
    }
}
