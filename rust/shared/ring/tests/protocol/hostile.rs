// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Model of a hostile owner: each load of the device from its rings may return any value.
//!
//! The device serves a hostile QP, CQ and SRQ alternately with an honest QP. It must stay within
//! its bounds and return to the honest QP, even if the hostile rings are corrupt.

use crate::search::{breaks, holds, Broken, Model};
use crate::{ahead, position, WRAP};

const SLOTS: u8 = 4;
/// Maximum number of work requests that a turn may fetch.
const BUDGET: u8 = 2;

const OUTSIDE: Broken = "the device reads outside of the slots";
const TOO_MANY: Broken = "more work requests are outstanding than the ring has slots";
const OVERWRITTEN: Broken = "more CQEs are unpolled than the ring has slots";
const WEDGED: Broken = "the honest QP gets no turn";

/// A deliberate mistake in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// The device trusts the producer's position.
    Producer,
    /// The device reads the producer's position again after checking it.
    SecondRead,
    /// The device trusts the consumer's position.
    Consumer,
    /// The device trusts `order`.
    Order,
    /// A turn continues as long as there is work.
    NoBudget,
}

/// The device's state of a queue. Counts are modulo `WRAP`, since only differences matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Queue {
    next: u8,
    seen: u8,
    done: u8,
    is_dead: bool,
}

impl Queue {
    fn outstanding(&self) -> u8 {
        ahead(self.next, self.done)
    }

    /// Checks for work. `producer` is the loaded position of the producer.
    fn peek(&mut self, flaw: Flaw, producer: u8) -> bool {
        if self.next != self.seen && flaw != Flaw::SecondRead {
            return true;
        }
        let is_known = self.next != self.seen;
        let fresh = ahead(producer, self.next);
        let room = SLOTS.saturating_sub(self.outstanding());
        let is_believed = flaw == Flaw::Producer || is_known;
        if fresh > room && !is_believed {
            self.is_dead = true;
            return false;
        }
        self.seen = producer;
        fresh != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Turn {
    Work,
    Shared,
    Completion,
    Honest,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    flaw: Flaw,
    /// Whether the hostile owner has an SRQ, rather than a QP with its own queues.
    has_srq: bool,
    turn: Turn,
    /// Number of work requests fetched in this turn.
    fetched: u8,
    work: Queue,
    shared: Queue,
    /// The device's position in the CQ, and the consumer's position that the device assumes.
    produced: u8,
    consumed: u8,
    is_cq_dead: bool,
    broken: Option<Broken>,
}

impl State {
    fn new(flaw: Flaw, has_srq: bool) -> Self {
        Self {
            flaw,
            has_srq,

            turn: Turn::Honest,
            fetched: 0,
            work: Queue::default(),
            shared: Queue::default(),
            produced: 0,
            consumed: 0,
            is_cq_dead: false,
            broken: None,
        }
    }

    fn end_turn(&self) -> Self {
        let mut next = self.clone();
        next.fetched = 0;
        next.turn = match self.turn {
            Turn::Work | Turn::Shared => Turn::Completion,
            Turn::Completion => Turn::Honest,
            Turn::Honest if self.has_srq => Turn::Shared,
            Turn::Honest => Turn::Work,
        };
        next
    }

    /// Fetches from a hostile queue. `slot` is the value loaded from `order`.
    fn fetch(&self, producer: u8, slot: Option<u8>) -> Self {
        let mut next = self.clone();
        let queue = match slot {
            Some(_) => &mut next.shared,
            None => &mut next.work,
        };
        if queue.is_dead || !queue.peek(self.flaw, producer) {
            return next.end_turn();
        }
        let slot = slot.unwrap_or(queue.next % SLOTS);
        if slot >= SLOTS && self.flaw != Flaw::Order {
            queue.is_dead = true;
            return next.end_turn();
        }
        queue.next = position(queue.next + 1);
        let is_within = queue.outstanding() <= SLOTS && queue.outstanding() != 0;
        if slot >= SLOTS {
            next.broken = Some(OUTSIDE);
        } else if !is_within {
            next.broken = Some(TOO_MANY);
        }
        next.fetched += 1;
        if next.fetched > BUDGET {
            next.broken = Some(WEDGED);
        }
        match next.fetched < BUDGET || self.flaw == Flaw::NoBudget {
            true => next,
            false => next.end_turn(),
        }
    }

    /// Pushes a CQE. `consumer` is the loaded position of the consumer.
    fn push(&self, consumer: u8) -> Self {
        let mut next = self.end_turn();
        if ahead(self.produced, self.consumed) == SLOTS {
            let unpolled = ahead(self.produced, consumer);
            if unpolled >= SLOTS && self.flaw != Flaw::Consumer {
                next.is_cq_dead = true;
                return next;
            }
            next.consumed = consumer;
        }
        next.produced = position(self.produced + 1);
        if ahead(next.produced, next.consumed) > SLOTS {
            next.broken = Some(OVERWRITTEN);
        }
        next
    }
}

impl Model for State {
    fn steps(&self) -> Vec<(&'static str, Self)> {
        let mut steps = Vec::new();
        for value in 0..WRAP {
            match self.turn {
                Turn::Work => steps.push(("fetch", self.fetch(value, None))),
                Turn::Shared => {
                    for slot in 0..WRAP {
                        steps.push(("fetch from the SRQ", self.fetch(value, Some(slot))));
                    }
                }
                Turn::Completion if !self.is_cq_dead => {
                    steps.push(("push a CQE", self.push(value)));
                }
                Turn::Completion | Turn::Honest => steps.push(("end", self.end_turn())),
            }
        }
        for is_shared in [false, true] {
            let mut next = self.clone();
            let queue = match is_shared {
                true => &mut next.shared,
                false => &mut next.work,
            };
            if queue.outstanding() != 0 {
                queue.done = position(queue.done + 1);
                steps.push(("complete", next));
            }
        }
        if self.work.is_dead {
            // A reset sets all positions to the value that the device loads, which may be any
            // value: all earlier work requests are dropped.
            for value in 0..WRAP {
                let (next, seen, done, is_dead) = (value, value, value, false);
                let work = Queue {
                    next,
                    seen,
                    done,
                    is_dead,
                };
                steps.push((
                    "reset",
                    Self {
                        work,
                        ..self.clone()
                    },
                ));
            }
        }
        steps
    }

    fn check(&self) -> Result<(), Broken> {
        self.broken.map_or(Ok(()), Err)
    }

    fn check_end(&self) -> Result<(), Broken> {
        Err(WEDGED)
    }
}

// abi
#[test]
fn a_hostile_owner_stays_within_its_bounds() {
    holds("hostile owner of a QP", [State::new(Flaw::None, false)]);
    holds("hostile owner of an SRQ", [State::new(Flaw::None, true)]);
}

// abi
#[test]
fn broken_variants_are_found() {
    for (flaw, rule) in [
        (Flaw::Producer, TOO_MANY),
        (Flaw::SecondRead, TOO_MANY),
        (Flaw::Consumer, OVERWRITTEN),
        (Flaw::Order, OUTSIDE),
        (Flaw::NoBudget, WEDGED),
    ] {
        println!("{flaw:?}");
        breaks(rule, [State::new(flaw, flaw == Flaw::Order)]);
    }
}
