// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Steps of the consumer threads.

use super::*;
use crate::ahead;

impl State {
    pub(super) fn thread_steps(&self, number: usize, steps: &mut Vec<(&'static str, Self)>) {
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

    /// Stops polling. A thread that polled first arms now; the other sleeps.
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
            // abi: R-528
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
