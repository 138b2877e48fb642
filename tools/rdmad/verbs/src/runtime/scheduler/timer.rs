// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Deadlines of flows.

use std::collections::BTreeSet;
use std::time::Instant;

use super::clock::nanos_since;
use super::flow::FlowKey;
use super::sync::{AtomicU64, Mutex, Ordering};
use super::Scheduler;

/// Value of [`Timers::first`] if there is no deadline.
const NEVER: u64 = u64::MAX;

/// The deadlines that one worker handles, at most one for each flow. The flow's [`Alarm`] holds
/// a copy of its deadline, which is needed to find the entry.
#[derive(Debug)]
pub(crate) struct Timers {
    start: Instant,
    /// The earliest deadline in nanoseconds since `start`, or [`NEVER`]. Workers check it without
    /// taking the lock.
    first: AtomicU64,
    deadlines: Mutex<BTreeSet<(Instant, FlowKey)>>,
}

impl Timers {
    /// An empty set. Deadlines that are added must not be before `start`.
    pub(crate) fn new(start: Instant) -> Self {
        Self {
            start,
            first: AtomicU64::new(NEVER),
            deadlines: Mutex::default(),
        }
    }

    /// Replaces the deadline `old` of flow `key` by `new`. Returns whether `new` is now the
    /// earliest deadline.
    pub(crate) fn change(&self, key: FlowKey, old: Option<Instant>, new: Option<Instant>) -> bool {
        let mut deadlines = self.deadlines.lock();
        if let Some(old) = old {
            deadlines.remove(&(old, key));
        }
        if let Some(new) = new {
            deadlines.insert((new, key));
        }
        self.note_first(&deadlines);
        new.is_some_and(|new| deadlines.first() == Some(&(new, key)))
    }

    /// Removes the entry of one flow whose deadline has passed at `now`, and returns the flow.
    pub(crate) fn expired(&self, now: Instant) -> Option<FlowKey> {
        if nanos_since(self.start, now) < self.first.load(Ordering::Relaxed) {
            return None;
        }
        let mut deadlines = self.deadlines.lock();
        if deadlines.first()?.0 > now {
            return None;
        }
        let expired = deadlines.pop_first();
        self.note_first(&deadlines);
        expired.map(|(_, key)| key)
    }

    /// The earliest deadline, if there is one.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.deadlines.lock().first().map(|(deadline, _)| *deadline)
    }

    fn note_first(&self, deadlines: &BTreeSet<(Instant, FlowKey)>) {
        let first = deadlines
            .first()
            .map_or(NEVER, |(first, _)| nanos_since(self.start, *first));
        self.first.store(first, Ordering::Relaxed);
    }
}

/// A flow's entry in the timers of a worker.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    worker: usize,
    deadline: Instant,
}

/// Proof that the flow gets a turn at a deadline.
#[derive(Debug)]
#[must_use]
pub(crate) struct Until(());

impl Alarm {
    /// Ensures that flow `key`, whose home is worker `home`, gets a turn at `deadline` or earlier.
    /// If the flow's entry has an earlier deadline, the entry is not changed: acknowledgements move
    /// the deadline often, and a useless turn costs less than a change of the timers each time.
    pub(crate) fn set(
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
    pub(crate) fn expired(&mut self) {
        self.0 = None;
    }

    /// Removes the entry of flow `key` from the timers.
    pub(crate) fn clear(&mut self, scheduler: &Scheduler, key: FlowKey) {
        if let Some(set) = self.0.take() {
            let timers = &scheduler.workers[set.worker].timers;
            timers.change(key, Some(set.deadline), None);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use virtio_rdma_abi::number::{PortId, Qpn};

    use super::super::flow::Flow;
    use super::*;

    #[test]
    fn one_deadline_a_flow() {
        let start = Instant::now();
        let timers = Timers::new(start);
        let flow = |qpn| FlowKey {
            port: PortId::new(1),
            flow: Flow::of(Qpn::new(qpn)),
        };
        let at = |ms| Some(start + Duration::from_millis(ms));
        assert!(timers.change(flow(2), None, at(10)));
        assert!(!timers.change(flow(3), None, at(20)));
        assert!(timers.change(flow(3), at(20), at(5)));
        assert_eq!(timers.next(), at(5));
        assert_eq!(timers.expired(start), None);
        assert_eq!(timers.expired(at(15).unwrap()), Some(flow(3)));
        assert_eq!(timers.expired(at(15).unwrap()), Some(flow(2)));
        assert_eq!(timers.expired(at(15).unwrap()), None);
        timers.change(flow(2), None, at(30));
        assert!(!timers.change(flow(2), at(30), None));
        assert_eq!(timers.next(), None);
    }
}
