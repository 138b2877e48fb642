// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The alarm of a flow: its deadline in the timers of its home.

use std::time::Instant;

use crate::flow::FlowKey;
use crate::Scheduler;

/// A flow's entry in the timers of a worker.
#[derive(Debug, Default)]
pub struct Alarm(Option<Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    worker: usize,
    deadline: Instant,
}

/// Proof that the flow gets a turn at a deadline.
#[derive(Debug)]
#[must_use]
pub struct Until(());

impl Alarm {
    /// Ensures that flow `key`, whose home is worker `home`, gets a turn at `deadline` or earlier.
    /// If the flow's entry has an earlier deadline, the entry is not changed: acknowledgements move
    /// the deadline often, and a useless turn costs less than a change of the timers each time.
    #[inline]
    pub fn set(
        &mut self,
        scheduler: &Scheduler,
        key: FlowKey,
        home: usize,
        deadline: Instant,
    ) -> Until {
        if self.0.is_none_or(|set| deadline < set.deadline) {
            let here = self.0.filter(|set| set.worker == home);
            if here.is_none() {
                self.clear(scheduler, key);
            }
            let old = here.map(|set| set.deadline);
            let timers = &scheduler.workers[home].timers;
            if timers.change(key, old, Some(deadline)) {
                scheduler.wake(home);
            }
            self.0 = Some(Entry {
                worker: home,
                deadline,
            });
        }
        Until(())
    }

    /// Records that the timers have removed the entry.
    #[inline]
    pub fn expired(&mut self) {
        self.0 = None;
    }

    /// Removes the entry of flow `key` from the timers.
    #[inline]
    pub fn clear(&mut self, scheduler: &Scheduler, key: FlowKey) {
        if let Some(set) = self.0.take() {
            let timers = &scheduler.workers[set.worker].timers;
            timers.change(key, Some(set.deadline), None);
        }
    }
}
