// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory that this process has allocated in files that it does not map any more.
//!
//! A VM's present files are limited by their size. But a monitor could have each file filled, unmap
//! it, keep it open and pass the next one. This process can't see whether a file that it has closed
//! still exists. So the pages that it has allocated there count for a time: a VM that is started
//! again and again is served, and a monitor that keeps the files is slowed down.

use std::time::{Duration, Instant};

/// Time after which as many bytes as the VM's limit count no more.
const TIME_OF_LIMIT: Duration = Duration::from_secs(3600);

/// The bytes that one VM has left behind.
#[derive(Debug)]
pub(crate) struct LeftBehind {
    bytes: u64,
    /// Time for which `bytes` was computed.
    at: Instant,
}

impl Default for LeftBehind {
    fn default() -> Self {
        Self {
            bytes: 0,
            at: Instant::now(),
        }
    }
}

impl LeftBehind {
    /// Bytes that count at `now`, for a VM with this limit.
    pub(crate) fn bytes(&mut self, now: Instant, limit: u64) -> u64 {
        let passed = now.saturating_duration_since(self.at);
        let forgotten = u128::from(limit) * passed.as_nanos() / TIME_OF_LIMIT.as_nanos();
        let forgotten = u64::try_from(forgotten).unwrap_or(u64::MAX);
        // A short time may not change the whole number of bytes, and must not be lost.
        if forgotten > 0 {
            self.bytes = self.bytes.saturating_sub(forgotten);
            self.at = now;
        }
        self.bytes
    }

    /// Adds `bytes` at `now`.
    pub(crate) fn add(&mut self, now: Instant, limit: u64, bytes: u64) {
        if self.bytes(now, limit) == 0 {
            self.at = now;
        }
        self.bytes = self.bytes.saturating_add(bytes);
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
        assert_eq!(left.bytes(after(10), LIMIT), 0);
        left.add(after(10), LIMIT, 100 << 20);
        left.add(after(11), LIMIT, 1 << 20);
        assert_eq!(left.bytes(after(11), LIMIT), 100 << 20);
        assert_eq!(left.bytes(after(61), LIMIT), 50 << 20);
        assert_eq!(left.bytes(after(1000), LIMIT), 0);
        left.add(after(2000), LIMIT, u64::MAX);
        left.add(after(2000), LIMIT, u64::MAX);
        assert_eq!(left.bytes(after(2000), LIMIT), u64::MAX);
        assert_eq!(left.bytes(after(2000), u64::MAX), u64::MAX);
        // Without a limit, all is forgotten after the time of the limit.
        assert_eq!(left.bytes(after(2000 + 3600), u64::MAX), 0);
    }
}
