// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completing, polling and arming: a device and two threads of a consumer.
//!
//! One thread asks for any completion, the other for a solicited one. A thread arms and polls in
//! either order, stops polling where it likes, and sleeps until it receives an event.

use crate::memory::Memory;
use crate::search::{breaks, holds, Broken, Model};
use crate::{ahead, position, WRAP};

const SLOTS: u8 = 2;
/// The first completion's count: positions wrap after two.
const START: u8 = WRAP - 2;

// Words; slots follow.
const PRODUCER: usize = 0;
const CONSUMER: usize = 1;
const ARM: usize = 2;
const SLOT: usize = 3;
const WORDS: usize = SLOT + SLOTS as usize;

// Actors; threads are 0 and 1.
const DEVICE: usize = 2;

const LOST: Broken = "a completion that was asked for caused no event";
const TWICE: Broken = "a sequence was answered twice, or after its end";
const FALSE_EVENT: Broken = "an event without a new completion";
const UNSOLICITED: Broken = "an event for a completion that was not solicited";
const WRONG_CQE: Broken = "a CQE was overwritten, or polled out of order";

/// A mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// The owner looks at the producer before its arm word is visible.
    OwnerBarrier,
    /// The owner does not look at the producer after it has armed.
    OwnerLook,
    /// The device looks at the arm word before its position is visible.
    DeviceBarrier,
    /// Each request has a sequence of its own.
    SequencePerArm,
    /// The device reads the position of a word anew at each look.
    NoLatch,
    /// The word has the position of the next completion, known or not.
    ConsumerPosition,
    /// A later request of the same sequence moves the position forward.
    PositionMoves,
    /// A later request of the same sequence narrows the kind.
    KindNarrows,
    /// The device does not look at `consumer` before it reuses a slot.
    NoConsumer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    None,
    Next,
    Solicited,
}

/// Sequences have two bits, so that they wrap at 4.
fn arm_word(sequence: u8, kind: Kind, position: u8) -> u8 {
    let kind = match kind {
        Kind::None => 0,
        Kind::Next => 1,
        Kind::Solicited => 2,
    };
    (sequence << 5) | (kind << 3) | position
}

fn parse_arm_word(word: u8) -> (u8, Kind, u8) {
    let kind = match (word >> 3) & 3 {
        1 => Kind::Next,
        2 => Kind::Solicited,
        _ => Kind::None,
    };
    (word >> 5, kind, word % WRAP)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DeviceAt {
    Idle,
    /// Completions were pushed, but not published.
    Pushed,
    /// The arm word is to be looked at.
    Look,
}

/// The device's private state. Counts stand for its 64-bit ones and never wrap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Device {
    at: DeviceAt,
    pushed: u8,
    published: u8,
    consumed: u8,
    /// Count after the last solicited completion.
    solicited: u8,
    fired: u8,
    word: u8,
    from: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ThreadAt {
    Start,
    /// It has stored the arm word and holds the lock.
    Armed,
    Polling,
    Asleep,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Thread {
    at: ThreadAt,
    /// How often it may arm yet.
    rounds: u8,
    /// It polls before it arms, and not again before it sleeps.
    polls_first: bool,
}

/// The state that the threads share under the CQ's lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Owner {
    locked: bool,
    sequence: u8,
    kind: Kind,
    /// Count in the arm word.
    asked: u8,
    next: u8,
    seen: u8,
}

/// Memory of the rules: requests of the present sequence, by the count that they begin at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ghost {
    next: Option<u8>,
    solicited: Option<u8>,
    /// What the device had pushed at its last event.
    at_event: u8,
    /// The arm word of the device's last look.
    looked: u8,
    broken: Option<Broken>,
}

/// How the model is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Setting {
    flaw: Flaw,
    completions: u8,
    /// How often each thread arms.
    rounds: [u8; 2],
    /// Threads may arm again without having received an event.
    impatient: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    setting: Setting,
    memory: Memory<WORDS, 3>,
    device: Device,
    threads: [Thread; 2],
    owner: Owner,
    /// A doorbell on its way.
    doorbell: bool,
    /// An event on its way.
    event: bool,
    ghost: Ghost,
}

impl State {
    fn new(setting: Setting, polls_first: [bool; 2]) -> Self {
        let thread = |number: usize| Thread {
            at: ThreadAt::Start,
            rounds: setting.rounds[number],
            polls_first: polls_first[number],
        };
        let mut words = [0; WORDS];
        words[PRODUCER] = position(START);
        words[CONSUMER] = position(START);
        Self {
            setting,
            memory: Memory::new(words),
            device: Device {
                at: DeviceAt::Idle,
                pushed: START,
                published: START,
                consumed: START,
                solicited: 0,
                fired: 0,
                word: 0,
                from: 0,
            },
            threads: [thread(0), thread(1)],
            owner: Owner {
                locked: false,
                sequence: 1,
                kind: Kind::None,
                asked: START,
                next: START,
                seen: START,
            },
            doorbell: false,
            event: false,
            ghost: Ghost {
                next: None,
                solicited: None,
                at_event: START,
                looked: 0,
                broken: None,
            },
        }
    }

    fn has_room(&self) -> bool {
        self.device.pushed - self.device.consumed < SLOTS
    }

    fn push(&self, solicited: bool) -> Self {
        let mut next = self.clone();
        let slot = SLOT + usize::from(self.device.pushed % SLOTS);
        next.memory.store(DEVICE, slot, self.device.pushed);
        next.device.pushed += 1;
        if solicited {
            next.device.solicited = next.device.pushed;
        }
        next.device.at = DeviceAt::Pushed;
        next
    }

    fn device_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
        let device = &self.device;
        let mut next = self.clone();
        match device.at {
            DeviceAt::Idle | DeviceAt::Pushed => {
                let left = device.pushed < START + self.setting.completions;
                if left && (self.has_room() || self.setting.flaw == Flaw::NoConsumer) {
                    steps.push(("device pushes an unsolicited CQE", self.push(false)));
                    steps.push(("device pushes a solicited CQE", self.push(true)));
                } else if left {
                    let consumer = self.memory.load(DEVICE, CONSUMER);
                    let unpolled = ahead(position(device.pushed), consumer);
                    if unpolled < SLOTS {
                        next.device.consumed = device.pushed - unpolled;
                        steps.push(("device loads the consumer", next.clone()));
                    }
                }
                next = self.clone();
                if device.at == DeviceAt::Pushed {
                    next.memory.store(DEVICE, PRODUCER, position(device.pushed));
                    next.device.published = device.pushed;
                    next.device.at = DeviceAt::Look;
                    steps.push(("device stores the producer", next));
                } else if self.doorbell {
                    next.doorbell = false;
                    next.device.at = DeviceAt::Look;
                    steps.push(("device takes the doorbell", next));
                }
            }
            DeviceAt::Look => {
                if self.setting.flaw == Flaw::DeviceBarrier || self.memory.is_drained(DEVICE) {
                    next.look();
                    steps.push(("device loads the arm word", next));
                }
            }
        }
    }

    /// The device loads the arm word and sends the event if it is due.
    fn look(&mut self) {
        let device = &mut self.device;
        device.at = DeviceAt::Idle;
        let word = self.memory.load(DEVICE, ARM);
        let (sequence, kind, asked) = parse_arm_word(word);
        // A word that comes late may be overdue, one that was looked at before may not.
        let is_known = self.ghost.looked == word;
        self.ghost.looked = word;
        let mut overdue = false;
        if word != device.word || self.setting.flaw == Flaw::NoLatch {
            device.word = word;
            let behind = ahead(position(device.pushed), asked);
            overdue = behind > SLOTS;
            device.from = device.pushed.saturating_sub(behind);
        }
        let due = match kind {
            Kind::None => false,
            Kind::Next => overdue || device.pushed > device.from,
            Kind::Solicited => overdue || device.solicited > device.from,
        };
        if !due || sequence == device.fired {
            return;
        }
        device.fired = sequence;
        let ghost = &mut self.ghost;
        if self.event || sequence != self.owner.sequence {
            ghost.broken = Some(TWICE);
        } else if device.pushed == ghost.at_event {
            ghost.broken = Some(FALSE_EVENT);
        } else if is_known
            && ghost.next.is_none()
            && ghost.solicited.is_some_and(|at| device.solicited <= at)
        {
            ghost.broken = Some(UNSOLICITED);
        }
        ghost.at_event = device.pushed;
        self.event = true;
    }

    fn thread_steps(&self, number: usize, steps: &mut Vec<(&'static str, Self)>) {
        let thread = &self.threads[number];
        let mut next = self.clone();
        match thread.at {
            ThreadAt::Start => {
                if thread.rounds != 0 && thread.polls_first {
                    next.threads[number].at = ThreadAt::Polling;
                    steps.push(("thread begins to poll", next));
                } else if thread.rounds != 0 && !self.owner.locked {
                    next.arm(number);
                    steps.push(("thread stores the arm word", next));
                }
            }
            ThreadAt::Armed => {
                let may_look =
                    self.setting.flaw == Flaw::OwnerBarrier || self.memory.is_drained(number);
                if may_look || self.setting.flaw == Flaw::OwnerLook {
                    let produced = self.memory.load(number, PRODUCER);
                    let is_new = produced != position(self.owner.seen);
                    next.doorbell |= is_new && self.setting.flaw != Flaw::OwnerLook;
                    next.owner.locked = false;
                    next.threads[number].at = match thread.polls_first {
                        true => ThreadAt::Asleep,
                        false => ThreadAt::Polling,
                    };
                    steps.push(("thread loads the producer after arming", next));
                }
            }
            ThreadAt::Polling => {
                if !self.owner.locked {
                    self.poll(number, steps);
                }
            }
            ThreadAt::Asleep => {
                if self.setting.impatient && thread.rounds != 0 {
                    next.threads[number].at = ThreadAt::Start;
                    steps.push(("thread does not wait", next.clone()));
                    next = self.clone();
                }
                if self.event && !self.owner.locked {
                    next.event = false;
                    next.receive(number);
                    steps.push(("thread receives the event", next));
                }
            }
        }
    }

    fn arm(&mut self, number: usize) {
        let owner = &mut self.owner;
        let wanted = [Kind::Next, Kind::Solicited][number];
        let seen = match self.setting.flaw {
            Flaw::ConsumerPosition => owner.next,
            _ => owner.seen,
        };
        if self.setting.flaw == Flaw::SequencePerArm {
            owner.sequence = (owner.sequence + 1) % 4;
            owner.kind = Kind::None;
        }
        if owner.kind == Kind::None || self.setting.flaw == Flaw::PositionMoves {
            owner.asked = seen;
        }
        if owner.kind != Kind::Next || self.setting.flaw == Flaw::KindNarrows {
            owner.kind = wanted;
        }
        let word = arm_word(owner.sequence, owner.kind, position(owner.asked));
        self.memory.store(number, ARM, word);
        owner.locked = true;
        let request = match wanted {
            Kind::Next => &mut self.ghost.next,
            _ => &mut self.ghost.solicited,
        };
        *request = Some(request.map_or(owner.seen, |at| at.min(owner.seen)));
        let thread = &mut self.threads[number];
        thread.at = ThreadAt::Armed;
        thread.rounds -= 1;
    }

    /// The end of polling: the thread arms if it has polled first, else it sleeps.
    fn stop_polling(&mut self, number: usize) {
        self.threads[number].at = match self.threads[number].polls_first {
            true if !self.owner.locked => {
                self.arm(number);
                ThreadAt::Armed
            }
            _ => ThreadAt::Asleep,
        };
    }

    fn poll(&self, number: usize, steps: &mut Vec<(&'static str, Self)>) {
        let mut next = self.clone();
        next.stop_polling(number);
        steps.push(("thread stops polling", next));
        let mut next = self.clone();
        let owner = &mut next.owner;
        if owner.next == owner.seen {
            let produced = self.memory.load(number, PRODUCER);
            let fresh = ahead(produced, position(owner.next));
            if fresh != 0 && fresh <= SLOTS {
                owner.seen += fresh;
                steps.push(("thread loads the producer", next));
            }
            return;
        }
        let slot = SLOT + usize::from(owner.next % SLOTS);
        if self.memory.load(number, slot) != owner.next {
            next.ghost.broken = Some(WRONG_CQE);
        }
        owner.next += 1;
        next.memory.store(number, CONSUMER, position(owner.next));
        steps.push(("thread takes a CQE", next));
    }

    fn receive(&mut self, number: usize) {
        let owner = &mut self.owner;
        owner.sequence = (owner.sequence + 1) % 4;
        owner.kind = Kind::None;
        let fresh = ahead(self.memory.load(number, PRODUCER), position(owner.next));
        owner.seen = owner.next + fresh;
        self.ghost.next = None;
        self.ghost.solicited = None;
        self.threads[number].at = ThreadAt::Start;
    }
}

impl Model for State {
    fn steps(&self) -> Vec<(&'static str, Self)> {
        let mut steps = Vec::new();
        for memory in self.memory.drains() {
            let state = Self {
                memory,
                ..self.clone()
            };
            steps.push(("a store reaches memory", state));
        }
        self.device_steps(&mut steps);
        for number in 0..2 {
            self.thread_steps(number, &mut steps);
        }
        steps
    }

    fn check(&self) -> Result<(), Broken> {
        self.ghost.broken.map_or(Ok(()), Err)
    }

    fn check_end(&self) -> Result<(), Broken> {
        if self.event {
            return Ok(());
        }
        let (next, solicited) = (self.ghost.next, self.ghost.solicited);
        let device = &self.device;
        match next.is_some_and(|at| device.published > at)
            || solicited.is_some_and(|at| device.solicited > at)
        {
            true => Err(LOST),
            false => Ok(()),
        }
    }
}

const ORDERS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

fn all(setting: Setting) -> impl Iterator<Item = State> {
    ORDERS
        .into_iter()
        .map(move |order| State::new(setting, order))
}

#[test]
fn each_request_is_answered_once() {
    for (completions, rounds, impatient) in [
        (3, [3, 0], true),
        (3, [0, 3], true),
        (2, [1, 1], false),
        (2, [2, 1], false),
    ] {
        let name = format!("arming {rounds:?} times, {completions} completions");
        let setting = Setting {
            flaw: Flaw::None,
            completions,
            rounds,
            impatient,
        };
        holds(&name, all(setting));
    }
}

#[test]
fn broken_variants_are_found() {
    for (flaw, rounds, rule) in [
        (Flaw::OwnerBarrier, [1, 0], LOST),
        (Flaw::OwnerLook, [1, 0], LOST),
        (Flaw::DeviceBarrier, [1, 0], LOST),
        (Flaw::PositionMoves, [1, 1], LOST),
        (Flaw::KindNarrows, [1, 1], LOST),
        (Flaw::SequencePerArm, [2, 0], TWICE),
        (Flaw::NoLatch, [0, 1], UNSOLICITED),
        (Flaw::ConsumerPosition, [2, 0], FALSE_EVENT),
        (Flaw::NoConsumer, [1, 0], WRONG_CQE),
    ] {
        let setting = Setting {
            flaw,
            completions: 3,
            rounds,
            impatient: flaw == Flaw::SequencePerArm,
        };
        println!("{flaw:?}");
        breaks(rule, all(setting));
    }
}
