// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Model of posting, doorbells, reuse of slots, reset and destruction: an owner and a device that
//! sleeps.
//!
//! The owner frees slots only by completions. Completions arrive in order through a channel, since
//! the model of arming covers completion queues.

use crate::memory::Memory;
use crate::search::{breaks, holds, Broken, Model};
use crate::{ahead, position, WRAP};

/// Unwrapped position of the first work request. Positions wrap after two work requests.
const START: u8 = WRAP - 2;

// Indices of the words of the ring. The slots follow.
const PRODUCER: usize = 0;
const DOORBELL: usize = 1;
const SLOT: usize = 2;
const WORDS: usize = SLOT + 4;

// Actors.
const OWNER: usize = 0;
const DEVICE: usize = 1;

const ASLEEP: Broken = "the device sleeps over a work request";
const WRONG_WQE: Broken = "a WQE was overwritten, or fetched twice";
const JUMP: Broken = "a right owner's position makes no sense to the device";
const TOUCHED: Broken = "the device writes to a ring after it was destroyed";

/// A deliberate mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// The owner loads the device's doorbell request before its own position is visible.
    OwnerBarrier,
    /// The device loads the producer before its doorbell request is visible.
    DeviceBarrier,
    /// The device sleeps without loading the producer.
    DeviceLook,
    /// The owner frees slots without a completion.
    NoFeedback,
    /// The owner posts before RESET is complete.
    EarlyPost,
    /// RESET does not give the device a turn.
    NoTurn,
    /// The device completes a work request before it has copied the WQE.
    EarlyCompletion,
    /// The device answers DESTROY before its stores are visible.
    EarlyAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CommandState {
    None,
    Reset,
    Destroy,
    Answered,
    Destroyed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OwnerAt {
    Idle,
    /// The doorbell request must be loaded next.
    Published,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DeviceAt {
    Polling,
    /// The device has stored its doorbell request. It must load the producer next.
    Asking,
    Asleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Setting {
    flaw: Flaw,
    slots: u8,
    posts: u8,
    resets: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    setting: Setting,
    memory: Memory<WORDS, 2>,
    command: CommandState,
    doorbell: bool,
    /// Unwrapped position after the last completion that is on its way to the owner.
    completed: u8,
    // The owner's state.
    owner: OwnerAt,
    head: u8,
    published: u8,
    /// `published` before the current batch.
    old: u8,
    free_from: u8,
    resettable: bool,
    // The device's state.
    device: DeviceAt,
    next: u8,
    seen: u8,
    done: u8,
    suppressed: bool,
    broken: Option<Broken>,
}

impl State {
    fn new(setting: Setting) -> Self {
        let mut words = [0; WORDS];
        words[PRODUCER] = position(START);
        words[DOORBELL] = position(START);
        Self {
            setting,
            memory: Memory::new(words),
            command: CommandState::None,
            doorbell: false,
            completed: START,
            owner: OwnerAt::Idle,
            head: START,
            published: START,
            old: START,
            free_from: START,
            resettable: setting.resets,
            device: DeviceAt::Asleep,
            next: START,
            seen: START,
            done: START,
            suppressed: false,
            broken: None,
        }
    }

    fn slot(&self, count: u8) -> usize {
        SLOT + usize::from(count % self.setting.slots)
    }

    fn owner_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
        let flaw = self.setting.flaw;
        let mut next = self.clone();
        match self.owner {
            OwnerAt::Idle => {
                if self.command == CommandState::Answered {
                    next.command = CommandState::None;
                    next.free_from = self.head;
                    steps.push(("owner learns that its QP is reset", next));
                    return;
                }
                if self.command == CommandState::Destroyed {
                    next.owner = OwnerAt::Gone;
                    steps.push(("owner learns that its QP is destroyed", next));
                    return;
                }
                let may_post = self.command == CommandState::None
                    || self.command == CommandState::Reset && flaw == Flaw::EarlyPost;
                let used = self.head - self.free_from;
                let has_room = used < self.setting.slots || flaw == Flaw::NoFeedback;
                if may_post && has_room && self.head < START + self.setting.posts {
                    next.memory.store(OWNER, self.slot(self.head), self.head);
                    next.head += 1;
                    steps.push(("owner writes a WQE", next));
                }
                next = self.clone();
                if self.head != self.published && may_post {
                    next.memory.store(OWNER, PRODUCER, position(self.head));
                    next.old = self.published;
                    next.published = self.head;
                    next.owner = OwnerAt::Published;
                    steps.push(("owner stores the producer", next));
                }
                next = self.clone();
                if self.completed > self.free_from && self.command == CommandState::None {
                    next.free_from = self.completed;
                    steps.push(("owner polls completions", next));
                }
                next = self.clone();
                if self.command == CommandState::None && self.head == self.published {
                    if self.resettable {
                        next.resettable = false;
                        next.command = CommandState::Reset;
                        steps.push(("owner resets", next.clone()));
                    }
                    if self.head == START + self.setting.posts {
                        next.command = CommandState::Destroy;
                        steps.push(("owner destroys", next));
                    }
                }
            }
            OwnerAt::Published => {
                if flaw == Flaw::OwnerBarrier || self.memory.is_drained(OWNER) {
                    let doorbell = self.memory.load(OWNER, DOORBELL);
                    let passed = ahead(position(self.published), doorbell);
                    let moved = ahead(position(self.published), position(self.old));
                    next.doorbell |= passed.wrapping_sub(1) % WRAP < moved;
                    next.owner = OwnerAt::Idle;
                    steps.push(("owner loads the doorbell", next));
                }
            }
            OwnerAt::Gone => {}
        }
    }

    fn device_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
        let flaw = self.setting.flaw;
        if self.command == CommandState::Destroyed || self.owner == OwnerAt::Gone {
            return;
        }
        self.serve_command(steps);
        let mut next = self.clone();
        if self.done != self.next {
            next.done += 1;
            next.completed = next.done;
            steps.push(("device completes", next));
        }
        next = self.clone();
        match self.device {
            DeviceAt::Polling => {
                if self.next != self.seen {
                    if self.memory.load(DEVICE, self.slot(self.next)) != self.next {
                        // abi: R-522
                        next.broken = Some(WRONG_WQE);
                    }
                    next.next += 1;
                    steps.push(("device copies a WQE", next));
                    return;
                }
                let fresh = ahead(self.memory.load(DEVICE, PRODUCER), position(self.next));
                if fresh != 0 {
                    next.look(fresh);
                    steps.push(("device loads the producer", next));
                }
                next = self.clone();
                if !self.suppressed {
                    next.suppressed = true;
                    let behind = position(self.next.wrapping_sub(1));
                    next.memory.store(DEVICE, DOORBELL, behind);
                    steps.push(("device suppresses the doorbell", next));
                }
                next = self.clone();
                next.suppressed = false;
                next.memory.store(DEVICE, DOORBELL, position(self.next));
                next.device = DeviceAt::Asking;
                steps.push(("device asks for a doorbell", next));
            }
            DeviceAt::Asking => {
                if flaw == Flaw::DeviceBarrier || self.memory.is_drained(DEVICE) {
                    let producer = self.memory.load(DEVICE, PRODUCER);
                    let is_empty = producer == position(self.next);
                    next.device = match is_empty || flaw == Flaw::DeviceLook {
                        true => DeviceAt::Asleep,
                        false => DeviceAt::Polling,
                    };
                    steps.push(("device looks once more", next));
                }
            }
            DeviceAt::Asleep => {
                if self.doorbell {
                    next.doorbell = false;
                    next.device = DeviceAt::Polling;
                    steps.push(("device takes the doorbell", next));
                }
            }
        }
    }

    /// The device checks that the position `fresh` is within its bound, and then trusts it.
    fn look(&mut self, fresh: u8) {
        let room = self.setting.slots - (self.next - self.done);
        if fresh > room {
            // abi
            self.broken = Some(JUMP);
        } else {
            self.seen = self.next + fresh;
            if self.setting.flaw == Flaw::EarlyCompletion {
                self.completed = self.seen;
            }
        }
    }

    fn serve_command(&self, steps: &mut Vec<(&'static str, Self)>) {
        let mut next = self.clone();
        let flaw = self.setting.flaw;
        let may_answer = flaw == Flaw::EarlyAnswer || self.memory.is_drained(DEVICE);
        if self.command == CommandState::Reset {
            let producer = self.memory.load(DEVICE, PRODUCER);
            next.next += ahead(producer, position(self.next));
            next.seen = next.next;
            next.done = next.next;
            if flaw != Flaw::NoTurn {
                next.device = DeviceAt::Polling;
            }
            next.command = CommandState::Answered;
            steps.push(("device resets", next));
        } else if self.command == CommandState::Destroy && may_answer {
            next.command = CommandState::Destroyed;
            steps.push(("device destroys", next));
        }
    }
}

impl Model for State {
    fn steps(&self) -> Vec<(&'static str, Self)> {
        let mut steps = self.memory.steps(|memory| Self {
            memory,
            ..self.clone()
        });
        self.owner_steps(&mut steps);
        self.device_steps(&mut steps);
        steps
    }

    fn check(&self) -> Result<(), Broken> {
        if self.owner == OwnerAt::Gone && !self.memory.is_drained(DEVICE) {
            return Err(TOUCHED);
        }
        let is_slept_over = self.device == DeviceAt::Asleep
            && self.owner == OwnerAt::Idle
            && self.command == CommandState::None
            && !self.doorbell
            && self.published != self.next
            && self.memory.is_drained(OWNER)
            && self.memory.is_drained(DEVICE);
        match is_slept_over {
            // abi
            true => Err(ASLEEP),
            false => self.broken.map_or(Ok(()), Err),
        }
    }

    fn check_end(&self) -> Result<(), Broken> {
        match self.owner {
            OwnerAt::Gone => Ok(()),
            _ => Err(ASLEEP),
        }
    }
}

#[test]
fn each_work_request_is_fetched_once() {
    for (slots, posts, resets) in [(2, 5, false), (4, 6, false), (2, 4, true), (4, 4, true)] {
        let setting = Setting {
            flaw: Flaw::None,
            slots,
            posts,
            resets,
        };
        let name = format!("posting {posts}, {slots} slots, reset {resets}");
        holds(&name, [State::new(setting)]);
    }
}

#[test]
fn broken_variants_are_found() {
    for (flaw, rule) in [
        // abi: R-531
        (Flaw::OwnerBarrier, ASLEEP),
        // abi: R-524
        (Flaw::DeviceBarrier, ASLEEP),
        (Flaw::DeviceLook, ASLEEP),
        // abi: R-532
        (Flaw::NoFeedback, JUMP),
        // abi: R-536
        (Flaw::EarlyPost, JUMP),
        (Flaw::NoTurn, ASLEEP),
        // abi: R-522
        (Flaw::EarlyCompletion, WRONG_WQE),
        (Flaw::EarlyAnswer, TOUCHED),
    ] {
        println!("{flaw:?}");
        let setting = Setting {
            flaw,
            slots: 2,
            posts: 4,
            resets: matches!(flaw, Flaw::EarlyPost | Flaw::NoTurn),
        };
        breaks(rule, [State::new(setting)]);
    }
}
