// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Model of completing, polling and arming: a device and two consumer threads.
//!
//! One thread requests an event for any completion, the other for a solicited one. A thread arms
//! and polls in either order, stops polling at any time, and sleeps until it receives an event.

mod device;
mod threads;

use crate::memory::Memory;
use crate::search::{breaks, holds, Broken, Model};
use crate::{position, WRAP};

const SLOTS: u8 = 2;
/// Unwrapped position of the first completion. Positions wrap after two completions.
const START: u8 = WRAP - 2;

// Indices of the words of the ring. The slots follow.
const PRODUCER: usize = 0;
const CONSUMER: usize = 1;
const ARM: usize = 2;
const SLOT: usize = 3;
const WORDS: usize = SLOT + SLOTS as usize;

// Actors. The threads are 0 and 1.
const DEVICE: usize = 2;

const LOST: Broken = "a completion that was asked for caused no event";
const TWICE: Broken = "a sequence was answered twice, or after its end";
const FALSE_EVENT: Broken = "an event without a new completion";
const UNSOLICITED: Broken = "an event for a completion that was not solicited";
const WRONG_CQE: Broken = "a CQE was overwritten, or polled out of order";

/// A deliberate mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// The owner loads the producer before its arm word is visible.
    OwnerBarrier,
    /// The owner does not load the producer after it has armed.
    OwnerLook,
    /// The device loads the arm word before its position is visible.
    DeviceBarrier,
    /// The owner increments the sequence at each request.
    SequencePerArm,
    /// The device evaluates the position of a word again at each check.
    NoLatch,
    /// The word holds the position of the next completion to poll.
    ConsumerPosition,
    /// A later request with the same sequence moves the position forward.
    PositionMoves,
    /// A later request with the same sequence narrows the kind.
    KindNarrows,
    /// The device does not load `consumer` before it reuses a slot.
    NoConsumer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    None,
    Next,
    Solicited,
}

/// Sequences have two bits, so they wrap at 4.
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
    /// The arm word must be checked next.
    Look,
}

/// The device's private state. The counts model its 64-bit positions and never wrap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Device {
    at: DeviceAt,
    pushed: u8,
    published: u8,
    consumed: u8,
    /// Unwrapped position after the last solicited completion.
    solicited: u8,
    fired: u8,
    word: u8,
    from: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ThreadAt {
    Start,
    /// The thread has stored the arm word and holds the lock.
    Armed,
    Polling,
    Asleep,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Thread {
    at: ThreadAt,
    /// How often the thread may still arm.
    rounds: u8,
    /// The thread polls before it arms, and not again before it sleeps.
    polls_first: bool,
}

/// The state that the threads share under the CQ's lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Owner {
    locked: bool,
    sequence: u8,
    kind: Kind,
    /// The unwrapped position whose wrapped value is in the arm word.
    asked: u8,
    next: u8,
    seen: u8,
}

/// State that only the rules use: the unwrapped positions at which the requests of the current
/// sequence start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ghost {
    next: Option<u8>,
    solicited: Option<u8>,
    /// Number of completions that the device had pushed at its last event.
    at_event: u8,
    /// The arm word at the device's last check.
    looked: u8,
    broken: Option<Broken>,
}

/// Parameters of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Setting {
    flaw: Flaw,
    completions: u8,
    /// How often each thread arms.
    rounds: [u8; 2],
    /// Whether threads may arm again before they receive an event.
    impatient: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    setting: Setting,
    memory: Memory<WORDS, 3>,
    device: Device,
    threads: [Thread; 2],
    owner: Owner,
    /// A doorbell that has not arrived yet.
    doorbell: bool,
    /// An event that has not arrived yet.
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
}

impl Model for State {
    fn steps(&self) -> Vec<(&'static str, Self)> {
        let mut steps = self.memory.steps(|memory| Self {
            memory,
            ..self.clone()
        });
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
            // abi
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
        // abi: R-557
        (Flaw::OwnerBarrier, [1, 0], LOST),
        (Flaw::OwnerLook, [1, 0], LOST),
        // abi: R-558
        (Flaw::DeviceBarrier, [1, 0], LOST),
        // abi: R-555
        (Flaw::PositionMoves, [1, 1], LOST),
        (Flaw::KindNarrows, [1, 1], LOST),
        // abi: R-554
        (Flaw::SequencePerArm, [2, 0], TWICE),
        // abi: R-559
        (Flaw::NoLatch, [0, 1], UNSOLICITED),
        // abi: R-556
        (Flaw::ConsumerPosition, [2, 0], FALSE_EVENT),
        // abi: R-528
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
