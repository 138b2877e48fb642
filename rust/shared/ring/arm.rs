// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Driver side of completion events: the arm word in a CQ's ring.
//!
//! `Documentation/rings.md`, "Arming", describes the protocol and why no event is lost.
//!
//! The word holds the producer's position as the consumer knows it, from polling or from the last
//! event. So a newer completion causes an event even if it arrived before the CQ was armed. Devices
//! whose CQs are armed with the consumer's index behave in the same way. Some programs rely on
//! this: they poll until the CQ is empty, arm it, and sleep without polling again.

use super::abi::ring::ArmKind;
use super::abi::ring::ArmWord;
use super::abi::ring::RingLayout;
use super::RingMemory;

/// The caller's next step after it armed a CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the device may have to be told, or the caller to poll again"]
pub enum Armed {
    /// No step is needed: the device will see the arm word at its next completion.
    Waiting,
    /// Ring the CQ's doorbell: the device may have published a completion before it saw the arm
    /// word.
    RingDoorbell,
    /// Completions wait to be polled, and the caller requested that they be reported. No doorbell
    /// is needed.
    Missed,
}

/// Consumer side of arming. Calls for one CQ must exclude each other, but polling may run
/// concurrently: if `seen` is behind the position that the consumer has polled, an extra event is
/// sent, but none is lost.
#[derive(Debug)]
pub struct Arm {
    sequence: u32,
    /// The widest kind that was requested since the last event.
    kind: ArmKind,
    /// Position at which the first request since the last event starts.
    position: u32,
    /// The device may still have to check the arm word for a completion that it has published.
    is_unsure: bool,
}

impl Arm {
    /// The state of a new CQ.
    pub const fn new() -> Self {
        // The device treats sequence 0 as answered, so the zeroed word of a new ring requests no
        // event.
        Self {
            sequence: 1,
            kind: ArmKind::None,
            position: 0,
            is_unsure: false,
        }
    }

    /// Arms the CQ for completions from position `seen` on: the producer's position that the
    /// consumer knows. If `missed_after` is given, it is the position of the consumer's next
    /// completion, and completions that wait already are reported as [`Armed::Missed`].
    #[inline]
    pub fn arm<M: RingMemory + ?Sized>(
        &mut self,
        layout: &RingLayout,
        memory: &M,
        kind: ArmKind,
        seen: u32,
        missed_after: Option<u32>,
    ) -> Armed {
        // Another thread may sleep until this sequence is answered. Its request must not be
        // narrowed, and its position must not move beyond a completion for which the device has not
        // checked the arm word yet.
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

    /// Repeats the outstanding request in the ring of `layout`, to which the CQ has moved. `missed`
    /// is true if the device may have sent no event for unpolled completions of the old ring: then
    /// the event is due at once. Returns whether the CQ's doorbell must be rung.
    pub fn moved<M: RingMemory + ?Sized>(
        &mut self,
        layout: &RingLayout,
        memory: &M,
        missed: bool,
    ) -> bool {
        if self.kind == ArmKind::None {
            return false;
        }
        // The doorbell for the old ring may have arrived after the device moved.
        let overdue = missed || self.is_unsure;
        // The new ring starts at position 0. A position further back than the ring's length counts
        // as overdue.
        self.position = match overdue {
            true => 0u32.wrapping_sub(layout.slots() + 1),
            false => 0,
        };
        let produced = self.store(layout, memory, self.position);
        self.is_unsure |= produced != 0;
        overdue || produced != 0
    }

    /// Stores the arm word. Returns the producer's position, loaded after the store.
    #[inline]
    fn store<M: RingMemory + ?Sized>(&self, layout: &RingLayout, memory: &M, position: u32) -> u32 {
        let word = ArmWord {
            sequence: self.sequence,
            kind: self.kind,
            position,
        };
        memory.store_u64(layout.arm(), word.to_u64().to_le());
        // The device stores its position and then loads the word, so one of the two sides sees the
        // other's store.
        memory.full_barrier();
        u32::from_le(memory.load_device_acquire(layout))
    }

    /// Notes that an event was received: the next [`arm`](Self::arm) requests a new event.
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
