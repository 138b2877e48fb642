// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! When packets of other ports last arrived.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roce::net::Mac;

/// Number of entries. Ports whose addresses have the same hash share an entry.
const ENTRIES: usize = 64;

/// Time within which an entry is written once.
const PRECISION: Duration = Duration::from_millis(1);

/// The times at which packets of other ports last arrived.
#[derive(Debug)]
pub(crate) struct Heard {
    start: Instant,
    /// Nanoseconds since `start`.
    last: [AtomicU64; ENTRIES],
}

impl Heard {
    /// No packets until `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            start: now,
            last: [const { AtomicU64::new(0) }; ENTRIES],
        }
    }

    /// Records that packets of `peer` arrived at `now`.
    pub(crate) fn note(&self, peer: &Mac, now: Instant) {
        let (entry, now) = (self.of(peer), self.nanos(now));
        if now >= entry.load(Ordering::Relaxed) + nanos(PRECISION) {
            entry.store(now, Ordering::Relaxed);
        }
    }

    /// Whether packets of `peer`, or of a port with the same hash, arrived after `since`.
    pub(crate) fn is_after(&self, peer: &Mac, since: Instant) -> bool {
        self.of(peer).load(Ordering::Relaxed) > self.nanos(since)
    }

    fn of(&self, peer: &Mac) -> &AtomicU64 {
        let hash = peer.iter().fold(0, |hash: usize, byte| {
            hash.wrapping_mul(31).wrapping_add((*byte).into())
        });
        &self.last[hash % ENTRIES]
    }

    fn nanos(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.start))
    }
}

/// The duration in nanoseconds, which 64 bits hold for centuries.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_packet_of_a_peer_is_remembered() {
        let start = Instant::now();
        let heard = Heard::new(start);
        let (peer, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!heard.is_after(&peer, start));
        heard.note(&peer, at(5));
        assert!(heard.is_after(&peer, at(4)) && !heard.is_after(&peer, at(5)));
        assert!(!heard.is_after(&other, start));
        heard.note(&peer, at(9));
        assert!(heard.is_after(&peer, at(8)));
    }
}
