// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A worker's loop: rounds of turns, and sleep when there is no work.

use std::time::Instant;

use sandbox::Passer;
use virtio_rdma_abi::number::PortId;

use crate::activity::Activity;
use crate::claim::{Claim, Claims};
use crate::current::{as_worker, become_worker};
use crate::sleep::{Bed, Nap};
use crate::sync::{spin_loop, Mutex, Ordering};
use crate::work::{Next, TurnStart, Work};

/// Maximum number of passed deadlines that a worker handles in a round, before it gives turns.
const TIMERS_A_ROUND: usize = 64;
/// Maximum number of turns in a round; between rounds a worker handles deadlines and polls watched
/// QPs.
const TURNS_A_ROUND: usize = 8;
/// Cost of the turns that a thread gives in place of a sleeping worker, as a fraction of a turn.
/// The thread has other work to do afterwards.
const STAND_IN: usize = 2;

/// A worker: a thread, or a state machine that a caller steps.
pub struct Worker<W> {
    /// The worker's number, from 0.
    number: usize,
    work: W,
    claims: Claims,
    /// Number of turns given in this round; `None` between rounds.
    turns: Option<usize>,
    /// The sleep of the worker, if it sleeps.
    nap: Option<Nap>,
}

impl<W: Work> Worker<W> {
    /// A worker before its first round.
    pub(crate) fn new(number: usize, work: W) -> Self {
        Self {
            number,
            work,
            claims: Claims::new(number),
            turns: None,
            nap: None,
        }
    }

    /// Runs the worker in the current thread until the scheduler stops. While the worker sleeps,
    /// the thread waits at `bed` without the lock, so that another thread may [stand
    /// in](crate::StandIns).
    pub(crate) fn run(worker: &Mutex<Self>, bed: &Bed) {
        let mut awake = worker.lock();
        become_worker(awake.number);
        awake.activity().pulse.begin_thread();
        let passer = awake.work.scheduler().gate.enter();
        while awake.run_until_sleep(&passer) {
            let alarm = awake.alarm();
            drop(awake);
            bed.wait(alarm);
            awake = worker.lock();
        }
    }

    /// Executes rounds until the worker sleeps. Returns false if the scheduler has stopped.
    fn run_until_sleep(&mut self, passer: &Passer) -> bool {
        while !self.work.scheduler().is_stopped() {
            // The worker is locked, so nobody stands in for it.
            passer.pass();
            if !self.wake_up() {
                return true;
            }
            let next = self.round();
            self.rest(next);
        }
        false
    }

    /// Time until which the worker's thread waits if the worker is not woken.
    fn alarm(&self) -> Option<Instant> {
        let clock = &self.work.scheduler().clock;
        clock.alarm(self.nap.as_ref()?.deadline?)
    }

    /// Gives turns to sparse flows of `port` in the current thread in place of the worker's thread,
    /// if the worker sleeps: until none of them is ready, but at most for the cost of half a turn.
    /// Wakes the worker if any work is left. Returns false if the worker did not sleep.
    pub(crate) fn stand_in(&mut self, port: PortId) -> bool {
        let number = self.number;
        if self.nap.is_none() || !self.work.scheduler().sleep.begin_stand_in(number) {
            return false;
        }
        let is_done = as_worker(number, || {
            self.lend_turns(port);
            // In an empty round the worker finds out whether it may sleep.
            self.begin();
            matches!(self.work.end(), Next::Sleep)
        });
        self.activity().lie_down();
        let scheduler = self.work.scheduler();
        let stand_ins = &scheduler.workers[number].stand_ins;
        stand_ins.fetch_add(1, Ordering::Relaxed);
        scheduler.sleep.end_stand_in(number, || {
            !is_done || self.is_wanted() || self.is_deadline_before_alarm()
        });
        true
    }

    fn lend_turns(&mut self, port: PortId) {
        let places = self.work.places();
        self.begin();
        let mut left = self.work.scheduler().turn / STAND_IN;
        while left > 0 {
            let next = self.claims.next_of(&self.work, &places, port, left);
            let Some((claim, start)) = next else {
                break;
            };
            let cost = self.give(&places, claim, start);
            left = left.saturating_sub(cost);
        }
        self.claims.charge_last(&self.work, &places);
        let _ = self.work.end();
    }

    /// Executes the worker's next step in the current thread: begins a round, gives a turn, or ends
    /// the round. Returns whether the worker is awake.
    pub(crate) fn step(&mut self) -> bool {
        let number = self.number;
        as_worker(number, || self.wake_up() && self.step_awake())
    }

    /// Whether this worker, which is stepped, would still sleep at its next step.
    pub(crate) fn sleeps_on(&self) -> bool {
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
        // Taken anew in each round, so a sleeping worker holds no reference to HCAs.
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
                    self.activity().end_turns();
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
        let Some((claim, start)) = self.claims.next(&self.work, places) else {
            return false;
        };
        self.give(places, claim, start);
        true
    }

    /// Gives a claimed flow its turn. Returns the cost of the turn.
    #[inline]
    fn give(&mut self, places: &W::Places, claim: Claim, start: TurnStart) -> usize {
        let scheduler = self.work.scheduler();
        let least = scheduler.least_turn();
        self.activity().turn(claim.key, scheduler.nanos(start.now));
        let end = self.work.serve(places, claim.key, start);
        if let Some(flows) = W::flows(places, claim.key.port) {
            let scheduler = self.work.scheduler();
            self.claims.end(scheduler, flows, claim, start.now, end);
        }
        end.cost.max(least)
    }

    fn begin(&mut self) {
        let scheduler = self.work.scheduler();
        let now = scheduler.clock.now();
        self.activity().begin(scheduler.nanos(now));
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
                let sleep = &self.work.scheduler().sleep;
                let busy = || self.is_wanted();
                self.nap = sleep.lie_down(self.number, busy, || self.next_deadline());
            }
        }
        if self.nap.is_some() {
            self.activity().lie_down();
        }
        self.nap.is_none()
    }

    /// The worker's notes for observers.
    #[inline]
    fn activity(&self) -> &Activity {
        &self.work.scheduler().workers[self.number].activity
    }

    /// Whether the worker must not sleep.
    fn is_wanted(&self) -> bool {
        let scheduler = self.work.scheduler();
        scheduler.has_work(self.number) || scheduler.is_stopped() || scheduler.gate.is_closed()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let scheduler = self.work.scheduler();
        scheduler.workers[self.number].timers.next()
    }

    /// Whether a deadline was set that is earlier than the one until which the worker sleeps.
    fn is_deadline_before_alarm(&self) -> bool {
        let alarm = self.nap.as_ref().and_then(|nap| nap.deadline);
        let deadline = self.next_deadline();
        deadline.is_some_and(|deadline| alarm.is_none_or(|alarm| deadline < alarm))
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
