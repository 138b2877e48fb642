// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Device's side of completion events: when one is due.

use super::abi::ring::ArmKind;
use super::abi::ring::ArmWord;

/// Decides when a CQ's event is due.
///
/// The latch counts completions in 64 bits, so that a request which stays unanswered for long keeps
/// its place while positions wrap.
#[derive(Debug)]
pub struct ArmLatch {
    slots: u32,
    /// The producer's position, in 64 bits.
    position: u64,
    /// Position after the last solicited completion.
    solicited: u64,
    /// The arm word that `from` belongs to.
    word: u64,
    /// Position of the first completion that qualifies.
    from: u64,
    /// Sequence of the last event.
    fired: u32,
}

/// Where a device serves a completion ring, and what it has answered: what it needs to go on in
/// another process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArmLatchState {
    /// The producer's position, in 64 bits.
    pub position: u64,
    /// Position after the last solicited completion.
    pub solicited: u64,
    /// The arm word that `from` belongs to.
    pub word: u64,
    /// Position of the first completion that qualifies.
    pub from: u64,
    /// Sequence of the last event.
    pub fired: u32,
    /// 0.
    pub reserved: u32,
}

impl ArmLatch {
    /// The latch of a CQ of `slots` slots, whose next completion has position `position`.
    pub const fn starting_at(slots: u32, position: u32) -> Self {
        Self {
            slots,
            // LOSSLESS: `From` is no const function.
            position: position as u64,
            solicited: 0,
            word: 0,
            from: 0,
            fired: 0,
        }
    }

    /// The latch of a CQ of `slots` slots that goes on from `state`.
    pub(super) const fn resumed(slots: u32, state: &ArmLatchState) -> Self {
        Self {
            slots,
            position: state.position,
            solicited: state.solicited,
            word: state.word,
            from: state.from,
            fired: state.fired,
        }
    }

    /// The state to go on from.
    pub(super) const fn state(&self) -> ArmLatchState {
        ArmLatchState {
            position: self.position,
            solicited: self.solicited,
            word: self.word,
            from: self.from,
            fired: self.fired,
            reserved: 0,
        }
    }

    /// Takes over from the latch of the ring before: a sequence that was answered stays so.
    pub(super) fn answered(&mut self, before: &Self) {
        self.fired = before.fired;
    }

    /// Counts one completion. `solicited` is true for those that the sender marked so and for every
    /// error.
    #[inline]
    pub fn record(&mut self, solicited: bool) {
        self.position += 1;
        if solicited {
            self.solicited = self.position;
        }
    }

    /// Decides by the arm word, read after all recorded completions were published with a full
    /// barrier between, whether the CQ's event is due. If so, it counts as fired.
    #[inline]
    #[must_use = "an event that is due is fired only once"]
    pub fn event_due(&mut self, word: u64) -> bool {
        let arm = ArmWord::from_u64(word);
        let mut overdue = false;
        if word != self.word {
            self.word = word;
            // CAST: the low bits are the position in the ring.
            let behind = (self.position as u32).wrapping_sub(arm.position);
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
