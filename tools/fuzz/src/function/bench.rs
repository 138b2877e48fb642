// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A PCI function under test, stepped in parallel with its model.

use std::sync::Arc;

use dma::DmaSpace;
use vdev::SteppedFunction;

use super::common::Task;
use super::device::{Call, Echo, QUEUES};
use super::model::{Function, VIRTIO};

/// A function, its device, and the guest memory mapped for it.
pub struct Bench {
    pub stepped: SteppedFunction,
    pub device: Arc<Echo>,
    pub space: Arc<DmaSpace>,
    initial: [u8; 256],
    /// Number of configuration changes so far, modulo 256.
    generation: u8,
}

/// The result of a step of the service thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There was no work.
    Idle,
    /// The thread served a queue or stopped the device.
    Worked,
    /// The thread executed this task.
    Did(Task),
}

impl Bench {
    /// A function whose monitor maps at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        let device = Arc::new(Echo::default());
        let space = Arc::new(DmaSpace::with_limit(limit));
        let stepped = SteppedFunction::new(device.clone(), space.clone()).expect("a function");
        let mut initial = [0; 256];
        stepped.config_read(0, &mut initial);
        Self {
            stepped,
            device,
            space,
            initial,
            generation: 0,
        }
    }

    /// A model of the function in the state that a new client finds.
    pub fn model(&self) -> Function {
        Function::new(self.initial, self.generation)
    }

    /// Lets the service thread do a piece of work, and updates the model accordingly.
    pub fn serve_device(&mut self, model: &mut Function) -> Step {
        let tasks = self.stepped.tasks();
        let worked = self.stepped.serve_device();
        let mut calls = self.device.take_calls();
        if calls.first() == Some(&Call::Fail) {
            calls.remove(0);
            assert!(!model.common.failed, "stopped twice");
            model.common.failed = true;
            for queue in &mut model.common.queues {
                queue.started = false;
            }
            model.config_changed();
        }
        if self.stepped.tasks() < tasks {
            let task = model.common.tasks.pop_front().expect("a task of the model");
            let expected = match task {
                Task::Activate if !model.common.failed => {
                    Some(Call::Activate(model.common.accepted))
                }
                Task::Reset => Some(Call::Reset),
                Task::ResetQueue(queue) => Some(Call::ResetQueue(queue as u16)),
                _ => None,
            };
            assert_eq!(calls, Vec::from_iter(expected), "calls of {task:?}");
            model.common.done(task);
            return Step::Did(task);
        }
        for call in calls {
            let Call::Answer(queue) = call else {
                panic!("{call:?} out of place");
            };
            let queue = usize::from(queue);
            assert!(
                model.common.queues[queue].started,
                "a request of a queue that is not in use"
            );
            model.queue_interrupts(queue, false);
        }
        if worked {
            Step::Worked
        } else {
            Step::Idle
        }
    }

    /// Compares the function with its model.
    pub fn check(&self, model: &Function) {
        let mut image = [0; 0x3c];
        self.stepped.bar_read(VIRTIO, 0, &mut image);
        assert_eq!(image, model.common.image(), "registers");
        let mut config = [0; 256];
        self.stepped.config_read(0, &mut config);
        assert_eq!(config, model.config.bytes, "configuration space");
        assert_eq!(self.stepped.tasks(), model.common.tasks.len(), "tasks");
        // Each queue has at most one task to start and one to reset it. One more task activates the
        // device, one resets it.
        assert!(
            model.common.tasks.len() <= 2 * QUEUES.len() + 2,
            "tasks grow"
        );
    }

    /// Disconnects the client. Returns the model of the state that the next client finds.
    pub fn disconnect(&mut self, model: &Function) -> Function {
        self.stepped.disconnect();
        // Each failure of the device changes the generation. The device may have failed before the
        // reset, because it served queues whose contents break the rules.
        let calls = self.device.take_calls();
        let failures = calls.iter().filter(|&call| *call == Call::Fail).count();
        self.generation = model.common.generation.wrapping_add(failures as u8);
        let next = self.model();
        self.check(&next);
        assert!(self.space.enter().is_empty(), "memory is left");
        next
    }
}
