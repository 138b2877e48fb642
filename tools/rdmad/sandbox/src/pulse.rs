// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Signs of life of threads that serve all ports.
//!
//! Such a thread works in rounds, which are short. If a defect lets it run without end, all ports
//! stand still. A look from time to time finds for how long the thread has *run* without a new
//! round. A thread that sleeps, is stopped, or waits for a processor or a disk does not run.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::gettid;

/// The rounds of a thread.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Number of the thread, 0 before its first round.
    thread: AtomicI32,
    rounds: AtomicU64,
}

/// The state of a [`Pulse`] at the last look.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastLook {
    rounds: u64,
    /// Processor time of the thread when this round was first seen.
    time: Duration,
}

impl Pulse {
    /// Tells which thread does the rounds: the current one.
    pub fn begin_thread(&self) {
        self.thread.store(gettid().as_raw(), Ordering::Relaxed);
    }

    /// Notes the begin of a round.
    #[inline]
    pub fn beat(&self) {
        // One thread at a time writes, so this loses no round.
        let rounds = self.rounds.load(Ordering::Relaxed);
        self.rounds.store(rounds.wrapping_add(1), Ordering::Relaxed);
    }

    /// The processor time that the thread has used for its present round since it was first seen in
    /// it. Zero if the thread has not begun or has ended.
    pub fn busy(&self, last: &mut LastLook) -> Duration {
        let (rounds, time) = (self.rounds.load(Ordering::Relaxed), self.processor_time());
        if rounds != last.rounds || time < last.time {
            *last = LastLook { rounds, time };
        }
        time - last.time
    }

    fn processor_time(&self) -> Duration {
        let thread = self.thread.load(Ordering::Relaxed);
        if thread == 0 {
            return Duration::ZERO;
        }
        // The clock of the time for which a thread was on a processor: clock_getcpuclockid(3) makes
        // the same number for a process, without the bit for a thread (4).
        let clock = ClockId::from_raw((!thread << 3) | 4 | 2);
        clock.now().map(Duration::from).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{mpsc, Arc};
    use std::thread;

    use super::*;

    #[test]
    fn time_counts_that_a_thread_runs_without_a_round() {
        let pulse = Arc::new(Pulse::default());
        let mut last = LastLook::default();
        assert_eq!(pulse.busy(&mut last), Duration::ZERO);
        let is_over = Arc::new(AtomicBool::new(false));
        let (begin, begun) = mpsc::channel();
        let (wake, woken) = mpsc::channel::<()>();
        let thread = {
            let (pulse, is_over) = (pulse.clone(), is_over.clone());
            thread::spawn(move || {
                pulse.begin_thread();
                pulse.beat();
                begin.send(()).unwrap();
                // Sleeps, and then runs without a round.
                woken.recv().unwrap();
                while !is_over.load(Ordering::Relaxed) {}
                pulse.beat();
                begin.send(()).unwrap();
                woken.recv().unwrap();
            })
        };
        begun.recv().unwrap();
        pulse.busy(&mut last);
        let asleep = pulse.busy(&mut last);
        thread::sleep(Duration::from_millis(100));
        assert!(pulse.busy(&mut last) < asleep + Duration::from_millis(50));
        wake.send(()).unwrap();
        while pulse.busy(&mut last) < Duration::from_millis(200) {
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        begun.recv().unwrap();
        assert_eq!(pulse.busy(&mut last), Duration::ZERO, "another round");
        wake.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(pulse.busy(&mut last), Duration::ZERO, "it has ended");
    }
}
