// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work that the socket thread leaves to the service thread.
//!
//! Nothing here grows with what the guest does: kicks are a bit per queue, the device fails once,
//! and the registers admit a task again only when the last one of its kind is done.

use std::collections::VecDeque;
use std::mem;

use parking_lot::{Condvar, Mutex};

/// A change of the device's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The driver is ready.
    Activate,
    /// Device reset.
    Reset,
    /// Start a queue while the driver is ready.
    StartQueue(u16),
    /// Reset a queue.
    ResetQueue(u16),
}

/// The next piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceWork {
    /// Stop the device if it has failed.
    Fail,
    Task(Task),
    Serve(u16),
    Stop,
}

/// The service thread's inbox.
#[derive(Debug)]
pub(crate) struct Inbox {
    pending: Mutex<Pending>,
    filled: Condvar,
}

#[derive(Debug)]
struct Pending {
    fail: bool,
    tasks: VecDeque<Task>,
    kicked: Vec<bool>,
    /// Queues in the order of their kicks; each is there once.
    order: VecDeque<u16>,
    stop: bool,
}

impl Pending {
    fn next(&mut self) -> Option<ServiceWork> {
        if mem::take(&mut self.fail) {
            return Some(ServiceWork::Fail);
        }
        if let Some(task) = self.tasks.pop_front() {
            return Some(ServiceWork::Task(task));
        }
        if self.stop {
            return Some(ServiceWork::Stop);
        }
        let queue = self.order.pop_front()?;
        self.kicked[usize::from(queue)] = false;
        Some(ServiceWork::Serve(queue))
    }
}

impl Inbox {
    pub(crate) fn new(queues: usize) -> Self {
        Self {
            pending: Mutex::new(Pending {
                fail: false,
                tasks: VecDeque::new(),
                kicked: vec![false; queues],
                order: VecDeque::with_capacity(queues),
                stop: false,
            }),
            filled: Condvar::new(),
        }
    }

    pub(crate) fn fail(&self) {
        self.pending.lock().fail = true;
        self.filled.notify_one();
    }

    pub(crate) fn task(&self, task: Task) {
        self.pending.lock().tasks.push_back(task);
        self.filled.notify_one();
    }

    pub(crate) fn kick(&self, queue: u16) {
        let pending = &mut *self.pending.lock();
        if let Some(kicked @ false) = pending.kicked.get_mut(usize::from(queue)) {
            *kicked = true;
            pending.order.push_back(queue);
            self.filled.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        self.pending.lock().stop = true;
        self.filled.notify_one();
    }

    /// Waits for work. A failure comes first; tasks come before kicks, so that a driver that kicks
    /// without end can still be reset.
    pub(crate) fn wait(&self) -> ServiceWork {
        let mut pending = self.pending.lock();
        loop {
            if let Some(work) = pending.next() {
                return work;
            }
            self.filled.wait(&mut pending);
        }
    }

    /// The work that waits, if any.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self) -> Option<ServiceWork> {
        self.pending.lock().next()
    }

    /// Whether a change of the device's state waits.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.pending.lock().tasks.is_empty()
    }

    /// Number of tasks that wait.
    #[cfg(feature = "testing")]
    pub(crate) fn tasks(&self) -> usize {
        self.pending.lock().tasks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kicks_merge_and_tasks_come_before_them() {
        let inbox = Inbox::new(3);
        for _ in 0..1000 {
            inbox.kick(2);
            inbox.kick(0);
            inbox.kick(3);
        }
        inbox.task(Task::Reset);
        inbox.fail();
        inbox.fail();
        assert_eq!(inbox.wait(), ServiceWork::Fail);
        assert_eq!(inbox.wait(), ServiceWork::Task(Task::Reset));
        assert_eq!(inbox.wait(), ServiceWork::Serve(2));
        inbox.kick(2);
        assert_eq!(inbox.wait(), ServiceWork::Serve(0));
        assert_eq!(inbox.wait(), ServiceWork::Serve(2));
        inbox.stop();
        assert_eq!(inbox.wait(), ServiceWork::Stop);
    }
}
