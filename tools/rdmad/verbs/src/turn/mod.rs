// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Turns: what they may cost, and what comes after them.
//!
//! A unit of cost is the time that one byte takes to copy. All work is charged: a turn ends when
//! its budget is spent, so that no QP keeps a worker from others for long.

mod parked;

use std::cell::Cell;

pub(crate) use parked::Parked;

/// The budget of a half of a QP for a turn. A sparse flow waits for a few turns at most, so this
/// is what a small message waits for behind large ones.
pub(crate) const TURN: usize = 128 << 10;
/// The last step of a turn may exceed the budget, by the cost of 128 work requests, of a message of
/// that many packets, or of the copies of a datagram to a group.
#[cfg(feature = "testing")]
const LAST_STEP: usize = 256 << 10;
/// Cost of a turn at most.
#[cfg(feature = "testing")]
pub const MAX_TURN: usize = TURN + LAST_STEP;
/// A work request of any kind, beside its bytes.
const WORK_REQUEST: usize = 1024;
/// A byte of a frame. 64 KiB of frames fill a turn: fewer would spend more on the turns than on the
/// frames, and the receiver of these takes them while they are in a cache.
const FRAME_BYTE: usize = 2;

/// A frame that was received: 64 fill a turn.
const RECEIVED_FRAME: usize = TURN / 64;

/// The rest of a turn's budget.
#[derive(Debug, Default)]
pub(crate) struct TurnBudget {
    spent: Cell<usize>,
}

/// Proof that a step was charged. A loop that goes on only with one has an end.
#[derive(Debug)]
#[must_use]
pub(crate) struct Charged(());

impl TurnBudget {
    /// The cost so far. The last step of a turn may exceed the budget.
    pub(crate) fn spent(&self) -> usize {
        self.spent.get()
    }

    /// Whether the turn is over.
    pub(crate) fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// Bytes that may still be copied.
    pub(crate) fn left(&self) -> usize {
        TURN.saturating_sub(self.spent())
    }

    /// Bytes of frames that may still be sent, at least 1.
    pub(crate) fn left_for_frames(&self) -> usize {
        (self.left() / FRAME_BYTE).max(1)
    }

    /// Frames that may still be received, at least 1.
    pub(crate) fn left_for_received(&self) -> usize {
        self.left().div_ceil(RECEIVED_FRAME).max(1)
    }

    /// Charges a work request that ended.
    pub(crate) fn charge_work_request(&self) -> Charged {
        self.charge(WORK_REQUEST)
    }

    /// Charges bytes that were copied.
    pub(crate) fn charge_bytes(&self, bytes: usize) {
        let _ = self.charge(bytes);
    }

    /// Charges a frame that was received.
    pub(crate) fn charge_received(&self) {
        let _ = self.charge(RECEIVED_FRAME);
    }

    /// Charges bytes of frames that were sent.
    pub(crate) fn charge_frames(&self, bytes: usize) {
        let _ = self.charge(bytes.saturating_mul(FRAME_BYTE));
    }

    /// Proof that more than `spent` was charged by now. A step that did nothing is charged a work
    /// request.
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

    #[test]
    fn everything_costs_and_the_last_step_may_exceed() {
        let budget = TurnBudget::default();
        assert_eq!(budget.left_for_frames(), 1 << 16);
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
