// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A worker's loop: rounds, and sleep when there is nothing to do.

use std::cell::Cell;
use std::time::Instant;

use super::sleep::Nap;
use super::sync::{spin_loop, thread_local};
use super::{QpKey, Scheduler};

/// Expired deadlines that are looked at before other work goes on.
const TIMERS_A_ROUND: usize = 64;

thread_local! {
    /// Its number, counted from 1, or 0 if it is none.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// Whether the current thread is a worker.
#[inline]
pub(super) fn is_worker() -> bool {
    shard() != 0
}

/// Where the current thread counts, so that no two workers of a runtime meet: the number of the
/// worker counted from 1, or 0 for all other threads.
#[inline]
pub(crate) fn shard() -> usize {
    WORKER.with(Cell::get)
}

/// The next step after a round.
pub(crate) enum Next {
    /// Another one.
    Round,
    /// Another one, for what is watched.
    Watch,
    /// Nothing, until the worker is woken or a deadline is over.
    Sleep,
}

/// Work of one worker, in rounds that visit some places.
pub(crate) trait Work: Send + 'static {
    /// The places of a round.
    type Places;

    /// State that the worker shares with others.
    fn scheduler(&self) -> &Scheduler;

    /// Whether there is something to do for some worker. A worker does not sleep then.
    fn is_busy(&self) -> bool;

    /// The places as they are now.
    fn places(&self) -> Self::Places;

    /// The deadline of this QP is over.
    fn expired(&self, key: QpKey);

    /// A round begins at `now`.
    fn begin(&mut self, now: Instant);

    /// Visits the place at `index`, counted from 0. Returns false if there is none.
    fn visit(&mut self, places: &Self::Places, index: usize) -> bool;

    /// The round ends.
    fn end(&mut self) -> Next;
}

/// A worker: a thread, or steps that are chosen one by one.
pub(crate) struct Worker<W> {
    /// Counted from 0.
    number: usize,
    work: W,
    /// The next place of this round, if it has begun.
    place: Option<usize>,
    /// Its sleep, if it is stepped.
    nap: Option<Nap>,
}

impl<W: Work> Worker<W> {
    /// Before its first round.
    pub(super) fn new(number: usize, work: W) -> Self {
        Self {
            number,
            work,
            place: None,
            nap: None,
        }
    }

    /// Has the current thread serve until the scheduler stops.
    pub(super) fn run(mut self) {
        WORKER.with(|worker| worker.set(self.number + 1));
        while !self.work.scheduler().is_stopped() {
            let next = self.round();
            self.rest(next);
        }
    }

    /// Has the current thread do the next step: begin a round, visit a place, end the round.
    /// Returns whether the worker is awake.
    pub(super) fn step(&mut self) -> bool {
        let before = WORKER.with(|worker| worker.replace(self.number + 1));
        let awake = self.wake_up() && self.step_awake();
        WORKER.with(|worker| worker.set(before));
        awake
    }

    /// Whether the worker, which is stepped, would sleep on at its next step.
    pub(super) fn sleeps_on(&self) -> bool {
        let scheduler = self.work.scheduler();
        let is_due = |nap: &Nap| scheduler.sleep.is_due(nap, scheduler.clock.now());
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
        match self.place {
            None => {
                self.begin();
                self.place = Some(0);
            }
            Some(index) if self.work.visit(places, index) => self.place = Some(index + 1),
            Some(_) => {
                self.place = None;
                return Some(self.work.end());
            }
        }
        None
    }

    fn begin(&mut self) {
        let scheduler = self.work.scheduler();
        let now = scheduler.clock.now();
        for _ in 0..TIMERS_A_ROUND {
            let Some(key) = scheduler.timers.expired(now) else {
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
                    &scheduler.clock,
                    || self.work.is_busy() || scheduler.is_stopped(),
                    || scheduler.timers.next(),
                );
            }
        }
        self.nap.is_none()
    }

    /// Whether the worker is awake, perhaps since now.
    fn wake_up(&mut self) -> bool {
        let scheduler = self.work.scheduler();
        let over = |nap: &Nap| scheduler.sleep.is_over(nap, scheduler.clock.now());
        if self.nap.as_ref().is_some_and(over) {
            self.nap = None;
        }
        self.nap.is_none()
    }
}
