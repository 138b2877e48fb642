// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Driver's side of completion events: the arm word beside a CQ's ring.
//!
//! `Documentation/rings.md`, "Arming", has the protocol and says why no event is lost.
//!
//! The position in the word is the one that the consumer knows, from polling or the last event. So
//! a completion that came after it last looked causes an event also if it came before the queue was
//! armed, as on devices whose CQs are armed with the consumer's index: some programs poll until
//! there is nothing, arm, and sleep without looking again.

use super::abi::ring::ArmKind;
use super::abi::ring::ArmWord;
use super::abi::ring::RingLayout;
use super::RingMemory;

/// The step that is left after a CQ was armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the device may have to be told, or the caller to poll again"]
pub enum Armed {
    /// Nothing: the device will see the arm word at its next completion.
    Waiting,
    /// Ring the CQ's doorbell: a completion has arrived that the device may have published before
    /// it saw the arm word.
    RingDoorbell,
    /// Completions wait to be polled, and the caller wanted to know. The doorbell need not be rung.
    Missed,
}

/// Consumer's side of arming. Calls for one CQ exclude each other, but polling need not be
/// excluded: a position that is behind what the consumer has polled by now causes an event too
/// many, never one too few.
#[derive(Debug)]
pub struct Arm {
    sequence: u32,
    /// The requests since the last event.
    kind: ArmKind,
    /// Where the first request since the last event begins.
    position: u32,
    /// The device was to look at the arm word after a completion, and may not have done so yet.
    is_unsure: bool,
}

impl Arm {
    /// The state of a CQ that was never armed.
    pub const fn new() -> Self {
        // Sequence 0 counts as answered, so that the zeroed word of a new ring asks for nothing.
        Self {
            sequence: 1,
            kind: ArmKind::None,
            position: 0,
            is_unsure: false,
        }
    }

    /// Arms the CQ for completions from position `seen` on, the producer's position that the
    /// consumer knows. `missed_after` is the position of its next completion if the caller wants to
    /// hear of those that are there already.
    #[inline]
    pub fn arm<M: RingMemory + ?Sized>(
        &mut self,
        layout: &RingLayout,
        memory: &M,
        kind: ArmKind,
        seen: u32,
        missed_after: Option<u32>,
    ) -> Armed {
        // Another thread may sleep in this sequence. Its request is neither narrowed nor moved
        // beyond a completion that the device has published, but for which it has not looked at the
        // arm word yet.
        if self.kind == ArmKind::None {
            self.position = seen;
        }
        if self.kind != ArmKind::Next {
            self.kind = kind;
        }
        let produced = self.store(layout, memory, self.position);
        self.is_unsure |= produced != seen;
        if missed_after.is_some_and(|next| next != produced) {
            Armed::Missed
        } else if produced != seen {
            Armed::RingDoorbell
        } else {
            Armed::Waiting
        }
    }

    /// Asks again, in the ring of `layout` that the queue has moved to, for the event that was
    /// asked for in the old one. `missed` says that completions of the old ring are not polled yet,
    /// of which the device may have told nobody: the event is due at once then. Returns whether the
    /// CQ's doorbell is to be rung.
    pub fn moved<M: RingMemory + ?Sized>(
        &mut self,
        layout: &RingLayout,
        memory: &M,
        missed: bool,
    ) -> bool {
        if self.kind == ArmKind::None {
            return false;
        }
        // A doorbell that was rung for the old ring may have come after the device moved.
        let overdue = missed || self.is_unsure;
        // The new ring begins with position 0. One further back than the ring is long counts as
        // overdue.
        self.position = match overdue {
            true => 0u32.wrapping_sub(layout.slots() + 1),
            false => 0,
        };
        let produced = self.store(layout, memory, self.position);
        self.is_unsure |= produced != 0;
        overdue || produced != 0
    }

    /// Stores the arm word, and returns the producer's position as it is after that.
    #[inline]
    fn store<M: RingMemory + ?Sized>(&self, layout: &RingLayout, memory: &M, position: u32) -> u32 {
        let word = ArmWord {
            sequence: self.sequence,
            kind: self.kind,
            position,
        };
        memory.store_u64(layout.arm(), word.to_u64().to_le());
        // The device stores its position and then looks at the word: one of the two sees the
        // other's store.
        memory.full_barrier();
        u32::from_le(memory.load_device_acquire(layout))
    }

    /// An event was received: the next [`arm`](Self::arm) asks for another.
    #[inline]
    pub fn event_received(&mut self) {
        self.sequence = self.sequence.wrapping_add(1) & ArmWord::SEQUENCE_MASK;
        self.kind = ArmKind::None;
        self.is_unsure = false;
    }
}

impl Default for Arm {
    fn default() -> Self {
        Self::new()
    }
}
