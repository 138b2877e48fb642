// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Deadlines of flows.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::clock::nanos_since;
use crate::flow::FlowKey;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Value of [`Timers::first`] if there is no deadline.
const NEVER: u64 = u64::MAX;

/// The deadlines that one worker handles, at most one for each flow. The flow's
/// [`Alarm`](crate::Alarm) holds a copy of its deadline, which is needed to find the entry.
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
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            first: AtomicU64::new(NEVER),
            deadlines: Mutex::default(),
        }
    }

    /// Replaces the deadline `old` of flow `key` by `new`. Returns whether `new` is now the
    /// earliest deadline.
    pub fn change(&self, key: FlowKey, old: Option<Instant>, new: Option<Instant>) -> bool {
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
    #[inline]
    pub fn expired(&self, now: Instant) -> Option<FlowKey> {
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
    pub fn next(&self) -> Option<Instant> {
        self.deadlines.lock().first().map(|(deadline, _)| *deadline)
    }

    fn note_first(&self, deadlines: &BTreeSet<(Instant, FlowKey)>) {
        let first = deadlines
            .first()
            .map_or(NEVER, |(first, _)| nanos_since(self.start, *first));
        self.first.store(first, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use virtio_rdma_abi::number::{PortId, Qpn};

    use super::*;
    use crate::flow::Flow;

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
