// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Steps of the device.

use super::*;
use crate::ahead;

impl State {
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

    pub(super) fn device_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
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
        // A word that the device checks for the first time may be overdue. A word that the device
        // has checked before must not be overdue.
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
            // abi: R-554
            ghost.broken = Some(TWICE);
        } else if device.pushed == ghost.at_event {
            // abi: R-556
            ghost.broken = Some(FALSE_EVENT);
        } else if is_known
            && ghost.next.is_none()
            && ghost.solicited.is_some_and(|at| device.solicited <= at)
        {
            // abi: R-559
            ghost.broken = Some(UNSOLICITED);
        }
        ghost.at_event = device.pushed;
        self.event = true;
    }
}
