// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A worker's loop: rounds, and sleep when there is nothing to do.

use super::claim::Claims;
use super::current;
use super::sleep::Nap;
use super::sync::spin_loop;
use super::work::{Next, Work};

/// Expired deadlines that are looked at before other work goes on.
const TIMERS_A_ROUND: usize = 64;
/// Turns after which a worker looks at deadlines and at what it watches.
const TURNS_A_ROUND: usize = 8;

/// A worker: a thread, or steps that are chosen one by one.
pub(crate) struct Worker<W> {
    /// Counted from 0.
    number: usize,
    work: W,
    claims: Claims,
    /// Turns in this round, if it has begun.
    turns: Option<usize>,
    /// Its sleep, if it is stepped.
    nap: Option<Nap>,
}

impl<W: Work> Worker<W> {
    /// Before its first round.
    pub(super) fn new(number: usize, work: W) -> Self {
        Self {
            number,
            work,
            claims: Claims::new(number),
            turns: None,
            nap: None,
        }
    }

    /// Has the current thread serve until the scheduler stops.
    pub(super) fn run(mut self) {
        current::become_worker(self.number);
        while !self.work.scheduler().is_stopped() {
            let next = self.round();
            self.rest(next);
        }
    }

    /// Has the current thread do the next step: begin a round, give a turn, end the round.
    /// Returns whether the worker is awake.
    pub(super) fn step(&mut self) -> bool {
        let number = self.number;
        current::as_worker(number, || self.wake_up() && self.step_awake())
    }

    /// Whether the worker, which is stepped, would sleep on at its next step.
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

    /// The rest of a round.
    fn round(&mut self) -> Next {
        // They are not held while the worker sleeps.
        let places = self.work.places();
        loop {
            if let Some(next) = self.go_on(&places) {
                return next;
            }
        }
    }

    /// Does the next step of a round. Returns what follows the round if that was the last.
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

    /// Gives the next flow its turn. Returns whether there was one.
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

    /// Does what follows a round. Returns whether the worker is awake.
    fn rest(&mut self, next: Next) -> bool {
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

    /// Whether the worker is awake, perhaps since now.
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
