// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Turns: their cost, and their end.
//!
//! The unit of cost is the time to copy one byte. All work is charged to a budget, and a turn ends
//! when the budget is spent, so no QP occupies a worker for long.
//!
//! Some work takes far longer than its charge, for example the first access to a page that the host
//! has not provided yet. So the budget also reads the clock from time to time, and time is charged
//! too: a turn ends when the budget finds that [`TURN_TIME`] has passed. Until its first look, a
//! turn accesses at most [`FIRST_LOOK`] pieces or pages, then [`SLOW_LOOK`] while they take long.
//! The time beyond [`TURN_TIME`] is a debt of the port.

pub(crate) mod done;
mod parked;

use std::cell::Cell;
use std::time::{Duration, Instant};

use scheduler::Clock;

pub(crate) use parked::Parked;

/// Budget of a turn, for each half of a QP: two work requests of 64 KiB, so that messages of common
/// lengths end with a turn. It bounds the delay of a small message behind large ones, since a
/// sparse flow waits for a few turns at most.
pub(crate) const TURN: usize = 2 * (WORK_REQUEST + 2 * PIECE + (64 << 10));
/// Time that costs as much as a whole turn. Copying takes less than a tenth of it, so it limits
/// only work that the host delays.
pub(crate) const TURN_TIME: Duration = Duration::from_micros(200);
/// Maximum cost by which the last step of a turn may exceed the budget. The most expensive steps
/// complete 128 work requests, or send a message of as many packets.
#[cfg(feature = "testing")]
const LAST_STEP: usize = 256 << 10;
/// Largest cost of a turn.
#[cfg(feature = "testing")]
pub const MAX_TURN: usize = TURN + LAST_STEP;
/// Cost of a work request of any kind, without its memory.
const WORK_REQUEST: usize = 512;
/// Cost of a contiguous piece of a message in guest memory: an SGE, a page, or a remote address.
/// The bytes cost extra.
const PIECE: usize = 256;
/// Cost of checking an SGE after the first one of a work request.
const SGE: usize = 128;
/// Cost of a byte of a sent frame: 65 KiB of frames fill a turn. With fewer bytes the overhead of
/// turns would dominate. With more, the frames would no longer be in the cache when their receiver
/// reads them.
const FRAME_BYTE: usize = 2;
/// Least cost of a sent frame.
const FRAME: usize = 1024;
/// Cost of a received frame, its bytes included: 64 frames fill a turn.
const RECEIVED_FRAME: usize = TURN / 64;
/// Cost of a notification to the driver or to a QP of the port: 64 of them fill a turn.
const NOTIFICATION: usize = TURN / 64;
/// Cost by which a message may exceed the budget to end with the turn. It covers the pages of two
/// messages of 64 KiB.
const OVERDRAFT: usize = 8 << 10;

/// Bytes of a message that are copied even if the turn's time is over. A step makes some progress.
const LEAST_COPY: usize = 4096;

/// Number of charges from the start of a turn to its first look at the clock.
const FIRST_LOOK: usize = 8;
/// Number of charges between two looks at the clock. If each of them waits for the host to provide
/// a page, they take some hundred microseconds.
const LOOK: usize = 32;
/// The same while work takes longer than its charge.
const SLOW_LOOK: usize = 2;
/// Number of copied bytes that count as a charge for the clock.
const LOOK_BYTES: usize = 4096;

/// The budget of a turn, and the part of it that is spent.
#[derive(Debug)]
pub(crate) struct TurnBudget<'a> {
    clock: &'a Clock,
    start: Instant,
    /// Cost at which the turn ends, at most [`TURN`].
    limit: usize,
    /// Cost of the work.
    spent: Cell<usize>,
    /// Cost of the time from the start to the last look at the clock.
    time: Cell<usize>,
    /// Number of charges until the next look at the clock.
    look: Cell<usize>,
}

/// Proof that a step was charged. A loop that requires one for each iteration terminates.
#[derive(Debug)]
#[must_use]
pub(crate) struct Charged(());

impl<'a> TurnBudget<'a> {
    /// The budget of a turn that started at `start` and ends at cost `limit`.
    #[inline]
    pub(crate) fn new(clock: &'a Clock, start: Instant, limit: usize) -> Self {
        Self {
            clock,
            start,
            limit,
            spent: Cell::new(0),
            time: Cell::new(0),
            look: Cell::new(FIRST_LOOK),
        }
    }

    #[inline]
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Cost of the work so far. May exceed the budget after the last step.
    #[inline]
    pub(crate) fn spent(&self) -> usize {
        self.spent.get()
    }

    /// Cost of the turn so far: the greater of the cost of its work and of its time.
    #[inline]
    pub(crate) fn cost(&self) -> usize {
        self.spent().max(self.time.get())
    }

    /// Whether the budget is spent, so the turn must end.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// Whether the turn must end even within a message.
    #[inline]
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.time.get() >= self.limit || self.spent() >= self.limit + 2 * OVERDRAFT
    }

    /// Number of bytes that may be copied before they are charged: no more than up to the next look
    /// at the clock.
    #[inline]
    pub(crate) fn until_look(&self) -> usize {
        self.look.get() * LOOK_BYTES
    }

    /// Number of bytes that may still be copied in this turn.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.limit.saturating_sub(self.cost())
    }

    /// Number of bytes of a message that may be copied in this turn, if `bytes` of it are left. A
    /// message that exceeds the budget by little is not cut.
    #[inline]
    pub(crate) fn left_for_message(&self, bytes: usize) -> usize {
        let left = self.left();
        if bytes <= left + OVERDRAFT {
            bytes
        } else {
            left.max(LEAST_COPY)
        }
    }

    /// Number of bytes of frames that may still be sent in this turn; at least 1.
    pub(crate) fn left_for_frames(&self) -> usize {
        (self.left() / FRAME_BYTE).max(1)
    }

    /// Charges a completed work request.
    #[inline]
    pub(crate) fn charge_work_request(&self) -> Charged {
        self.charge(WORK_REQUEST)
    }

    /// Charges the check of a fetched work request with this number of SGEs.
    #[inline]
    pub(crate) fn charge_sges(&self, count: u32) {
        if count > 1 {
            let _ = self.charge((count as usize - 1) * SGE);
        }
    }

    /// Charges an access to a contiguous piece of guest memory.
    #[inline]
    pub(crate) fn charge_piece(&self) {
        let _ = self.charge(PIECE);
    }

    /// Charges a copy of a contiguous piece of guest memory.
    #[inline]
    pub(crate) fn charge_copy(&self, bytes: usize) {
        self.add(PIECE.saturating_add(bytes), 1 + bytes / LOOK_BYTES);
    }

    #[inline]
    pub(crate) fn charge_bytes(&self, bytes: usize) {
        self.add(bytes, bytes / LOOK_BYTES);
    }

    /// Charges a received frame.
    pub(crate) fn charge_received(&self) {
        let _ = self.charge(RECEIVED_FRAME);
    }

    /// Charges a sent frame of `bytes` bytes.
    #[inline]
    pub(crate) fn charge_frame(&self, bytes: usize) {
        let _ = self.charge((bytes * FRAME_BYTE).max(FRAME));
    }

    /// Charges a notification to the driver, or a turn requested for a QP of the port.
    pub(crate) fn charge_notification(&self) {
        let _ = self.charge(NOTIFICATION);
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

    #[inline]
    fn charge(&self, cost: usize) -> Charged {
        self.add(cost, 1);
        Charged(())
    }

    #[inline]
    fn add(&self, cost: usize, steps: usize) {
        self.spent.set(self.spent().saturating_add(cost));
        match self.look.get().checked_sub(steps) {
            Some(left @ 1..) => self.look.set(left),
            _ => self.look_at_clock(),
        }
    }

    /// Charges the time since the start of the turn.
    #[cold]
    fn look_at_clock(&self) {
        let time = cost_of(self.clock.now().saturating_duration_since(self.start));
        let is_slow = time > self.spent();
        self.time.set(time);
        self.look.set(if is_slow { SLOW_LOOK } else { LOOK });
    }
}

pub(crate) fn cost_of(time: Duration) -> usize {
    // 64 bits of nanoseconds last for five centuries.
    let (time, turn) = (time.as_nanos() as u64, TURN_TIME.as_nanos() as u64);
    (time.saturating_mul(TURN as u64) / turn) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(clock: &Clock) -> TurnBudget<'_> {
        TurnBudget::new(clock, clock.now(), TURN)
    }

    /// Two messages of 64 KiB fit a turn: otherwise each turn would end within a message.
    #[test]
    fn two_messages_of_64_kib_fill_a_turn() {
        const MESSAGE: usize = 64 << 10;
        let clock = Clock::manual();
        for pages in [1, 17] {
            let budget = budget(&clock);
            for _ in 0..2 {
                assert_eq!(budget.left_for_message(MESSAGE), MESSAGE, "{pages}");
                budget.charge_bytes(MESSAGE);
                (0..2 * pages).for_each(|_| budget.charge_piece());
                assert!(!budget.is_overdrawn());
                let _ = budget.charge_work_request();
            }
            assert!(budget.is_spent());
        }
    }

    #[test]
    fn frames_fill_a_turn() {
        let clock = Clock::manual();
        let received = budget(&clock);
        (0..63).for_each(|_| received.charge_received());
        assert!(!received.is_spent());
        received.charge_received();
        assert!(received.is_spent());
        let sent = budget(&clock);
        assert_eq!(sent.left_for_frames(), 65 << 10);
        sent.charge_frame(64 << 10);
        assert_eq!(sent.left_for_frames(), 1 << 10);
        sent.charge_frame(1);
        assert_eq!(sent.left_for_frames(), 512);
    }

    #[test]
    fn everything_costs_and_the_last_step_may_exceed() {
        let clock = Clock::manual();
        let budget = budget(&clock);
        let _ = budget.charge_work_request();
        assert_eq!(budget.left(), TURN - 512);
        let _ = budget.charged_since(0);
        assert_eq!(budget.spent(), 512, "charged once");
        budget.charge_sges(1);
        assert_eq!(budget.spent(), 512, "part of the work request");
        budget.charge_sges(32);
        assert_eq!(budget.spent(), 512 + 31 * SGE);
        budget.charge_bytes(usize::MAX);
        assert!(budget.is_spent() && budget.is_overdrawn());
        assert_eq!(budget.left_for_frames(), 1);
        assert_eq!(budget.left_for_message(8), 8);
        assert_eq!(budget.left_for_message(1 << 20), LEAST_COPY);
        assert_eq!(budget.spent(), usize::MAX);
    }

    #[test]
    fn a_turn_ends_by_the_clock_although_it_has_done_little() {
        let clock = Clock::manual();
        let budget = budget(&clock);
        (0..FIRST_LOOK).for_each(|_| budget.charge_piece());
        clock.pass(TURN_TIME);
        assert!(!budget.is_spent(), "not looked yet");
        (0..LOOK).for_each(|_| budget.charge_piece());
        assert!(budget.is_spent() && budget.is_overdrawn());
        assert_eq!(budget.spent(), (FIRST_LOOK + LOOK) * PIECE);
    }

    #[test]
    fn copies_are_charged_at_each_look() {
        let clock = Clock::manual();
        let budget = budget(&clock);
        budget.charge_piece();
        assert_eq!(budget.until_look(), (FIRST_LOOK - 1) * LOOK_BYTES);
        budget.charge_bytes(budget.until_look());
        assert_eq!(budget.until_look(), LOOK * LOOK_BYTES, "it has looked");
        clock.pass(TURN_TIME / 2);
        budget.charge_bytes(budget.until_look());
        clock.pass(3 * TURN_TIME);
        budget.charge_bytes(budget.until_look());
        assert_eq!(budget.until_look(), SLOW_LOOK * LOOK_BYTES, "it is slow");
    }

    #[test]
    fn slow_work_is_watched_closely() {
        let clock = Clock::manual();
        let budget = budget(&clock);
        let mut pieces = 0;
        while !budget.is_spent() {
            budget.charge_piece();
            pieces += 1;
            clock.pass(TURN_TIME / 20);
        }
        assert!((20..20 + 2 * SLOW_LOOK).contains(&pieces), "{pieces}");
        let copies = TurnBudget::new(&clock, clock.now(), TURN);
        clock.pass(TURN_TIME);
        copies.charge_bytes(FIRST_LOOK * LOOK_BYTES);
        assert!(copies.is_spent(), "copied pages count too");
    }
}
