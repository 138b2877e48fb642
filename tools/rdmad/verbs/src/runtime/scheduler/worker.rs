// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A worker's loop: rounds of turns, and sleep when there is no work.

use super::claim::Claims;
use super::current;
use super::sleep::Nap;
use super::sync::spin_loop;
use super::work::{Next, Work};

/// Maximum number of passed deadlines that a worker handles in a round, before it gives turns.
const TIMERS_A_ROUND: usize = 64;
/// Maximum number of turns in a round; between rounds a worker handles deadlines and polls watched
/// QPs.
const TURNS_A_ROUND: usize = 8;

/// A worker: a thread, or a state machine that a caller steps.
pub(crate) struct Worker<W> {
    /// The worker's number, from 0.
    number: usize,
    work: W,
    claims: Claims,
    /// Number of turns given in this round; `None` between rounds.
    turns: Option<usize>,
    /// The sleep of a stepped worker.
    nap: Option<Nap>,
}

impl<W: Work> Worker<W> {
    /// A worker before its first round.
    pub(super) fn new(number: usize, work: W) -> Self {
        Self {
            number,
            work,
            claims: Claims::new(number),
            turns: None,
            nap: None,
        }
    }

    /// Runs the worker in the current thread until the scheduler stops.
    pub(super) fn run(mut self) {
        current::become_worker(self.number);
        while !self.work.scheduler().is_stopped() {
            let next = self.round();
            self.rest(next);
        }
    }

    /// Executes the worker's next step in the current thread: begins a round, gives a turn, or ends
    /// the round. Returns whether the worker is awake.
    pub(super) fn step(&mut self) -> bool {
        let number = self.number;
        current::as_worker(number, || self.wake_up() && self.step_awake())
    }

    /// Whether this stepped worker would still sleep at its next step.
    pub(super) fn sleeps_on(&self) -> bool {
        let scheduler = self.work.scheduler();
        let is_due = |nap: &Nap| {
            let now = scheduler.clock.now();
            scheduler.sleep.is_due(self.number, nap, now)
        };
        self.nap.as_ref().is_some_and(|nap| !is_due(nap))
    }

    fn step_awake(&mut self) -> bool {
        let places = self.work.places();
        match self.go_on(&places) {
            None => true,
            Some(next) => {
                drop(places);
                self.rest(next)
            }
        }
    }

    /// Executes a round.
    fn round(&mut self) -> Next {
        // Taken anew in each round, so a sleeping worker holds no reference to devices.
        let places = self.work.places();
        loop {
            if let Some(next) = self.go_on(&places) {
                return next;
            }
        }
    }

    /// Executes the next step of a round. After the last step, returns what the worker does next.
    #[inline]
    fn go_on(&mut self, places: &W::Places) -> Option<Next> {
        match self.turns {
            None => {
                self.begin();
                self.turns = Some(0);
            }
            Some(turns) => {
                if turns == TURNS_A_ROUND || !self.turn(places) {
                    self.turns = None;
                    return Some(self.work.end());
                }
                self.turns = Some(turns + 1);
            }
        }
        None
    }

    /// Gives the next ready flow a turn. Returns whether there was one.
    #[inline]
    fn turn(&mut self, places: &W::Places) -> bool {
        let Some(claim) = self.claims.next(&self.work, places) else {
            return false;
        };
        let end = self.work.serve(places, claim.key);
        if let Some(flows) = W::flows(places, claim.key.port) {
            self.claims.end(self.work.scheduler(), flows, claim, end);
        }
        true
    }

    fn begin(&mut self) {
        let scheduler = self.work.scheduler();
        let now = scheduler.clock.now();
        for _ in 0..TIMERS_A_ROUND {
            let Some(key) = scheduler.workers[self.number].timers.expired(now) else {
                break;
            };
            self.work.expired(key);
        }
        self.work.begin(now);
    }

    /// Executes `next`, the action after a round. Returns whether the worker is awake.
    fn rest(&mut self, next: Next) -> bool {
        self.claims.set_watching(matches!(next, Next::Watch));
        match next {
            Next::Round => {}
            Next::Watch => spin_loop(),
            Next::Sleep => {
                let scheduler = self.work.scheduler();
                self.nap = scheduler.sleep.sleep(
                    self.number,
                    &scheduler.clock,
                    || scheduler.has_work(self.number) || scheduler.is_stopped(),
                    || scheduler.workers[self.number].timers.next(),
                );
            }
        }
        self.nap.is_none()
    }

    /// Ends a sleep that is over. Returns whether the worker is awake.
    fn wake_up(&mut self) -> bool {
        let scheduler = self.work.scheduler();
        let over = |nap: &Nap| {
            let now = scheduler.clock.now();
            scheduler.sleep.is_over(self.number, nap, now)
        };
        if self.nap.as_ref().is_some_and(over) {
            self.nap = None;
        }
        self.nap.is_none()
    }
}
