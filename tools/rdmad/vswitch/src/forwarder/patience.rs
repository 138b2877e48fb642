// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! How long a network interface waits for slow receivers.
//!
//! A wait delays all frames of the interface. If some of them are for other receivers, the
//! interface waits for a share of the time only. A slow receiver then loses frames, but does not
//! determine the pace of the sender's other connections.

use std::time::{Duration, Instant};

use budget::TimeShare;

use super::port::Destination;

/// An interface that sends to several receivers waits for one part of this many parts of the time.
const PARTS: u32 = 2;
/// How long such an interface may wait beyond its share.
const BURST: Duration = Duration::from_millis(50);
/// An interface sends to several receivers if its frames have changed their receiver [`CHANGES`]
/// times in this time.
const MIXED: Duration = Duration::from_secs(1);
/// A single frame for another receiver makes two changes.
const CHANGES: usize = 3;

/// The patience of one network interface.
pub(super) struct Patience {
    share: TimeShare,
    /// Time up to which the present wait was charged.
    charged: Instant,
    /// The destination of the last frame.
    last: Option<Destination>,
    /// Times of the last frames whose destination was not that of the frame before, newest first.
    changes: [Option<Instant>; CHANGES],
}

impl Patience {
    pub(super) fn new(start: Instant) -> Self {
        Self {
            share: TimeShare::new(PARTS, BURST, start),
            charged: start,
            last: None,
            changes: [None; CHANGES],
        }
    }

    /// Notes the destination of a frame. Returns whether the interface sends to several receivers.
    pub(super) fn note(&mut self, destination: Destination, now: Instant) -> bool {
        let last = self.last.replace(destination);
        if last.is_some_and(|last| last != destination) {
            self.changes.rotate_right(1);
            self.changes[0] = Some(now);
        }
        self.is_mixed(now)
    }

    /// Notes the beginning of a wait.
    pub(super) fn begin(&mut self, now: Instant) {
        self.charged = now;
    }

    /// Charges a wait up to `now`. Returns whether the interface may wait longer.
    pub(super) fn wait(&mut self, now: Instant) -> bool {
        let waited = now.saturating_duration_since(self.charged);
        self.charged = now;
        if !self.is_mixed(now) {
            return true;
        }
        self.share.charge(waited, now);
        !self.left(now).is_zero()
    }

    /// How long after `now` the interface may wait.
    pub(super) fn left(&self, now: Instant) -> Duration {
        match self.is_mixed(now) {
            true => self.share.longest_use(now),
            false => Duration::MAX,
        }
    }

    fn is_mixed(&self, now: Instant) -> bool {
        let lately = |change| now.saturating_duration_since(change) < MIXED;
        self.changes[CHANGES - 1].is_some_and(lately)
    }
}
