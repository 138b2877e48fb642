// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory that this process has allocated for a VM outside of the VM's regions.
//!
//! A VM's regions are limited by their size. But a monitor could have each region filled, unmap it
//! and map another one.
//!
//! - While a region maps a part of the file, all pages that this process has allocated in unmapped
//!   parts count, up to the present size of the file.
//! - This process can't see whether a file that it has closed still exists. So pages in such files
//!   count for a time: a VM that is started again and again is served, and a monitor that keeps the
//!   files is slowed down.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::mapping::{FileId, Mapping};

/// Time after which as many bytes as the VM's limit count no more.
const TIME_OF_LIMIT: Duration = Duration::from_secs(3600);

/// The bytes that one VM has left behind.
#[derive(Debug)]
pub(crate) struct LeftBehind {
    /// Bytes in unmapped parts of each file that a region maps.
    parts: HashMap<FileId, u64>,
    /// Bytes in files that no region maps.
    closed: u64,
    /// Time for which `closed` was computed.
    at: Instant,
}

impl Default for LeftBehind {
    fn default() -> Self {
        Self {
            parts: HashMap::new(),
            closed: 0,
            at: Instant::now(),
        }
    }
}

impl LeftBehind {
    /// Bytes that count at `now`, for a VM with this limit and these regions.
    pub(crate) fn bytes(&mut self, now: Instant, limit: u64, regions: &[Arc<Mapping>]) -> u64 {
        self.parts.retain(|file, bytes| {
            // The guest may have given pages back, which would count again when it touches them.
            let region = regions.iter().find(|region| region.file_id() == *file);
            *bytes = region.map_or(0, |region| region.allocated().min(*bytes));
            *bytes > 0
        });
        let closed = self.closed(now, limit);
        let parts = self.parts.values().copied();
        parts.fold(closed, u64::saturating_add)
    }

    /// Counts the pages that this process has allocated in the regions `removed`, which are
    /// unmapped at `now`. `kept` are the regions that the VM has now.
    pub(crate) fn unmapped(
        &mut self,
        now: Instant,
        limit: u64,
        removed: &[Arc<Mapping>],
        kept: &[Arc<Mapping>],
    ) {
        for region in removed.iter().filter(|region| region.filled() > 0) {
            match kept.iter().find(|other| other.is_again(region)) {
                Some(again) => again.add_filled(region.filled()),
                None => {
                    let part = self.parts.entry(region.file_id()).or_default();
                    *part = part.saturating_add(region.filled());
                }
            }
        }
        for region in removed {
            let file = region.file_id();
            if kept.iter().any(|other| other.file_id() == file) {
                continue;
            }
            if let Some(bytes) = self.parts.remove(&file) {
                self.close(now, limit, bytes.min(region.allocated()));
            }
        }
    }

    /// Bytes in files that no region maps.
    fn closed(&mut self, now: Instant, limit: u64) -> u64 {
        let passed = now.saturating_duration_since(self.at);
        let forgotten = u128::from(limit) * passed.as_nanos() / TIME_OF_LIMIT.as_nanos();
        let forgotten = u64::try_from(forgotten).unwrap_or(u64::MAX);
        // A short time may not change the whole number of bytes, and must not be lost.
        if forgotten > 0 {
            self.closed = self.closed.saturating_sub(forgotten);
            self.at = now;
        }
        self.closed
    }

    /// Adds `bytes` of a file that no region maps since `now`.
    fn close(&mut self, now: Instant, limit: u64, bytes: u64) {
        if self.closed(now, limit) == 0 {
            self.at = now;
        }
        self.closed = self.closed.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 3600 << 20;

    #[test]
    fn what_was_left_behind_counts_for_a_time() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut left = LeftBehind::default();
        assert_eq!(left.bytes(after(10), LIMIT, &[]), 0);
        left.close(after(10), LIMIT, 100 << 20);
        left.close(after(11), LIMIT, 1 << 20);
        assert_eq!(left.bytes(after(11), LIMIT, &[]), 100 << 20);
        assert_eq!(left.bytes(after(61), LIMIT, &[]), 50 << 20);
        assert_eq!(left.bytes(after(1000), LIMIT, &[]), 0);
        left.close(after(2000), LIMIT, u64::MAX);
        left.close(after(2000), LIMIT, u64::MAX);
        assert_eq!(left.bytes(after(2000), LIMIT, &[]), u64::MAX);
        assert_eq!(left.bytes(after(2000), u64::MAX, &[]), u64::MAX);
        // Without a limit, all is forgotten after the time of the limit.
        assert_eq!(left.bytes(after(2000 + 3600), u64::MAX, &[]), 0);
    }
}
