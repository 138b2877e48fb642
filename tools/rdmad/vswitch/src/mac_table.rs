// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The learning table: maps MAC addresses to the uplinks behind which they are.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use roce::net::Mac;

use crate::index::UplinkIndex;

/// How long an address stays in the table without a frame from it (recommended default of IEEE
/// 802.1D).
pub const AGEING: Duration = Duration::from_secs(300);

/// Time without a frame from an address on its uplink after which the address may be learned on
/// another uplink. So the address of a host that sends frames can't be hijacked. Frames that return
/// through a loop of two uplinks don't move an address either: they return within this time.
pub const HOLD: Duration = Duration::from_secs(1);

/// Maximum number of addresses in the table for each uplink. Frames to other addresses are sent to
/// all uplinks.
pub const CAPACITY: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Entry {
    uplink: UplinkIndex,
    seen: Instant,
}

/// The learning table of a switch.
#[derive(Debug)]
pub(crate) struct MacTable {
    entries: HashMap<Mac, Entry>,
    capacity: usize,
    uplinks: Vec<Share>,
}

/// The share of one uplink in the table.
#[derive(Clone, Debug, Default)]
struct Share {
    entries: usize,
    /// When old addresses were last removed. They are removed rarely: otherwise, in a flood of
    /// addresses, each new address would cause a search of the whole table.
    swept: Option<Instant>,
}

/// Whether a source address is plausible on the uplink where it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The address is accepted on this uplink.
    There,
    /// The address was seen on this other uplink less than [`HOLD`] ago.
    Elsewhere(UplinkIndex),
}

impl MacTable {
    /// An empty table for up to [`CAPACITY`] addresses behind each of `uplinks` uplinks.
    pub(crate) fn new(uplinks: usize) -> Self {
        Self::with_capacity(uplinks, CAPACITY)
    }

    fn with_capacity(uplinks: usize, capacity: usize) -> Self {
        Self {
            entries: HashMap::new(),
            capacity,
            uplinks: vec![Share::default(); uplinks],
        }
    }

    /// Learns from a frame with source address `mac` that arrived from `uplink`.
    pub(crate) fn learn(&mut self, mac: Mac, uplink: UplinkIndex, now: Instant) -> Heard {
        let entry = Entry { uplink, seen: now };
        let Some(known) = self.entries.get_mut(&mac) else {
            if self.has_room(uplink, now) {
                self.uplinks[uplink.0].entries += 1;
                self.entries.insert(mac, entry);
            }
            return Heard::There;
        };
        if known.uplink == uplink {
            known.seen = now;
            return Heard::There;
        }
        let before = *known;
        if now.saturating_duration_since(before.seen) < HOLD {
            return Heard::Elsewhere(before.uplink);
        }
        self.uplinks[before.uplink.0].entries -= 1;
        if self.has_room(uplink, now) {
            self.uplinks[uplink.0].entries += 1;
            self.entries.insert(mac, entry);
        } else {
            self.entries.remove(&mac);
        }
        Heard::There
    }

    /// Whether there is room for one more address of `uplink`. Removes old addresses if need be.
    fn has_room(&mut self, uplink: UplinkIndex, now: Instant) -> bool {
        let share = &mut self.uplinks[uplink.0];
        if share.entries < self.capacity {
            return true;
        }
        let recently = |at: Instant| now.saturating_duration_since(at) < Duration::from_secs(1);
        if share.swept.is_some_and(recently) {
            return false;
        }
        share.swept = Some(now);
        self.entries.retain(|_, entry| {
            entry.uplink != uplink || now.saturating_duration_since(entry.seen) < AGEING
        });
        share.entries = self
            .entries
            .values()
            .filter(|entry| entry.uplink == uplink)
            .count();
        share.entries < self.capacity
    }

    /// Number of addresses in the table, including expired ones.
    #[cfg(feature = "testing")]
    pub(crate) fn held(&self) -> usize {
        self.entries.len()
    }

    /// The uplink that `mac` is behind, if known.
    pub(crate) fn find(&self, mac: &Mac, now: Instant) -> Option<UplinkIndex> {
        let entry = self.entries.get(mac)?;
        (now.duration_since(entry.seen) < AGEING).then_some(entry.uplink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: UplinkIndex = UplinkIndex(0);
    const SECOND: UplinkIndex = UplinkIndex(1);

    #[test]
    fn learns_moves_and_forgets() {
        let (mut table, now) = (MacTable::new(2), Instant::now());
        assert_eq!(table.find(&[2; 6], now), None);
        assert_eq!(table.learn([2; 6], FIRST, now), Heard::There);
        assert_eq!(table.find(&[2; 6], now), Some(FIRST));
        let now = now + HOLD;
        assert_eq!(table.learn([2; 6], SECOND, now), Heard::There);
        assert_eq!(table.find(&[2; 6], now), Some(SECOND));
        let later = now + AGEING - Duration::from_millis(1);
        assert_eq!(table.find(&[2; 6], later), Some(SECOND));
        assert_eq!(table.find(&[2; 6], now + AGEING), None);
    }

    #[test]
    fn a_host_that_speaks_stays_where_it_is() {
        let (mut table, mut now) = (MacTable::new(2), Instant::now());
        table.learn([2; 6], FIRST, now);
        for _ in 0..10 {
            now += HOLD / 2;
            assert_eq!(table.learn([2; 6], SECOND, now), Heard::Elsewhere(FIRST));
            now += HOLD / 4;
            assert_eq!(table.learn([2; 6], FIRST, now), Heard::There);
            assert_eq!(table.find(&[2; 6], now), Some(FIRST));
        }
    }

    #[test]
    fn stays_bounded() {
        let (mut table, now) = (MacTable::with_capacity(2, 2), Instant::now());
        for last in 1..=3 {
            table.learn([2, 0, 0, 0, 0, last], FIRST, now);
        }
        assert_eq!(table.entries.len(), 2);
        assert_eq!(table.find(&[2, 0, 0, 0, 0, 3], now), None);
        let later = now + AGEING;
        table.learn([2, 0, 0, 0, 0, 3], FIRST, later);
        assert_eq!(table.find(&[2, 0, 0, 0, 0, 3], later), Some(FIRST));
        assert_eq!(table.entries.len(), 1);
        // Addresses of one uplink don't use up the room of another.
        for last in 4..=9 {
            table.learn([2, 0, 0, 0, 0, last], FIRST, later);
        }
        table.learn([2, 0, 0, 0, 1, 1], SECOND, later);
        assert_eq!(table.find(&[2, 0, 0, 0, 1, 1], later), Some(SECOND));
        let shares: Vec<_> = table.uplinks.iter().map(|share| share.entries).collect();
        assert_eq!(shares, [2, 1]);
        // The address moves from its uplink to one without room: it is removed from the table.
        let later = later + HOLD;
        assert_eq!(table.learn([2, 0, 0, 0, 1, 1], FIRST, later), Heard::There);
        assert_eq!(table.find(&[2, 0, 0, 0, 1, 1], later), None);
        let shares: Vec<_> = table.uplinks.iter().map(|share| share.entries).collect();
        assert_eq!(shares, [2, 0]);
    }

    #[test]
    fn a_flood_of_addresses_does_not_sweep_for_each_frame() {
        let (mut table, start) = (MacTable::with_capacity(1, 1), Instant::now());
        table.learn([2; 6], FIRST, start);
        let half = Duration::from_millis(500);
        let mut now = start + AGEING - half;
        table.learn([4; 6], FIRST, now);
        now += half;
        table.learn([4; 6], FIRST, now);
        assert_eq!(table.find(&[4; 6], now), None, "swept half a second ago");
        now += half;
        table.learn([4; 6], FIRST, now);
        assert_eq!(table.find(&[4; 6], now), Some(FIRST));
    }
}
