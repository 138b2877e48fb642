// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The inbox of the service thread: work that the socket thread passes to it.
//!
//! The guest can't make the inbox grow without limit: each queue has one bit for notifications, a
//! failure and interrupts are one flag each, and the registers admit a task only when the previous
//! one of its kind is done.

use std::collections::VecDeque;
use std::mem;

use parking_lot::{Condvar, Mutex};

/// A change of the device's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Activate the device: the driver has set DRIVER_OK.
    Activate,
    /// Reset the device.
    Reset,
    /// Start a queue that the driver has enabled after DRIVER_OK.
    StartQueue(u16),
    ResetQueue(u16),
    /// Go on with a device that was taken over from another process.
    Resume,
}

/// A piece of work for the service thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceWork {
    /// Stop the device if it has failed.
    Fail,
    Task(Task),
    /// Signal the eventfds that were left to the service thread.
    Signal,
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
    signal: bool,
    tasks: VecDeque<Task>,
    kicked: Vec<bool>,
    /// Kicked queues in the order of their kicks, without duplicates.
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
        if mem::take(&mut self.signal) {
            return Some(ServiceWork::Signal);
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
                signal: false,
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

    pub(crate) fn signal(&self) {
        self.pending.lock().signal = true;
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

    /// Waits for work. A failure has priority over tasks, and tasks over kicks: a driver that never
    /// stops kicking can still be reset.
    pub(crate) fn wait(&self) -> ServiceWork {
        let mut pending = self.pending.lock();
        loop {
            if let Some(work) = pending.next() {
                return work;
            }
            self.filled.wait(&mut pending);
        }
    }

    /// The next piece of work, if any is pending.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self) -> Option<ServiceWork> {
        self.pending.lock().next()
    }

    /// Whether a change of the device's state is pending.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.pending.lock().tasks.is_empty()
    }

    /// Number of pending tasks.
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
