// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work that the turns of a thread have really done. With feature `counting`, each thread counts
//! it.
//!
//! The code that does the work counts it, so the counts notice work that is not charged to the
//! turn's budget.

/// Work that a turn has done.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(
    not(feature = "counting"),
    allow(dead_code, reason = "nothing is counted")
)]
struct Done {
    /// Bytes copied to or from guest memory.
    bytes: usize,
    /// Accesses to contiguous pieces of guest memory.
    pieces: usize,
    /// Work requests that were completed or flushed.
    requests: usize,
    /// Frames that were received.
    received: usize,
    /// Packets that were passed to a QP. A packet to a group is passed to each member.
    deliveries: usize,
    /// Bytes of frames that were sent.
    sent: usize,
    /// Events that were sent, doorbells of CQs, and QPs that got a turn for frames.
    notifications: usize,
}

/// Counts accesses to `pieces` pieces of guest memory, in which `bytes` bytes were copied.
#[inline]
pub(crate) fn copied(pieces: usize, bytes: usize) {
    note(|done| {
        done.pieces += pieces;
        done.bytes += bytes;
    });
}

/// Counts a work request that was completed or flushed.
#[inline]
pub(crate) fn request() {
    note(|done| done.requests += 1);
}

/// Counts received frames.
#[inline]
pub(crate) fn received(frames: usize) {
    note(|done| done.received += frames);
}

/// Counts a packet that was passed to a QP.
#[inline]
pub(crate) fn delivery() {
    note(|done| done.deliveries += 1);
}

/// Counts the bytes of sent frames.
#[inline]
pub(crate) fn sent(bytes: usize) {
    note(|done| done.sent += bytes);
}

/// Counts notifications.
#[inline]
pub(crate) fn notified(count: usize) {
    note(|done| done.notifications += count);
}

/// Begins a turn.
#[inline]
pub(crate) fn begin() {
    note(|done| *done = Done::default());
}

#[cfg(not(feature = "counting"))]
fn note(_change: impl FnOnce(&mut Done)) {}

#[cfg(feature = "counting")]
pub(crate) use counted::end;
#[cfg(feature = "counting")]
use counted::note;

#[cfg(feature = "counting")]
mod counted {
    use std::cell::Cell;

    use super::Done;

    thread_local! {
        static DONE: Cell<Done> = Cell::default();
    }

    pub(super) fn note(change: impl FnOnce(&mut Done)) {
        DONE.with(|done| {
            let mut now = done.get();
            change(&mut now);
            done.set(now);
        });
    }

    /// Ends a turn. Returns the least cost of its work. The prices are lower than those of a
    /// [`TurnBudget`](crate::turn::TurnBudget), since one charge may cover several kinds of work:
    /// the charge of a received frame covers its bytes and its delivery to one QP.
    pub(crate) fn end() -> usize {
        let done = DONE.take();
        done.bytes / 4
            + done.pieces * 256
            + done.requests * 512
            + done.received * 512
            + done.deliveries * 512
            + done.sent
            + done.notifications * 512
    }
}

#[cfg(all(test, feature = "counting"))]
mod tests {
    use super::*;
    use crate::turn::{TurnBudget, TURN};
    use crate::Clock;

    #[test]
    fn the_charge_of_a_received_frame_covers_its_work() {
        let clock = Clock::manual();
        let budget = TurnBudget::new(&clock, clock.now(), TURN);
        begin();
        received(1);
        delivery();
        copied(0, 4096);
        budget.charge_received();
        assert!(end() <= budget.spent());
        received(1);
        assert_eq!(end(), 512);
        assert_eq!(end(), 0, "counted once");
        copied(3, 400);
        assert_eq!(end(), 3 * 256 + 100, "pieces have a price");
    }
}
