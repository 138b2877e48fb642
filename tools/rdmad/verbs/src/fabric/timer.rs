// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Deadlines of QPs.

use std::collections::BTreeSet;
use std::time::Instant;

use parking_lot::Mutex;

/// A QP of the fabric: port and QPN.
pub(crate) type TimerKey = (u32, u32);

/// The deadlines of a fabric. A QP has one at most, which it keeps itself as well so that it can be found.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    deadlines: Mutex<BTreeSet<(Instant, TimerKey)>>,
}

impl Timers {
    /// Replaces a QP's deadline `old` by `new`. Returns whether `new` is now the first of all.
    pub(crate) fn change(&self, key: TimerKey, old: Option<Instant>, new: Option<Instant>) -> bool {
        let mut deadlines = self.deadlines.lock();
        if let Some(old) = old {
            deadlines.remove(&(old, key));
        }
        match new {
            Some(new) => {
                deadlines.insert((new, key));
                deadlines.first() == Some(&(new, key))
            }
            None => false,
        }
    }

    /// Takes out one QP whose deadline is over.
    pub(crate) fn expired(&self, now: Instant) -> Option<TimerKey> {
        let mut deadlines = self.deadlines.lock();
        if deadlines.first()?.0 > now {
            return None;
        }
        deadlines.pop_first().map(|(_, key)| key)
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.deadlines.lock().first().map(|(deadline, _)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_deadline_a_qp() {
        let timers = Timers::default();
        let start = Instant::now();
        let at = |ms| Some(start + Duration::from_millis(ms));
        assert!(timers.change((1, 2), None, at(10)));
        assert!(!timers.change((1, 3), None, at(20)));
        assert!(timers.change((1, 3), at(20), at(5)));
        assert_eq!(timers.next(), at(5));
        assert_eq!(timers.expired(start), None);
        assert_eq!(timers.expired(at(15).unwrap()), Some((1, 3)));
        assert_eq!(timers.expired(at(15).unwrap()), Some((1, 2)));
        assert_eq!(timers.expired(at(15).unwrap()), None);
        timers.change((1, 2), None, at(30));
        assert!(!timers.change((1, 2), at(30), None));
        assert_eq!(timers.next(), None);
    }
}
