// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One run of the simulation: setup from the first choices, steps, and an end at which all work
//! requests complete.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use testkit::engine::{stepped, InFlight};
use verbs::{Clock, PathPolicy, Runtime, RuntimeConfig};
use vswitch::Caller;

use crate::choices::Choices;
use crate::connection::Connection;
use crate::guest::Guest;
use crate::mail::Mail;
use crate::party::{is_same, Destroyed, Party};
use crate::shared::Shared;
use crate::variant::Variant;
use crate::vault::Vault;

/// Maximum number of frames in a row that may be lost, so that no requester uses up its retries.
const LOSSES: usize = 3;
/// Maximum number of deadlines that may pass before all frames are delivered, so that no requester
/// uses up its retries.
const DELAYS: usize = 5;
/// Number of steps of workers after an event that are followed by a rebuild.
const REBUILDS: usize = 3;
/// Number of steps after which workers count as never coming to rest.
const ENDLESS: usize = 100_000;

struct Sim<'w> {
    runtime: &'w Runtime,
    clock: Clock,
    /// Whether devices are rebuilt: saved, destroyed and restored.
    rebuilds: bool,
    /// Number of steps of workers after which devices are still rebuilt until the next event. A
    /// rebuilt device gets turns, which would never end if each of them were followed by another.
    rebuilds_left: usize,
    net: &'w InFlight,
    guests: &'w [Guest],
    workers: usize,
    parties: Vec<Placed<'w>>,
    destroyed: Vec<Destroyed<'w>>,
    lost: usize,
    delayed: usize,
    /// Index of the worker that takes the first step.
    first: usize,
}

/// A party, and the data path of all of its connections.
struct Placed<'w> {
    path: PathPolicy,
    party: Box<dyn Party<'w> + 'w>,
}

/// Executes a run. Panics if the run fails.
pub fn run(choices: &mut Choices) {
    let workers = 1 + choices.below(3);
    let clock = Clock::manual();
    let runtime = Runtime::new(RuntimeConfig {
        at_once: choices.once_in(3),
        clock: clock.clone(),
        ..stepped::config(workers)
    })
    .unwrap();
    let net = Arc::new(InFlight::default());
    let count = 2 + choices.below(2);
    let guests: Vec<_> = (1..=count)
        .map(|n| Guest::new(n, (&runtime, clock.clone()), &net, choices))
        .collect();
    let mut sim = Sim {
        runtime: &runtime,
        clock,
        rebuilds: choices.variant() == Variant::Rebuilt || choices.widely_once_in(8),
        rebuilds_left: 0,
        net: &net,
        guests: &guests,
        workers,
        parties: Vec::new(),
        destroyed: Vec::new(),
        lost: 0,
        delayed: 0,
        first: 0,
    };
    let before: Vec<_> = guests.iter().map(Guest::size).collect();
    // Whether the parties are destroyed in the middle of their work at the end.
    let is_cut_off = choices.once_in(4);
    for _ in 0..=choices.below(3) {
        let party = sim.party(choices);
        sim.parties.push(party);
    }
    while choices.next_step() {
        sim.step(choices);
        sim.observe();
        assert!(!runtime.sleeps_over_work(), "all sleep, and there is work");
    }
    if !is_cut_off {
        sim.finish();
        sim.end();
    }
    sim.destroy_parties();
    for (guest, before) in guests.iter().zip(&before) {
        guest.check_room(before);
    }
    drop(sim);
    for guest in &guests {
        guest.vm.hca.detach();
    }
}

impl<'w> Sim<'w> {
    fn party(&self, choices: &mut Choices) -> Placed<'w> {
        let path = choices.of(&[PathPolicy::Direct, PathPolicy::Wire]);
        self.runtime.set_path(path);
        let party: Box<dyn Party<'w> + 'w> = match choices.below(6) {
            0..=1 => Box::new(Connection::new(self.guests, choices)),
            2..=3 => Box::new(Vault::new(self.guests, choices)),
            4 => Box::new(Shared::new(self.guests, choices)),
            _ => Box::new(Mail::new(self.guests, choices)),
        };
        Placed { path, party }
    }

    fn step(&mut self, choices: &mut Choices) {
        self.rebuilds_left = REBUILDS;
        match choices.below(36) {
            0..=9 => {
                let worker = choices.below(self.workers);
                self.turn(worker);
            }
            10..=26 => {
                let at = choices.below(self.parties.len());
                let Placed { path, party } = &mut self.parties[at];
                self.runtime.set_path(*path);
                party.act(choices);
            }
            27..=32 => self.frames(choices),
            33..=34 => self.time(choices),
            _ => {
                let at = choices.below(self.parties.len());
                match choices.below(12) {
                    6..=7 => self.replace(at, choices),
                    8..=9 => {
                        let guest = &self.guests[choices.below(self.guests.len())];
                        guest.set_link(choices.once_in(2));
                        guest.take_port_events();
                    }
                    10 => self.readdress(choices),
                    11 => {
                        if choices.once_in(3) {
                            self.reset(choices);
                        }
                    }
                    _ if self.parties[at].party.is_over() => self.replace(at, choices),
                    _ => {}
                }
            }
        }
    }

    /// Destroys a party in the middle of its work, and creates another.
    fn replace(&mut self, at: usize, choices: &mut Choices) {
        let next = self.party(choices);
        let old = mem::replace(&mut self.parties[at], next);
        self.destroyed.extend(old.party.destroy());
    }

    /// Resets a device in the middle of its work.
    fn reset(&mut self, choices: &mut Choices) {
        let guest = &self.guests[choices.below(self.guests.len())];
        guest.reset();
        let parties = mem::take(&mut self.parties).into_iter();
        let (gone, left): (Vec<_>, _) = parties.partition(|placed| placed.party.uses(guest));
        self.parties = left;
        let count = gone.len();
        for placed in gone {
            self.destroyed.extend(placed.party.destroy());
        }
        guest.restart();
        for _ in 0..count {
            let party = self.party(choices);
            self.parties.push(party);
        }
    }

    /// Deletes the address of a guest and adds it again. Checks that another guest can add this
    /// address only in between.
    fn readdress(&mut self, choices: &mut Choices) {
        let guest = &self.guests[choices.below(self.guests.len())];
        let other = &self.guests[choices.below(self.guests.len())];
        let is_other = !is_same(guest, other);
        if is_other {
            assert!(!other.borrow_address(guest), "an address of two guests");
        }
        // Posted datagrams need the address, so they are sent first.
        self.work();
        guest.leave_address();
        if is_other {
            assert!(other.borrow_address(guest), "an address of nobody");
        }
        for _ in 0..choices.below(4) {
            self.frames(choices);
            self.turn(choices.below(self.workers));
        }
        guest.take_address();
    }

    /// Sets all links up.
    fn raise_links(&self) {
        for guest in self.guests {
            guest.set_link(true);
        }
    }

    fn frames(&mut self, choices: &mut Choices) {
        let flying = self.net.flying();
        if flying == 0 {
            return;
        }
        // Most frames are delivered in order.
        let at = if choices.once_in(8) {
            choices.below(flying)
        } else {
            0
        };
        match choices.below(12) {
            10 if self.lost < LOSSES => {
                self.lost += 1;
                self.net.lose(at);
            }
            11 => self.net.double(at),
            kind => {
                self.lost = 0;
                let caller = match choices.variant() == Variant::Wide && kind < 4 {
                    true => Caller::Idle,
                    false => Caller::Busy,
                };
                for _ in 0..=choices.below(8) {
                    let at = at.min(self.net.flying().saturating_sub(1));
                    self.net.deliver_as(at, caller);
                }
            }
        }
    }

    fn time(&mut self, choices: &mut Choices) {
        // A requester would use up its retries if its link stayed down.
        self.raise_links();
        self.delayed += 1;
        if self.delayed > DELAYS {
            self.delayed = 0;
            while self.work() | self.deliver_all() {}
        }
        let next = self.runtime.next_deadline();
        let time = match choices.below(3) {
            0 => next.unwrap_or_default(),
            1 => Duration::from_micros(1 + choices.below(20) as u64),
            _ => next.unwrap_or_default() / 2,
        };
        self.pass(time);
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        self.observe();
        self.rebuilds_left = REBUILDS;
        self.runtime.pass(time);
    }

    /// Runs until all posted work requests are complete, and checks all parties.
    fn finish(&mut self) {
        self.raise_links();
        for _ in 0..ENDLESS {
            let mut moved = self.work();
            moved |= self.deliver_all();
            // Each taken event frees a buffer, which further events may need to arrive.
            while self.take_events() {
                moved |= self.work();
            }
            for guest in self.guests {
                guest.note_all_events();
            }
            for Placed { party, .. } in &mut self.parties {
                moved |= party.poll();
            }
            if !moved {
                for Placed { party, .. } in &mut self.parties {
                    moved |= party.feed();
                }
            }
            if moved {
                continue;
            }
            match self.runtime.next_deadline() {
                Some(time) => self.pass(time),
                None if self.resume() => {}
                None => {
                    for Placed { party, .. } in &mut self.parties {
                        party.finish();
                    }
                    for guest in self.guests {
                        guest.check_port();
                        guest.check_counters();
                    }
                    return;
                }
            }
        }
        panic!("it does not come to its end");
    }

    /// Moves the QPs of all parties to ERR and runs until all is flushed.
    fn end(&mut self) {
        for Placed { party, .. } in &mut self.parties {
            party.end();
        }
        self.finish();
    }

    /// Destroys all parties, and checks that destroyed objects have no effect afterwards.
    fn destroy_parties(&mut self) {
        for Placed { party, .. } in mem::take(&mut self.parties) {
            self.destroyed.extend(party.destroy());
        }
        // Without QPs, no deadline is left.
        let left = self.runtime.next_deadline();
        assert_eq!(left, None, "a deadline of what is gone");
        while self.work() | self.deliver_all() | self.take_events() {}
        for objects in &self.destroyed {
            objects.is_quiet();
        }
    }

    /// Delivers all frames in flight. Returns whether there were any.
    fn deliver_all(&mut self) -> bool {
        let any = self.net.flying() > 0;
        if any {
            self.rebuilds_left = REBUILDS;
        }
        while self.net.flying() > 0 {
            self.net.deliver(0);
        }
        any
    }

    /// Resumes paused work of all parties. Returns whether there was any.
    fn resume(&mut self) -> bool {
        let mut any = false;
        for Placed { path, party } in &mut self.parties {
            self.runtime.set_path(*path);
            any |= party.resume();
        }
        any
    }

    /// Lets a worker take a step. Returns whether the worker is awake.
    fn turn(&mut self, worker: usize) -> bool {
        let is_awake = self.runtime.step(worker);
        // A worker that sleeps has served no QP.
        if is_awake && self.rebuilds && self.rebuilds_left > 0 {
            self.rebuilds_left -= 1;
            self.runtime.rebuild();
        }
        self.observe();
        is_awake
    }

    /// Lets the parties see what the workers have done.
    fn observe(&mut self) {
        for Placed { party, .. } in &mut self.parties {
            party.observe();
        }
    }

    /// Checks that a worker wakes up for each event that is delayed. Called when all workers sleep.
    fn check_delayed(&self) {
        let deadlines = self.parties.iter().map(|placed| placed.party.deadline());
        let Some(first) = deadlines.flatten().min() else {
            return;
        };
        let now = self.clock.now();
        let next = self.runtime.next_deadline().map(|next| now + next);
        // A worker has gone to sleep although a deadline has passed: it wakes up at once.
        let wakes = next.is_some_and(|next| next <= first.max(now));
        assert!(wakes, "all sleep, and an event is delayed");
    }

    /// Takes and checks the events of all guests and parties. Returns whether there were any.
    fn take_events(&mut self) -> bool {
        let guests = self.guests.iter();
        let any = guests.fold(false, |any, guest| guest.take_port_events() || any);
        let parties = self.parties.iter_mut();
        parties.fold(any, |any, placed| placed.party.take_events() || any)
    }

    /// Lets the workers take steps until all sleep. Returns whether any was awake.
    fn work(&mut self) -> bool {
        // The worker that steps first may do all of the work, so it is another worker each time.
        self.first += 1;
        let mut steps = 0;
        loop {
            let before = steps;
            for at in 0..self.workers {
                while self.turn((self.first + at) % self.workers) {
                    steps += 1;
                    assert!(steps < ENDLESS, "the workers never sleep");
                }
            }
            if steps == before {
                break;
            }
        }
        let lost = self.runtime.sleeps_over_work();
        assert!(!lost, "all sleep, and there is work");
        self.check_delayed();
        steps > 0
    }
}
