// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Deadlines of QPs.

use std::collections::BTreeSet;
use std::time::Instant;

use virtio_rdma_abi::number::{PortId, Qpn};

use super::clock::nanos_since;
use super::sync::{AtomicU64, Mutex, Ordering};
use super::Scheduler;

/// A QP of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QpKey {
    /// Its port.
    pub port: PortId,
    /// QPN.
    pub qpn: Qpn,
}

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The deadlines that one worker looks at. A QP has one at most, which its [`Alarm`] knows as well
/// so that it can be found.
#[derive(Debug)]
pub(crate) struct Timers {
    start: Instant,
    /// The first deadline in nanoseconds since `start`, so that workers see without the lock that
    /// nothing is due.
    first: AtomicU64,
    deadlines: Mutex<BTreeSet<(Instant, QpKey)>>,
}

impl Timers {
    /// No deadlines; there are none before `start`.
    pub(crate) fn new(start: Instant) -> Self {
        Self {
            start,
            first: AtomicU64::new(NEVER),
            deadlines: Mutex::default(),
        }
    }

    /// Replaces a QP's deadline `old` by `new`. Returns whether `new` is now the first of all.
    pub(crate) fn change(&self, key: QpKey, old: Option<Instant>, new: Option<Instant>) -> bool {
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

    /// Takes out one QP whose deadline is over.
    pub(crate) fn expired(&self, now: Instant) -> Option<QpKey> {
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

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.deadlines.lock().first().map(|(deadline, _)| *deadline)
    }

    fn note_first(&self, deadlines: &BTreeSet<(Instant, QpKey)>) {
        let first = deadlines
            .first()
            .map_or(NEVER, |(first, _)| nanos_since(self.start, *first));
        self.first.store(first, Ordering::Relaxed);
    }
}

/// A QP's entry in the timers of a worker.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    worker: usize,
    deadline: Instant,
}

/// The QP has a turn at its deadline.
#[derive(Debug)]
#[must_use]
pub(crate) struct Until(());

impl Alarm {
    /// Sees that QP `key`, which has its turns by worker `home`, has one at `deadline` at the
    /// latest. An entry that comes too early stays: answers move the deadline often, and a turn for
    /// nothing is cheaper than to change the timers each time.
    pub(crate) fn set(
        &mut self,
        scheduler: &Scheduler,
        key: QpKey,
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

    /// The timers have taken the entry out.
    pub(crate) fn expired(&mut self) {
        self.0 = None;
    }

    /// Takes the entry of QP `key` out of the timers.
    pub(crate) fn clear(&mut self, scheduler: &Scheduler, key: QpKey) {
        if let Some(set) = self.0.take() {
            let timers = &scheduler.workers[set.worker].timers;
            timers.change(key, Some(set.deadline), None);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_deadline_a_qp() {
        let start = Instant::now();
        let timers = Timers::new(start);
        let qp = |qpn| QpKey {
            port: PortId::new(1),
            qpn: Qpn::new(qpn),
        };
        let at = |ms| Some(start + Duration::from_millis(ms));
        assert!(timers.change(qp(2), None, at(10)));
        assert!(!timers.change(qp(3), None, at(20)));
        assert!(timers.change(qp(3), at(20), at(5)));
        assert_eq!(timers.next(), at(5));
        assert_eq!(timers.expired(start), None);
        assert_eq!(timers.expired(at(15).unwrap()), Some(qp(3)));
        assert_eq!(timers.expired(at(15).unwrap()), Some(qp(2)));
        assert_eq!(timers.expired(at(15).unwrap()), None);
        timers.change(qp(2), None, at(30));
        assert!(!timers.change(qp(2), at(30), None));
        assert_eq!(timers.next(), None);
    }
}
