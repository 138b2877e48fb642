// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Turns: their cost, and their end.
//!
//! The unit of cost is the time to copy one byte. All work is charged to a budget, and a turn ends
//! when the budget is spent, so no QP occupies a worker for long.

mod parked;

use std::cell::Cell;

pub(crate) use parked::Parked;

/// Budget of a turn, for each half of a QP: two work requests of 64 KiB, so that messages of common
/// lengths end with a turn. It bounds the delay of a small message behind large ones, since a
/// sparse flow waits for a few turns at most.
pub(crate) const TURN: usize = 2 * (WORK_REQUEST + (64 << 10));
/// Maximum cost by which the last step of a turn may exceed the budget. The most expensive steps
/// complete 128 work requests, send a message of as many packets, or copy a datagram to all QPs of
/// a group.
#[cfg(feature = "testing")]
const LAST_STEP: usize = 256 << 10;
/// Largest cost of a turn.
#[cfg(feature = "testing")]
pub const MAX_TURN: usize = TURN + LAST_STEP;
/// Cost of a work request of any kind, without its bytes.
const WORK_REQUEST: usize = 1024;
/// Cost of a byte of a sent frame: 65 KiB of frames fill a turn. With fewer bytes the overhead of
/// turns would dominate. With more, the frames would no longer be in the cache when their receiver
/// reads them.
const FRAME_BYTE: usize = 2;

/// Cost of a received frame: 64 frames fill a turn.
const RECEIVED_FRAME: usize = TURN / 64;

/// The budget of a turn, and the part of it that is spent.
#[derive(Debug, Default)]
pub(crate) struct TurnBudget {
    spent: Cell<usize>,
}

/// Proof that a step was charged. A loop that requires one for each iteration terminates.
#[derive(Debug)]
#[must_use]
pub(crate) struct Charged(());

impl TurnBudget {
    /// Cost of the turn so far. May exceed the budget after the last step.
    pub(crate) fn spent(&self) -> usize {
        self.spent.get()
    }

    /// Whether the budget is spent, so the turn must end.
    pub(crate) fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// Number of bytes that may still be copied in this turn.
    pub(crate) fn left(&self) -> usize {
        TURN.saturating_sub(self.spent())
    }

    /// Number of bytes of frames that may still be sent in this turn; at least 1.
    pub(crate) fn left_for_frames(&self) -> usize {
        (self.left() / FRAME_BYTE).max(1)
    }

    /// Number of frames that may still be received in this turn; at least 1.
    pub(crate) fn left_for_received(&self) -> usize {
        self.left().div_ceil(RECEIVED_FRAME).max(1)
    }

    /// Charges a completed work request.
    pub(crate) fn charge_work_request(&self) -> Charged {
        self.charge(WORK_REQUEST)
    }

    /// Charges copied bytes.
    pub(crate) fn charge_bytes(&self, bytes: usize) {
        let _ = self.charge(bytes);
    }

    /// Charges a received frame.
    pub(crate) fn charge_received(&self) {
        let _ = self.charge(RECEIVED_FRAME);
    }

    /// Charges the bytes of sent frames.
    pub(crate) fn charge_frames(&self, bytes: usize) {
        let _ = self.charge(bytes.saturating_mul(FRAME_BYTE));
    }

    /// Proof that a step which began at cost `spent` was charged. If the step has charged nothing,
    /// charges it as a work request.
    pub(crate) fn charged_since(&self, spent: usize) -> Charged {
        if self.spent() > spent {
            Charged(())
        } else {
            self.charge_work_request()
        }
    }

    fn charge(&self, cost: usize) -> Charged {
        self.spent.set(self.spent().saturating_add(cost));
        Charged(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two messages of 64 KiB fit a turn: otherwise each turn would end within a message.
    #[test]
    fn two_messages_of_64_kib_fill_a_turn() {
        let budget = TurnBudget::default();
        for _ in 0..2 {
            assert!(budget.left() >= 64 << 10);
            budget.charge_bytes(64 << 10);
            let _ = budget.charge_work_request();
        }
        assert!(budget.is_spent());
    }

    #[test]
    fn everything_costs_and_the_last_step_may_exceed() {
        let budget = TurnBudget::default();
        assert_eq!(budget.left_for_frames(), 65 << 10);
        let _ = budget.charge_work_request();
        assert_eq!(budget.left(), TURN - 1024);
        let _ = budget.charged_since(0);
        assert_eq!(budget.spent(), 1024, "charged once");
        budget.charge_frames(TURN / FRAME_BYTE);
        budget.charge_bytes(usize::MAX);
        assert!(budget.is_spent());
        assert_eq!(budget.left_for_frames(), 1);
        assert_eq!(budget.spent(), usize::MAX);
    }
}
