// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ends the engine if a thread that serves all ports runs without end, so that the supervisor
//! starts another one.

use std::time::Duration;

use sandbox::{LastLook, Pulse};

/// Interval of looks at the threads. A service manager must be told of life more often than it
/// gives up, which is seldom less than some seconds.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// The time for which a thread may run without a new round. QEMU gives up a request after 5 s.
const LIMIT: Duration = Duration::from_secs(2);

/// Looks at threads from time to time.
#[derive(Debug)]
pub struct Watchdog {
    limit: Duration,
    /// The last look at each thread.
    looks: Vec<LastLook>,
}

/// A thread that has run for too long.
#[derive(Clone, Copy, Debug)]
pub struct Stuck {
    /// Its place among the threads.
    pub thread: usize,
    /// How long it has run.
    pub busy: Duration,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self {
            limit: LIMIT,
            looks: Vec::new(),
        }
    }
}

impl Watchdog {
    /// Looks at all threads, which are always the same. Returns one that is stuck.
    pub fn look<'a>(&mut self, pulses: impl Iterator<Item = &'a Pulse>) -> Option<Stuck> {
        for (thread, pulse) in pulses.enumerate() {
            if thread == self.looks.len() {
                self.looks.push(LastLook::default());
            }
            let busy = pulse.busy(&mut self.looks[thread]);
            if busy >= self.limit {
                return Some(Stuck { thread, busy });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_that_begins_no_round_is_found() {
        let pulses = [Pulse::default(), Pulse::default()];
        let limit = Duration::from_millis(200);
        let mut watchdog = Watchdog {
            limit,
            looks: Vec::new(),
        };
        let (is_silent, is_found) = (AtomicBool::new(false), AtomicBool::new(false));
        let found = thread::scope(|scope| {
            scope.spawn(|| {
                pulses[1].begin_thread();
                while !is_found.load(Ordering::Relaxed) {
                    if !is_silent.load(Ordering::Relaxed) {
                        pulses[1].beat();
                    }
                }
            });
            let mut look = || {
                thread::sleep(limit / 10);
                watchdog.look(pulses.iter())
            };
            let healthy = (0..20).find_map(|_| look());
            is_silent.store(true, Ordering::Relaxed);
            let stuck = (0..1000).find_map(|_| look());
            is_found.store(true, Ordering::Relaxed);
            assert!(healthy.is_none(), "{healthy:?}");
            stuck
        });
        let Stuck { thread, busy } = found.expect("the thread is found");
        assert!(thread == 1 && busy >= limit, "{thread}, {busy:?}");
    }
}
