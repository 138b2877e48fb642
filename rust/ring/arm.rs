// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completion events: the arm word beside a CQ's ring.
//!
//! The consumer says in one aligned 32-bit store from which used.idx on it wants an event, and of which kind. The
//! device answers each *sequence* with at most one event; the sequence advances when that event is received, not when
//! the queue is armed, since a consumer that arms often without an event would else wrap onto the sequence that was
//! fired last. An event is never lost: the device publishes used.idx and then reads the word, the consumer stores the
//! word and then reads used.idx, each with a full barrier between, and the consumer rings the doorbell if it changed.
//!
//! The used.idx in the word is the one that the consumer knows, from polling or the last event. So a completion that came
//! after it last looked causes an event also if it came before the queue was armed, as devices have it whose CQs are armed
//! with the consumer's index: some programs poll until there is nothing, arm, and sleep without looking again.

use super::abi::ring::ArmKind;
use super::abi::ring::ArmWord;
use super::abi::ring::RingLayout;
use super::slot_count;
use super::RingMemory;

/// What is left to do after a CQ was armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the device may have to be told, or the caller to poll again"]
pub enum Armed {
    /// Nothing: the device will see the arm word at its next completion.
    Waiting,
    /// Ring the CQ's doorbell: a completion has arrived that the device may have published before it saw the arm word.
    RingDoorbell,
    /// Completions wait to be polled, and the caller wanted to know. The doorbell need not be rung.
    Missed,
}

/// Consumer's side of arming. Calls for one CQ exclude each other, but polling need not be
/// excluded: an index that is behind what the consumer has polled by now causes an event too many,
/// never one too few.
#[derive(Debug)]
pub struct Arm {
    sequence: u16,
    /// What was asked for since the last event.
    kind: ArmKind,
}

impl Arm {
    /// The state of a CQ that was never armed.
    pub const fn new() -> Self {
        // Sequence 0 counts as fired, so that the zeroed word of a new ring asks for nothing.
        Self {
            sequence: 1,
            kind: ArmKind::None,
        }
    }

    /// Arms the CQ for completions from index `seen` on, the used.idx that the consumer knows. `missed_after` is the index of
    /// its next completion if the caller wants to hear of those that are there already.
    #[inline]
    pub fn arm<M: RingMemory + ?Sized>(
        &mut self,
        layout: &RingLayout,
        memory: &M,
        kind: ArmKind,
        seen: u16,
        missed_after: Option<u16>,
    ) -> Armed {
        // Another thread may sleep for any completion in this sequence: its wish is not narrowed.
        if self.kind != ArmKind::Next {
            self.kind = kind;
        }
        let word = ArmWord {
            sequence: self.sequence,
            kind: self.kind,
            index: seen,
        };
        memory.store_u32(layout.arm(), word.to_u32().to_le());
        memory.full_barrier();
        let used = u16::from_le(memory.load_u16_acquire(layout.used_idx()));
        if missed_after.is_some_and(|next| next != used) {
            Armed::Missed
        } else if used != seen {
            Armed::RingDoorbell
        } else {
            Armed::Waiting
        }
    }

    /// Asks again, in the ring of `layout` that the queue has moved to, for the event that was asked for in the old one.
    /// `missed` says that completions of the old ring are not polled yet, of which the device may have told nobody: the
    /// event is due at once then. Returns whether the CQ's doorbell is to be rung.
    pub fn moved<M: RingMemory + ?Sized>(
        &mut self,
        layout: &RingLayout,
        memory: &M,
        missed: bool,
    ) -> bool {
        if self.kind == ArmKind::None {
            return false;
        }
        // The new ring begins with index 0. One further back than the ring is long counts as overdue.
        let index = match missed {
            true => 0u16.wrapping_sub(slot_count(layout) + 1),
            false => 0,
        };
        let word = ArmWord {
            sequence: self.sequence,
            kind: self.kind,
            index,
        };
        memory.store_u32(layout.arm(), word.to_u32().to_le());
        memory.full_barrier();
        missed || memory.load_u16_acquire(layout.used_idx()) != 0
    }

    /// An event was received: the next [`arm`](Self::arm) asks for another.
    #[inline]
    pub fn event_received(&mut self) {
        self.sequence = self.sequence.wrapping_add(1) & ArmWord::SEQUENCE_MASK;
        self.kind = ArmKind::None;
    }
}

impl Default for Arm {
    fn default() -> Self {
        Self::new()
    }
}

/// Device's side of arming: decides when a CQ's event is due.
///
/// Positions are 64 bits wide and count completions since the CQ was made, so that a request that stays unanswered for
/// long keeps its place while 16-bit indices wrap.
#[derive(Debug)]
pub struct ArmLatch {
    slots: u16,
    /// Completions so far.
    position: u64,
    /// Position after the last solicited completion.
    solicited: u64,
    /// The arm word that `from` belongs to.
    word: u32,
    /// Position of the first completion that qualifies.
    from: u64,
    /// Sequence of the last event.
    fired: u16,
}

impl ArmLatch {
    /// The latch of a new CQ of `slots` slots.
    pub const fn new(slots: u16) -> Self {
        Self {
            slots,
            position: 0,
            solicited: 0,
            word: 0,
            from: 0,
            fired: 0,
        }
    }

    /// Goes on in a ring of `slots` slots, which nothing has completed in. A sequence that was answered stays so.
    pub fn moved(&mut self, slots: u16) {
        *self = Self {
            fired: self.fired,
            ..Self::new(slots)
        };
    }

    /// Counts one completion. `solicited` is true for those that the sender marked so and for every error.
    #[inline]
    pub fn record(&mut self, solicited: bool) {
        self.position += 1;
        if solicited {
            self.solicited = self.position;
        }
    }

    /// Decides by the arm word, read after all recorded completions were published with a full barrier between,
    /// whether the CQ's event is due. If so, it counts as fired.
    #[inline]
    #[must_use = "an event that is due is fired only once"]
    pub fn event_due(&mut self, word: u32) -> bool {
        let arm = ArmWord::from_u32(word);
        let mut overdue = false;
        if word != self.word {
            self.word = word;
            // The low bits of the position are used.idx.
            let behind = (self.position as u16).wrapping_sub(arm.index);
            overdue = behind > self.slots;
            self.from = self.position.saturating_sub(u64::from(behind));
        }
        let wanted = match arm.kind {
            ArmKind::None => false,
            ArmKind::Next => overdue || self.position > self.from,
            ArmKind::Solicited => overdue || self.solicited > self.from,
        };
        if wanted && arm.sequence != self.fired {
            self.fired = arm.sequence;
            return true;
        }
        false
    }
}
