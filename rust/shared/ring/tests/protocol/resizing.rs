// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Model of a CQ that moves to another ring: a device, a thread that arms and sleeps, a thread that
//! polls, and a thread that resizes.
//!
//! CQEs are not modeled: the model of arming covers their slots.

use crate::memory::Memory;
use crate::search::{breaks, holds, Broken, Model};
use crate::{ahead, position, WRAP};

/// Unwrapped position of the first completion. Positions of the old ring wrap after two
/// completions.
const START: u8 = WRAP - 2;
const SLOTS: u8 = 3;

// Indices of the words of the old ring. The words of the new ring follow.
const PRODUCER: usize = 0;
const ARM: usize = 1;
const RING: usize = 2;

// Actors.
const SLEEPER: usize = 0;
const RESIZER: usize = 1;
const DEVICE: usize = 2;

const LOST: Broken = "a completion that was asked for caused no event";
const TWICE: Broken = "a sequence was answered twice, or after its end";
const JUMP: Broken = "the consumer has passed the end of the old ring";

/// A deliberate mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// The new ring is always armed with position 0, even if the request is overdue.
    NeverOverdue,
    /// The request is overdue if completions are unpolled, but not if a doorbell was rung.
    DoorbellForgotten,
    /// The new ring is not armed.
    NotArmed,
    /// The doorbell is not rung after the new ring was armed.
    NoDoorbell,
    /// The owner loads the new producer before its arm word is visible.
    OwnerBarrier,
    /// The device moves without checking the old arm word after its last publication.
    NoLastLook,
    /// The device loses the sequence that it answered last.
    SequenceForgotten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Next,
    Solicited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SleeperAt {
    Start,
    Armed,
    Asleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Resize {
    None,
    Commanded,
    /// The device uses the new ring.
    Answered,
    /// The new ring is armed, and its producer must be loaded next.
    Armed,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Setting {
    flaw: Flaw,
    kind: Kind,
    completions: u8,
    rounds: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    setting: Setting,
    memory: Memory<4, 3>,
    resize: Resize,
    doorbell: bool,
    event: bool,
    // The device's state. Unwrapped positions continue in the new ring, whose position 0 is the
    // unwrapped position `end`.
    looks: bool,
    moved: bool,
    pushed: u8,
    end: u8,
    solicited: u8,
    fired: u8,
    word: (u8, u8),
    from: u8,
    // The owner's state, under the CQ's lock.
    locked: bool,
    sleeper: SleeperAt,
    rounds: u8,
    sequence: u8,
    armed: bool,
    /// A doorbell was rung since the last event.
    rang: bool,
    asked: u8,
    next: u8,
    seen: u8,
    /// State that only the rule uses: the unwrapped position at which the request starts.
    request: Option<u8>,
    broken: Option<Broken>,
}

impl State {
    fn new(setting: Setting) -> Self {
        let mut words = [0; 4];
        words[PRODUCER] = position(START);
        Self {
            setting,
            memory: Memory::new(words),
            resize: Resize::None,
            doorbell: false,
            event: false,
            looks: false,
            moved: false,
            pushed: START,
            end: 0,
            solicited: 0,
            fired: 0,
            word: (0, 0),
            from: 0,
            locked: false,
            sleeper: SleeperAt::Start,
            rounds: setting.rounds,
            sequence: 1,
            armed: false,
            rang: false,
            asked: START,
            next: START,
            seen: START,
            request: None,
            broken: None,
        }
    }

    /// Index of the ring's first word, and the unwrapped position that is the ring's position 0.
    fn ring(&self, is_new: bool) -> (usize, u8) {
        match is_new {
            true => (RING, self.end),
            false => (0, 0),
        }
    }

    fn device_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
        let flaw = self.setting.flaw;
        let (ring, base) = self.ring(self.moved);
        let mut next = self.clone();
        if self.looks {
            if self.memory.is_drained(DEVICE) {
                next.look();
                steps.push(("device loads the arm word", next));
            }
        } else {
            if self.pushed < START + self.setting.completions {
                next.pushed += 1;
                next.looks = true;
                let producer = position(next.pushed - base);
                next.memory.store(DEVICE, ring + PRODUCER, producer);
                steps.push(("device publishes", next.clone()));
                next.solicited = next.pushed;
                steps.push(("device publishes a solicited CQE", next));
            }
            let mut next = self.clone();
            if self.doorbell {
                next.doorbell = false;
                next.looks = true;
                steps.push(("device takes the doorbell", next));
            }
        }
        let may_move = !self.looks || flaw == Flaw::NoLastLook;
        if self.resize == Resize::Commanded && may_move && self.memory.is_drained(DEVICE) {
            let mut next = self.clone();
            next.resize = Resize::Answered;
            next.moved = true;
            next.looks = false;
            next.end = self.pushed;
            next.word = (0, 0);
            next.from = self.pushed;
            next.solicited = 0;
            if flaw == Flaw::SequenceForgotten {
                next.fired = 0;
            }
            steps.push(("device moves", next));
        }
    }

    fn look(&mut self) {
        self.looks = false;
        let (ring, base) = self.ring(self.moved);
        let word = self.memory.load(DEVICE, ring + ARM);
        let (sequence, is_overdue_position, asked) = (word >> 4, word & 8 != 0, word & 7);
        let mut overdue = false;
        if (word, base) != self.word {
            self.word = (word, base);
            let behind = ahead(position(self.pushed - base), asked);
            overdue = is_overdue_position || behind > SLOTS;
            self.from = self.pushed.saturating_sub(behind);
        }
        let due = overdue
            || match self.setting.kind {
                Kind::Next => self.pushed > self.from,
                Kind::Solicited => self.solicited > self.from,
            };
        if due && sequence != self.fired && sequence != 0 {
            self.fired = sequence;
            if self.event || sequence != self.sequence {
                self.broken = Some(TWICE);
            }
            self.event = true;
        }
    }

    /// Unwrapped position after the last completion, as the owner loads it from its ring.
    fn produced(&self, actor: usize, is_new: bool) -> u8 {
        let (ring, base) = self.ring(is_new);
        let producer = self.memory.load(actor, ring + PRODUCER);
        match is_new {
            true => base + producer,
            false => self.next + ahead(producer, position(self.next)),
        }
    }

    /// Whether arming and receiving events use the new ring.
    fn uses_new(&self) -> bool {
        matches!(self.resize, Resize::Armed | Resize::Done)
    }

    fn sleeper_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
        let mut next = self.clone();
        let is_new = self.uses_new();
        let (ring, base) = self.ring(is_new);
        let known = match is_new {
            true => self.seen.max(base),
            false => self.seen,
        };
        match self.sleeper {
            SleeperAt::Start if self.rounds != 0 && !self.locked => {
                next.rounds -= 1;
                next.locked = true;
                next.armed = true;
                next.asked = known;
                next.request = Some(known);
                let word = (self.sequence << 4) | position(known - base);
                next.memory.store(SLEEPER, ring + ARM, word);
                next.sleeper = SleeperAt::Armed;
                steps.push(("sleeper stores the arm word", next));
            }
            SleeperAt::Armed if self.memory.is_drained(SLEEPER) => {
                if self.produced(SLEEPER, is_new) != known {
                    next.doorbell = true;
                    next.rang = true;
                }
                next.locked = false;
                next.sleeper = SleeperAt::Asleep;
                steps.push(("sleeper loads the producer", next));
            }
            SleeperAt::Asleep if self.event && !self.locked => {
                next.event = false;
                next.sequence = self.sequence % 3 + 1;
                next.armed = false;
                next.rang = false;
                next.request = None;
                next.sleeper = SleeperAt::Start;
                // Completions of the new ring become known only after the old ring is polled.
                if !is_new || self.next >= self.end {
                    next.seen = self.produced(SLEEPER, is_new);
                }
                steps.push(("sleeper receives the event", next));
            }
            _ => {}
        }
    }

    fn poller_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
        if self.locked {
            return;
        }
        let mut next = self.clone();
        if self.next != self.seen {
            next.next += 1;
            steps.push(("poller takes a CQE", next));
            return;
        }
        let is_new = self.uses_new() && self.next >= self.end;
        let produced = self.produced(DEVICE, is_new);
        if produced != self.next && self.memory.is_drained(DEVICE) {
            next.seen = produced;
            if self.uses_new() && !is_new && produced > self.end {
                next.broken = Some(JUMP);
            }
            steps.push(("poller loads the producer", next));
        }
    }

    fn resizer_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
        let flaw = self.setting.flaw;
        let mut next = self.clone();
        match self.resize {
            Resize::None => {
                next.resize = Resize::Commanded;
                steps.push(("resizer sends the command", next));
            }
            Resize::Answered if !self.locked => {
                if self.armed && flaw != Flaw::NotArmed {
                    let word = (self.sequence << 4) | (u8::from(self.is_overdue()) << 3);
                    next.memory.store(RESIZER, RING + ARM, word);
                    next.locked = true;
                    next.resize = Resize::Armed;
                } else {
                    next.resize = Resize::Done;
                }
                steps.push(("resizer arms the new ring", next));
            }
            Resize::Armed if flaw == Flaw::OwnerBarrier || self.memory.is_drained(RESIZER) => {
                let is_new = self.memory.load(RESIZER, RING + PRODUCER) != 0;
                let rings = is_new || self.is_overdue();
                next.doorbell |= rings && flaw != Flaw::NoDoorbell;
                next.rang |= rings;
                next.locked = false;
                next.resize = Resize::Done;
                steps.push(("resizer loads the new producer", next));
            }
            _ => {}
        }
    }

    /// Whether the request is overdue in the new ring.
    fn is_overdue(&self) -> bool {
        let is_unpolled = self.next < self.end;
        match self.setting.flaw {
            Flaw::NeverOverdue => false,
            Flaw::DoorbellForgotten => is_unpolled,
            _ => is_unpolled || self.rang,
        }
    }
}

impl Model for State {
    fn steps(&self) -> Vec<(&'static str, Self)> {
        let mut steps = self.memory.steps(|memory| Self {
            memory,
            ..self.clone()
        });
        self.device_steps(&mut steps);
        self.sleeper_steps(&mut steps);
        self.poller_steps(&mut steps);
        self.resizer_steps(&mut steps);
        steps
    }

    fn check(&self) -> Result<(), Broken> {
        self.broken.map_or(Ok(()), Err)
    }

    fn check_end(&self) -> Result<(), Broken> {
        let last = match self.setting.kind {
            Kind::Next => self.pushed,
            Kind::Solicited => self.solicited,
        };
        match self.request {
            Some(at) if last > at && !self.event => Err(LOST),
            _ => Ok(()),
        }
    }
}

// abi
#[test]
fn a_moving_cq_answers_each_request_once() {
    for kind in [Kind::Next, Kind::Solicited] {
        let setting = Setting {
            flaw: Flaw::None,
            kind,
            completions: 3,
            rounds: 2,
        };
        holds(&format!("resizing, {kind:?}"), [State::new(setting)]);
    }
}

// abi
#[test]
fn broken_variants_are_found() {
    for (flaw, rule) in [
        (Flaw::NeverOverdue, LOST),
        (Flaw::DoorbellForgotten, LOST),
        (Flaw::NotArmed, LOST),
        (Flaw::NoDoorbell, LOST),
        (Flaw::OwnerBarrier, TWICE),
        (Flaw::NoLastLook, LOST),
        (Flaw::SequenceForgotten, TWICE),
    ] {
        println!("{flaw:?}");
        let setting = Setting {
            flaw,
            kind: Kind::Next,
            completions: 3,
            rounds: 2,
        };
        breaks(rule, [State::new(setting)]);
    }
}
