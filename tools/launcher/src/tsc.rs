// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The frequency of the processor's time stamp counter.
#![allow(unsafe_code)]

use std::arch::x86_64::_rdtsc;
use std::thread;
use std::time::{Duration, Instant};

/// Minimum duration of a measurement. The error of one reading is about a microsecond.
const SPAN: Duration = Duration::from_millis(50);
/// Number of readings, of which the fastest one is used.
const TRIES: usize = 20;

/// A measurement of the counter's frequency. Its caller can do other work before the result.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    began: Instant,
    first: u64,
}

impl Measurement {
    /// Starts a measurement.
    pub fn start() -> Self {
        let (began, first) = reading();
        Self { began, first }
    }

    /// The counter's frequency in kHz. Sleeps for the rest of [`SPAN`].
    pub fn khz(&self) -> u64 {
        thread::sleep(SPAN.saturating_sub(self.began.elapsed()));
        let (ended, last) = reading();
        let nanoseconds = ended.duration_since(self.began).as_nanos().max(1);
        let khz = u128::from(last.wrapping_sub(self.first)) * 1_000_000 / nanoseconds;
        u64::try_from(khz).unwrap_or(u64::MAX)
    }
}

/// A time and the counter at that time.
fn reading() -> (Instant, u64) {
    let read = || {
        let before = Instant::now();
        // SAFETY: the instruction reads a register that every x86-64 processor has and touches no
        // memory.
        let count = unsafe { _rdtsc() };
        (before.elapsed(), before, count)
    };
    let (_, at, count) =
        (1..TRIES).map(|_| read()).fold(
            read(),
            |best, next| {
                if next.0 < best.0 {
                    next
                } else {
                    best
                }
            },
        );
    (at, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_agree() {
        let (one, other) = (Measurement::start().khz(), Measurement::start().khz());
        // Two measurements agree within 2 %, even on a busy machine. No processor's counter is
        // slower than 100 MHz.
        assert!(one > 100_000, "{one} kHz");
        assert!(one.abs_diff(other) < one / 50, "{one} kHz and {other} kHz");
    }
}
