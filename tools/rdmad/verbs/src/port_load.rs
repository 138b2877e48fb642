// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The packets of a port that are on the way, as its QPs share them.
//!
//! A requester decides how much its peers send to it. Without a limit, READs of many QPs would
//! overflow every queue on the way. So a QP books the responses that it requests, and waits if too
//! many responses to the port are outstanding.
//!
//! A peer may answer late or never. So time is divided into periods for each QP, and at the end of
//! a period the QP keeps no more packets booked than the peer has acknowledged in it. The rest
//! stays outstanding, but other QPs may book as many. A QP whose peer is silent does not count as
//! busy either. So other QPs wait for a silent peer at most a period per request.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of response packets that QPs of a port have booked: a quarter of the frames that
/// the switch holds for an engine, above which it marks frames.
const RESPONSES: u32 = 1024;

/// Largest number of response packets that a QP requests at once.
const LARGEST: u32 = 64;

/// Number of packets that all QPs of a port may send before they know the network.
const START: u32 = 512;

/// Length of a period. Within it, a network of 1 Gb/s delivers [`RESPONSES`] packets of the largest
/// MTU. So peers that answer in turn acknowledge something in each period.
pub(crate) const PERIOD: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(crate) struct PortLoad {
    /// Number of response packets that QPs have booked.
    responses: AtomicU32,
    /// Number of QPs with unacknowledged packets whose peers are not silent.
    busy: AtomicU32,
}

/// The packets of a QP that its peer has yet to answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outstanding {
    /// Number of response packets, apart from acknowledgements.
    pub responses: u32,
    /// Whether packets are unacknowledged. True if there are `responses`.
    pub is_busy: bool,
    /// Number of packets that the peer has ever acknowledged.
    pub acknowledged: u64,
}

/// The part of a QP in the load of its port.
#[derive(Debug, Default)]
pub(crate) struct QpLoad {
    /// Number of response packets that are outstanding, booked or not.
    outstanding: u32,
    booked: u32,
    /// Whether the QP counts as busy.
    is_busy: bool,
    period: Period,
    /// Number of packets that the peer had acknowledged when the period began.
    acknowledged: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum Period {
    /// Nothing is outstanding, or the next period has yet to begin.
    #[default]
    None,
    /// It ends at this time.
    Until(Instant),
    /// The peer has acknowledged nothing for a whole period.
    Silent,
}

impl QpLoad {
    /// Whether this number of response packets is outstanding already.
    pub(crate) fn covers(&self, packets: u32) -> bool {
        packets <= self.outstanding
    }

    /// End of the current period.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.period {
            Period::Until(end) => Some(end),
            Period::None | Period::Silent => None,
        }
    }

    /// The packets that are still booked at `now`, and whether the QP counts as busy. Begins a
    /// period if necessary.
    fn advance(&mut self, now: Instant, outstanding: Outstanding) -> (u32, bool) {
        if !outstanding.is_busy {
            self.period = Period::None;
            return (0, false);
        }
        let acknowledged = outstanding.acknowledged.saturating_sub(self.acknowledged);
        let booked = self.booked.min(outstanding.responses);
        let kept = match self.period {
            Period::Until(end) if now < end => return (booked, true),
            Period::Until(_) | Period::Silent if acknowledged == 0 => {
                self.period = Period::Silent;
                return (0, false);
            }
            // The cast does not truncate: `booked` fits.
            Period::Until(_) => u64::from(booked).min(acknowledged) as u32,
            Period::None | Period::Silent => booked,
        };
        self.period = Period::Until(now + PERIOD);
        self.acknowledged = outstanding.acknowledged;
        (kept, true)
    }
}

impl PortLoad {
    /// Whether the responses to any request may be booked.
    pub(crate) fn has_room(&self) -> bool {
        self.responses.load(Ordering::Acquire) + LARGEST <= RESPONSES
    }

    /// Number of packets with which a QP starts if all busy QPs get as many.
    pub(crate) fn share(&self) -> u64 {
        let busy = self.busy.load(Ordering::Relaxed);
        u64::from(START / busy.saturating_add(1))
    }

    /// Books the responses to a request of a QP, after which `packets` in all are outstanding.
    /// Returns false if the port has no room for them. Responses that were outstanding before are
    /// not booked again: a retransmission requests the same ones.
    pub(crate) fn book(&self, qp: &mut QpLoad, packets: u32) -> bool {
        let more = packets.saturating_sub(qp.outstanding);
        if more == 0 {
            return true;
        }
        let fits = |booked: u32| Some(booked + more).filter(|all| *all <= RESPONSES);
        let booked = self
            .responses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .is_ok();
        if booked {
            if qp.booked == 0 {
                qp.period = Period::None;
            }
            qp.booked += more;
            qp.outstanding = packets;
        }
        booked
    }

    /// Sets the load of a QP at `now`. Returns whether the port has more room than before.
    pub(crate) fn update(&self, qp: &mut QpLoad, now: Instant, outstanding: Outstanding) -> bool {
        let (booked, is_busy) = qp.advance(now, outstanding);
        qp.outstanding = outstanding.responses;
        self.count(qp, booked, is_busy)
    }

    /// Removes the load of a QP that stops. Returns whether the port has more room than before.
    pub(crate) fn release(&self, qp: &mut QpLoad) -> bool {
        let freed = self.count(qp, 0, false);
        *qp = QpLoad::default();
        freed
    }

    fn count(&self, qp: &mut QpLoad, booked: u32, is_busy: bool) -> bool {
        if is_busy != qp.is_busy {
            qp.is_busy = is_busy;
            // Wraps around for a QP that becomes idle.
            let change = if is_busy { 1 } else { u32::MAX };
            self.busy.fetch_add(change, Ordering::Relaxed);
        }
        let before = mem::replace(&mut qp.booked, booked);
        if booked < before {
            self.responses.fetch_sub(before - booked, Ordering::AcqRel);
        }
        booked < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outstanding(responses: u32, acknowledged: u64) -> Outstanding {
        Outstanding {
            responses,
            is_busy: true,
            acknowledged,
        }
    }

    fn booked(port: &PortLoad) -> u32 {
        port.responses.load(Ordering::Relaxed)
    }

    fn qps(count: u32) -> Vec<QpLoad> {
        Vec::from_iter((0..count).map(|_| QpLoad::default()))
    }

    #[test]
    fn responses_are_booked_until_the_port_is_full() {
        let (port, now) = (PortLoad::default(), Instant::now());
        let mut qps = qps(RESPONSES / LARGEST + 1);
        let [first, others @ .., last] = &mut qps[..] else {
            unreachable!("there are many");
        };
        assert!(port.book(first, 10) && port.book(first, LARGEST) && port.book(first, 3));
        assert!(others.iter_mut().all(|qp| port.book(qp, LARGEST)));
        assert!(!port.has_room() && !port.book(last, 1));
        assert!(port.book(first, LARGEST), "nothing more than before");
        assert!(!port.update(first, now, outstanding(LARGEST, 0)));
        assert!(port.update(first, now, outstanding(1, 63)));
        assert!(!port.has_room() && port.book(last, 1));
        assert!(port.update(first, now, Outstanding::default()));
        assert!(port.release(last) && port.has_room());
        assert!(others.iter_mut().all(|qp| port.release(qp)));
        assert_eq!(booked(&port), 0);
    }

    #[test]
    fn qps_that_are_busy_share_the_start() {
        let (port, now) = (PortLoad::default(), Instant::now());
        assert_eq!(port.share(), u64::from(START));
        let mut qps = qps(3);
        for qp in &mut qps {
            port.update(qp, now, outstanding(0, 0));
            port.update(qp, now, outstanding(0, 0));
        }
        assert_eq!(port.share(), u64::from(START / 4));
        for qp in &mut qps {
            port.update(qp, now, Outstanding::default());
        }
        assert_eq!(port.share(), u64::from(START));
    }

    #[test]
    fn a_silent_peer_loads_the_port_for_a_period_per_request() {
        let (port, mut now) = (PortLoad::default(), Instant::now());
        let mut qp = QpLoad::default();
        let mut all = 0;
        for _ in 0..2 {
            all += LARGEST;
            assert!(port.book(&mut qp, all));
            port.update(&mut qp, now, outstanding(all, 0));
            assert_eq!(qp.deadline(), Some(now + PERIOD));
            now += PERIOD;
            assert_eq!((booked(&port), port.share()), (LARGEST, 256));
            assert!(port.update(&mut qp, now, outstanding(all, 0)));
            assert_eq!((booked(&port), port.share()), (0, 512));
            assert_eq!(qp.deadline(), None, "a silent peer needs no more turns");
            // A retransmission requests what is outstanding.
            assert!(port.book(&mut qp, all));
            now += PERIOD;
            assert!(!port.update(&mut qp, now, outstanding(all, 0)));
            assert_eq!((booked(&port), port.share()), (0, 512));
        }
        port.update(&mut qp, now, outstanding(all - 1, 1));
        assert_eq!((booked(&port), port.share()), (0, 256), "it has answered");
        assert_eq!(qp.deadline(), Some(now + PERIOD));
    }

    #[test]
    fn a_slow_peer_keeps_as_many_packets_booked_as_it_sends_in_a_period() {
        let (port, mut now) = (PortLoad::default(), Instant::now());
        let mut qp = QpLoad::default();
        assert!(port.book(&mut qp, LARGEST));
        port.update(&mut qp, now, outstanding(LARGEST, 100));
        for answered in 1..=4 {
            now += PERIOD / 4;
            port.update(
                &mut qp,
                now,
                outstanding(LARGEST - answered, 100 + u64::from(answered)),
            );
        }
        assert_eq!(booked(&port), 4);
        assert_eq!(qp.deadline(), Some(now + PERIOD));
        port.update(&mut qp, now + PERIOD / 2, outstanding(LARGEST - 5, 105));
        assert_eq!(booked(&port), 4);
        port.update(&mut qp, now + PERIOD, outstanding(LARGEST - 5, 105));
        assert_eq!(booked(&port), 1);
    }
}
