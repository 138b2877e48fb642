// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QPs that a worker looks at without being told.
//!
//! A QP whose SQ ran dry asks for a doorbell, which leaves the VM, passes its monitor and wakes a
//! worker. A worker that *watches* the QP instead looks at its SQ itself for a while, and no
//! doorbell is asked for meanwhile.
//!
//! That takes the worker's processor, so it is bounded: a worker watches few QPs, each for as long
//! as it was told to after the QP last had work. Where others want that processor, watching makes
//! things worse, as nobody looks while they have it and no doorbell tells; a worker that notices
//! watches nothing for some time.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;

use super::QpKey;

/// QPs that a worker watches at a time.
const SEATS: usize = 8;
/// A worker that did not look for so long was kept from its processor.
const ABSENCE: Duration = Duration::from_micros(500);
/// How long it watches nothing then.
const PAUSE: Duration = Duration::from_millis(20);

/// A worker looks at the QP's SQ and gives it a turn when it has work, or when the time is over.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Watched(());

/// The QPs that a worker watches.
#[derive(Debug)]
pub(crate) struct Watch {
    patience: Duration,
    /// The QPs, each with the time until when it is watched.
    seats: RefCell<ArrayVec<(QpKey, Instant), SEATS>>,
    /// When it looked last, while there is something to watch.
    looked: Cell<Option<Instant>>,
    /// Until when nothing is watched.
    pause: Cell<Option<Instant>>,
}

impl Watch {
    /// Nothing yet. Each QP will be watched for `patience` after it last had work; never, if that
    /// is zero.
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            patience,
            seats: RefCell::default(),
            looked: Cell::new(None),
            pause: Cell::new(None),
        }
    }

    /// For who watches nothing.
    pub(crate) fn nothing() -> Self {
        Self::new(Duration::ZERO)
    }

    /// Watches a QP whose turn that began at `now` ends, if it is watched already or did some work
    /// in that turn, `worked`, and there is a seat. Then the QP need not ask for a doorbell.
    pub(crate) fn admit(&self, qp: QpKey, now: Instant, worked: bool) -> Option<Watched> {
        if self.patience.is_zero() || self.is_paused(now) {
            return None;
        }
        let mut seats = self.seats.borrow_mut();
        let seat = seats.iter().position(|(other, _)| *other == qp);
        let until = now + self.patience;
        match seat {
            Some(at) if worked => seats[at].1 = until,
            Some(_) => {}
            None if worked && !seats.is_full() => seats.push((qp, until)),
            None => return None,
        }
        Some(Watched(()))
    }

    /// Whether nothing is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.seats.borrow().is_empty()
    }

    /// Looks at all of them: `posted` tells whether a QP has work. QPs that have, and those whose
    /// time is over, are not watched any more and passed to `ready`: they have a turn, after which
    /// they are watched again or ask for a doorbell.
    pub(crate) fn look(&self, now: Instant, posted: impl Fn(QpKey) -> bool, ready: impl Fn(QpKey)) {
        let absent = |last: Instant| now.saturating_duration_since(last) > ABSENCE;
        if self.looked.replace(Some(now)).is_some_and(absent) {
            self.pause.set(Some(now + PAUSE));
        }
        let paused = self.is_paused(now);
        let mut seats = self.seats.borrow_mut();
        seats.retain(|&mut (qp, until)| {
            let stays = !paused && now < until && !posted(qp);
            if !stays {
                ready(qp);
            }
            stays
        });
        if seats.is_empty() {
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

    /// The QPs that a look at `watch` makes ready, of which those in `posted` have work.
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
        let watch = Watch::new(PATIENCE);
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
        assert!(Watch::new(Duration::ZERO)
            .admit(qp(3), start, true)
            .is_none());
        let watch = Watch::new(PATIENCE);
        for qpn in 0..SEATS as u32 {
            assert!(watch.admit(qp(qpn), start, true).is_some());
        }
        assert!(watch.admit(qp(100), start, true).is_none());
        assert!(watch.admit(qp(0), start, false).is_some(), "one of them");
    }

    #[test]
    fn who_was_kept_away_watches_nothing_for_a_while() {
        let watch = Watch::new(2 * ABSENCE);
        let start = Instant::now();
        assert!(watch.admit(qp(3), start, true).is_some());
        assert!(look(&watch, start, &[]).is_empty());
        let back = start + ABSENCE + Duration::from_nanos(1);
        assert_eq!(look(&watch, back, &[]), [3]);
        assert!(watch.admit(qp(3), back, true).is_none());
        assert!(watch.admit(qp(3), back + PAUSE, true).is_some());
        // It did not look because there was nothing to look at.
        assert!(look(&watch, back + PAUSE, &[]).is_empty());
    }
}
