// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Log messages that a guest or its client can cause, limited so that they can't fill the log.

use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Maximum number of messages in one [`PERIOD`].
const BURST: u32 = 10;
const PERIOD: Duration = Duration::from_secs(5);

/// Limits the rate of log messages about one guest.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// Name of the guest's port.
    name: String,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    start: Instant,
    passed: u32,
    suppressed: u64,
}

impl Limiter {
    /// A limiter for messages about the port `name`.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            window: Mutex::new(Window {
                start: Instant::now(),
                passed: 0,
                suppressed: 0,
            }),
        }
    }

    /// The port's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Logs a warning, unless too many messages were logged lately.
    pub(crate) fn warn(&self, message: fmt::Arguments<'_>) {
        match self.admit(Instant::now()) {
            None => {}
            Some(0) => tracing::warn!(port = self.name, "{message}"),
            Some(suppressed) => tracing::warn!(port = self.name, suppressed, "{message}"),
        }
    }

    /// Logs an informational message, unless too many messages were logged lately.
    pub(crate) fn info(&self, message: fmt::Arguments<'_>) {
        match self.admit(Instant::now()) {
            None => {}
            Some(0) => tracing::info!(port = self.name, "{message}"),
            Some(suppressed) => tracing::info!(port = self.name, suppressed, "{message}"),
        }
    }

    /// `None` if the message must be suppressed. Otherwise the number of messages that were
    /// suppressed since the last logged message.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock();
        if now.duration_since(window.start) >= PERIOD {
            window.start = now;
            window.passed = 0;
        }
        if window.passed == BURST {
            window.suppressed += 1;
            return None;
        }
        window.passed += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_is_counted() {
        let limiter = Limiter::new("test");
        let start = Instant::now();
        let passed = (0..100).filter(|_| limiter.admit(start) == Some(0)).count();
        assert_eq!(passed, BURST as usize);
        assert_eq!(limiter.admit(start + 2 * PERIOD), Some(90));
        assert_eq!(limiter.admit(start + 2 * PERIOD), Some(0));
    }
}
