// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The learning table: which uplink a MAC address is behind.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use roce::net::Mac;

/// How long an address that is not heard of stays known (IEEE 802.1D, recommended default).
pub const AGEING: Duration = Duration::from_secs(300);

/// Addresses that are known at a time; more are not learned, so that frames to them go to all uplinks.
pub const CAPACITY: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Entry {
    uplink: usize,
    seen: Instant,
}

/// The table.
#[derive(Debug)]
pub struct Table {
    entries: HashMap<Mac, Entry>,
    capacity: usize,
    /// When room was last made in the full table, so that a flood of addresses does not have it searched each time.
    swept: Option<Instant>,
}

impl Default for Table {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl Table {
    /// An empty table for up to `capacity` addresses.
    pub fn new(capacity: usize) -> Self {
        Self {
            entries: HashMap::with_capacity(capacity),
            capacity,
            swept: None,
        }
    }

    /// Notes that `mac` was heard on `uplink`.
    pub fn learn(&mut self, mac: Mac, uplink: usize, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&mac) {
            *entry = Entry { uplink, seen: now };
            return;
        }
        if self.entries.len() >= self.capacity {
            let recently = |at: Instant| now.duration_since(at) < Duration::from_secs(1);
            if self.swept.is_some_and(recently) {
                return;
            }
            self.swept = Some(now);
            self.entries
                .retain(|_, entry| now.duration_since(entry.seen) < AGEING);
            if self.entries.len() >= self.capacity {
                return;
            }
        }
        self.entries.insert(mac, Entry { uplink, seen: now });
    }

    /// The uplink that `mac` is behind, if known.
    pub fn find(&self, mac: &Mac, now: Instant) -> Option<usize> {
        let entry = self.entries.get(mac)?;
        (now.duration_since(entry.seen) < AGEING).then_some(entry.uplink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learns_moves_and_forgets() {
        let (mut table, now) = (Table::default(), Instant::now());
        assert_eq!(table.find(&[2; 6], now), None);
        table.learn([2; 6], 0, now);
        assert_eq!(table.find(&[2; 6], now), Some(0));
        table.learn([2; 6], 1, now);
        assert_eq!(table.find(&[2; 6], now), Some(1));
        let later = now + AGEING - Duration::from_millis(1);
        assert_eq!(table.find(&[2; 6], later), Some(1));
        assert_eq!(table.find(&[2; 6], now + AGEING), None);
    }

    #[test]
    fn stays_bounded() {
        let (mut table, now) = (Table::new(2), Instant::now());
        for last in 1..=3 {
            table.learn([2, 0, 0, 0, 0, last], 0, now);
        }
        assert_eq!(table.entries.len(), 2);
        assert_eq!(table.find(&[2, 0, 0, 0, 0, 3], now), None);
        let later = now + AGEING;
        table.learn([2, 0, 0, 0, 0, 3], 0, later);
        assert_eq!(table.find(&[2, 0, 0, 0, 0, 3], later), Some(0));
        assert_eq!(table.entries.len(), 1);
    }
}
