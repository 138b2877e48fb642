// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Device side of completion events: the decision when an event is due.

use super::abi::ring::ArmKind;
use super::abi::ring::ArmWord;

/// Decides when a CQ's event is due.
///
/// Positions are counted in 64 bits, so a request stays valid even if the 32-bit positions wrap
/// before it is answered.
#[derive(Debug)]
pub struct ArmLatch {
    slots: u32,
    /// The producer's position, in 64 bits.
    position: u64,
    /// Position after the last solicited completion.
    solicited: u64,
    /// The arm word from which `from` was computed.
    word: u64,
    /// Position of the first completion that the request covers.
    from: u64,
    /// Sequence that the last event answered.
    fired: u32,
}

/// State of the device side of a completion ring: enough for another process to resume it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArmLatchState {
    /// The producer's position, in 64 bits.
    pub position: u64,
    /// Position after the last solicited completion.
    pub solicited: u64,
    /// The arm word from which `from` was computed.
    pub word: u64,
    /// Position of the first completion that the request covers.
    pub from: u64,
    /// Sequence that the last event answered.
    pub fired: u32,
    /// Always 0.
    pub reserved: u32,
}

impl ArmLatch {
    /// The latch of a CQ with `slots` slots, whose next completion gets position `position`.
    pub const fn starting_at(slots: u32, position: u32) -> Self {
        Self {
            slots,
            // LOSSLESS: A cast, since `From` is not const.
            position: position as u64,
            solicited: 0,
            word: 0,
            from: 0,
            fired: 0,
        }
    }

    /// The latch of a CQ with `slots` slots, resumed from `state`.
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

    /// The state from which the latch can be resumed.
    pub const fn state(&self) -> ArmLatchState {
        ArmLatchState {
            position: self.position,
            solicited: self.solicited,
            word: self.word,
            from: self.from,
            fired: self.fired,
            reserved: 0,
        }
    }

    /// Copies the last answered sequence from the latch of the previous ring.
    pub(super) fn answered(&mut self, before: &Self) {
        self.fired = before.fired;
    }

    /// Counts one completion. `solicited` is true if the sender requested a solicited event, and
    /// for every error.
    #[inline]
    pub fn record(&mut self, solicited: bool) {
        self.position += 1;
        if solicited {
            self.solicited = self.position;
        }
    }

    /// Decides whether the CQ's event is due, and if so counts it as sent. The caller must publish
    /// all recorded completions, then execute a full barrier, then read `word`, the arm word.
    #[inline]
    #[must_use = "an event that is due is fired only once"]
    pub fn event_due(&mut self, word: u64) -> bool {
        let arm = ArmWord::from_u64(word);
        let mut overdue = false;
        if word != self.word {
            self.word = word;
            // CAST: the low bits are the 32-bit position.
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
