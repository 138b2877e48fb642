// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The packets of a port that are on the way, as its QPs share them.
//!
//! A requester decides how much its peers send to it. Without a limit, READs of many QPs would
//! overflow every queue on the way. So a QP books the responses that it requests, and waits if too
//! many responses to the port are outstanding.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of outstanding response packets of a port: a quarter of the frames that the
/// switch holds for an engine, above which it marks frames.
const RESPONSES: u32 = 1024;

/// Largest number of response packets that a QP requests at once.
const LARGEST: u32 = 64;

/// Number of packets that all QPs of a port may send before they know the network.
const START: u32 = 512;

/// The load of a port.
#[derive(Debug, Default)]
pub(crate) struct PortLoad {
    /// Number of response packets that QPs have booked.
    responses: AtomicU32,
    /// Number of QPs with unacknowledged packets.
    busy: AtomicU32,
}

/// The part of a QP in the load of its port.
#[derive(Debug, Default)]
pub(crate) struct QpLoad {
    responses: u32,
    is_busy: bool,
}

impl PortLoad {
    /// Whether the responses to any request may be booked.
    pub(crate) fn has_room(&self) -> bool {
        self.responses.load(Ordering::Acquire) + LARGEST <= RESPONSES
    }

    /// Number of packets with which a QP starts if all QPs with unacknowledged packets get as many.
    pub(crate) fn share(&self) -> u64 {
        let busy = self.busy.load(Ordering::Relaxed);
        u64::from(START / busy.saturating_add(1))
    }

    /// Books `packets` response packets in all for a QP. Returns false if the port has no room for
    /// them.
    pub(crate) fn book(&self, qp: &mut QpLoad, packets: u32) -> bool {
        let more = packets.saturating_sub(qp.responses);
        let fits = |booked: u32| Some(booked + more).filter(|all| *all <= RESPONSES);
        let booked = more == 0 || {
            let booked = &self.responses;
            booked
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
                .is_ok()
        };
        if booked {
            qp.responses = qp.responses.max(packets);
        }
        booked
    }

    /// Sets the load of a QP: the number of response packets that are outstanding, and whether it
    /// has unacknowledged packets. Returns whether the port has more room than before.
    pub(crate) fn settle(&self, qp: &mut QpLoad, responses: u32, is_busy: bool) -> bool {
        if is_busy != qp.is_busy {
            qp.is_busy = is_busy;
            // Wraps around for a QP that becomes idle.
            let change = if is_busy { 1 } else { u32::MAX };
            self.busy.fetch_add(change, Ordering::Relaxed);
        }
        let before = mem::replace(&mut qp.responses, responses);
        if responses != before {
            // Wraps around if there are fewer.
            let change = responses.wrapping_sub(before);
            self.responses.fetch_add(change, Ordering::AcqRel);
        }
        responses < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_booked_until_the_port_is_full() {
        let port = PortLoad::default();
        let mut qps = Vec::from_iter((0..=RESPONSES / LARGEST).map(|_| QpLoad::default()));
        let [first, others @ .., last] = &mut qps[..] else {
            unreachable!("there are many");
        };
        assert!(port.book(first, 10) && port.book(first, LARGEST) && port.book(first, 3));
        assert!(others.iter_mut().all(|qp| port.book(qp, LARGEST)));
        assert!(!port.has_room() && !port.book(last, 1));
        assert!(port.book(first, LARGEST), "nothing more than before");
        assert!(!port.settle(first, LARGEST, true));
        assert!(port.settle(first, 1, true));
        assert!(!port.has_room() && port.book(last, 1));
        assert!(port.settle(first, 0, false));
        assert!(port.settle(last, 0, false) && port.has_room());
        for qp in others {
            port.settle(qp, 0, false);
        }
        assert_eq!(port.responses.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn qps_that_are_busy_share_the_start() {
        let port = PortLoad::default();
        assert_eq!(port.share(), u64::from(START));
        let mut qps = Vec::from_iter((0..3).map(|_| QpLoad::default()));
        for qp in &mut qps {
            port.settle(qp, 0, true);
            port.settle(qp, 0, true);
        }
        assert_eq!(port.share(), u64::from(START / 4));
        for qp in &mut qps {
            port.settle(qp, 0, false);
        }
        assert_eq!(port.share(), u64::from(START));
    }
}
