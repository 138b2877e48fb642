// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QPs whose send queues a worker polls.
//!
//! A QP with an empty SQ requests a doorbell, which costs a VM exit, a pass through the VM's
//! monitor and a worker's wake-up. A worker that *watches* the QP polls its SQ for a while instead,
//! and no doorbell is requested meanwhile.
//!
//! Polling occupies the worker's CPU, so it is bounded: a worker watches few QPs, each for a
//! limited time after the QP last had work. A worker with a dedicated CPU watches a QP until
//! another QP needs its place. If other threads need the worker's CPU, watching does harm: while
//! they run, the QPs are not polled and their doorbells don't ring. A worker that notices a long
//! time without a poll watches no QPs for some time.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use scheduler::QpKey;

/// Maximum number of QPs that a worker watches at a time.
const MAX_WATCHED: usize = 8;
/// If the time between two polls is longer than this, other threads have used the worker's CPU.
const ABSENCE: Duration = Duration::from_micros(500);
/// Time for which a worker watches no QPs after an [`ABSENCE`] from its CPU.
const PAUSE: Duration = Duration::from_millis(20);
/// With unlimited patience: time without work after which a QP loses its place if another QP
/// needs one.
const TENURE: Duration = Duration::from_micros(50);

/// How long a worker watches a QP after the QP last had work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The worker watches the QP for this time. Zero means that no QPs are watched.
    Limited(Duration),
    /// The worker watches the QP until another QP needs its place.
    Unlimited,
}

/// Proof that a worker polls the QP's SQ, and gives the QP a turn when work is posted or the time
/// of watching ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Watched(());

/// The QPs that a worker watches.
#[derive(Debug)]
pub(crate) struct Watch {
    patience: Patience,
    /// The watched QPs, each with the time when it last had work.
    watched: RefCell<ArrayVec<(QpKey, Instant), MAX_WATCHED>>,
    /// Whether a QP that had work got no place since the last poll.
    is_wanted: Cell<bool>,
    /// Time of the last poll; `None` if no QPs were watched after it.
    looked: Cell<Option<Instant>>,
    /// Time until which no QPs are watched.
    pause: Cell<Option<Instant>>,
}

impl Watch {
    /// State without watched QPs.
    pub(crate) fn new(patience: Patience) -> Self {
        Self {
            patience,
            watched: RefCell::default(),
            is_wanted: Cell::new(false),
            looked: Cell::new(None),
            pause: Cell::new(None),
        }
    }

    /// The watch of a thread that must not watch QPs: it admits no QP.
    pub(crate) fn nothing() -> Self {
        Self::new(Patience::Limited(Duration::ZERO))
    }

    /// Watches a QP at the end of its turn, which began at `now`, unless watching is disabled or
    /// paused. A QP that is not watched already is added only if it had work in this turn
    /// (`worked`) and a place is free. While the QP is watched, no doorbell need be requested.
    pub(crate) fn admit(&self, qp: QpKey, now: Instant, worked: bool) -> Option<Watched> {
        if self.patience == Patience::Limited(Duration::ZERO) || self.is_paused(now) {
            return None;
        }
        let mut watched = self.watched.borrow_mut();
        let place = watched.iter().position(|(other, _)| *other == qp);
        match place {
            Some(at) if worked => watched[at].1 = now,
            Some(_) => {}
            None if worked && !watched.is_full() => watched.push((qp, now)),
            None => {
                self.is_wanted.set(self.is_wanted.get() || worked);
                return None;
            }
        }
        Some(Watched(()))
    }

    /// Whether no QP is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.watched.borrow().is_empty()
    }

    /// Polls all watched QPs. `posted` returns whether work is posted to a QP. A QP that has work,
    /// or whose time of watching has ended, is removed and passed to `ready`, which gives it a
    /// turn. At the end of that turn the QP is watched again or its doorbell is requested.
    pub(crate) fn look(&self, now: Instant, posted: impl Fn(QpKey) -> bool, ready: impl Fn(QpKey)) {
        let absent = |last: Instant| now.saturating_duration_since(last) > ABSENCE;
        if self.looked.replace(Some(now)).is_some_and(absent) {
            self.pause.set(Some(now + PAUSE));
        }
        let paused = self.is_paused(now);
        let limit = match self.patience {
            Patience::Limited(patience) => patience,
            Patience::Unlimited if self.is_wanted.get() => TENURE,
            Patience::Unlimited => Duration::MAX,
        };
        self.is_wanted.set(false);
        let mut watched = self.watched.borrow_mut();
        watched.retain(|&mut (qp, worked)| {
            let is_over = now.saturating_duration_since(worked) >= limit;
            let stays = !paused && !is_over && !posted(qp);
            if !stays {
                ready(qp);
            }
            stays
        });
        if watched.is_empty() {
            self.looked.set(None);
        }
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.pause.get().is_some_and(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::number::{PortId, Qpn};

    use super::*;

    const PATIENCE: Duration = Duration::from_micros(50);

    const fn qp(qpn: u32) -> QpKey {
        QpKey {
            port: PortId::new(1),
            qpn: Qpn::new(qpn),
        }
    }

    /// Polls the QPs of `watch`, of which those in `posted` have work. Returns the QPs that become
    /// ready.
    fn look(watch: &Watch, now: Instant, posted: &[u32]) -> Vec<u32> {
        let ready = RefCell::new(Vec::new());
        watch.look(
            now,
            |qp| posted.contains(&qp.qpn.get()),
            |qp| ready.borrow_mut().push(qp.qpn.get()),
        );
        ready.into_inner()
    }

    #[test]
    fn a_qp_is_watched_until_it_has_work_or_its_time_is_over() {
        let watch = Watch::new(Patience::Limited(PATIENCE));
        let start = Instant::now();
        assert!(watch.admit(qp(3), start, false).is_none(), "it had no work");
        assert!(watch.admit(qp(3), start, true).is_some());
        assert!(watch.admit(qp(4), start, true).is_some());
        assert!(look(&watch, start, &[]).is_empty());
        assert!(
            watch.admit(qp(4), start + PATIENCE / 2, true).is_some(),
            "once more"
        );
        assert_eq!(look(&watch, start + PATIENCE / 2, &[3]), [3]);
        assert!(look(&watch, start + PATIENCE, &[3]).is_empty(), "longer");
        assert_eq!(look(&watch, start + 2 * PATIENCE, &[]), [4]);
        assert!(watch.is_empty());
    }

    #[test]
    fn few_are_watched_and_none_without_patience() {
        let start = Instant::now();
        assert!(Watch::new(Patience::Limited(Duration::ZERO))
            .admit(qp(3), start, true)
            .is_none());
        let watch = Watch::new(Patience::Limited(PATIENCE));
        for qpn in 0..MAX_WATCHED as u32 {
            assert!(watch.admit(qp(qpn), start, true).is_some());
        }
        assert!(watch.admit(qp(100), start, true).is_none());
        assert!(watch.admit(qp(0), start, false).is_some(), "one of them");
    }

    #[test]
    fn who_was_kept_away_watches_nothing_for_a_while() {
        let watch = Watch::new(Patience::Limited(2 * ABSENCE));
        let start = Instant::now();
        assert!(watch.admit(qp(3), start, true).is_some());
        assert!(look(&watch, start, &[]).is_empty());
        let back = start + ABSENCE + Duration::from_nanos(1);
        assert_eq!(look(&watch, back, &[]), [3]);
        assert!(watch.admit(qp(3), back, true).is_none());
        assert!(watch.admit(qp(3), back + PAUSE, true).is_some());
        // The time in which no QPs were watched does not count as an absence.
        assert!(look(&watch, back + PAUSE, &[]).is_empty());
    }

    #[test]
    fn without_a_limit_a_qp_is_watched_until_others_want_its_place() {
        let watch = Watch::new(Patience::Unlimited);
        let start = Instant::now();
        let most = MAX_WATCHED as u32;
        for qpn in 0..most {
            assert!(watch.admit(qp(qpn), start, true).is_some());
        }
        let mut now = start;
        while now < start + 100 * TENURE {
            now += ABSENCE;
            assert!(look(&watch, now, &[]).is_empty());
        }
        assert!(watch.admit(qp(0), now, true).is_some(), "it had work");
        assert!(watch.admit(qp(most), now, false).is_none());
        assert!(look(&watch, now, &[]).is_empty(), "without work");
        assert!(watch.admit(qp(most), now, true).is_none());
        assert!(watch.admit(qp(most + 1), now, false).is_none());
        let idle: Vec<_> = (1..most).collect();
        assert_eq!(look(&watch, now, &[]), idle);
        assert!(watch.admit(qp(most), now, true).is_some());
        assert!(look(&watch, now, &[]).is_empty());
    }
}
