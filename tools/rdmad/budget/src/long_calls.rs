// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! System calls that a client can make long.
//!
//! A call that wakes the other end of a socket or eventfd visits each waiter of that end. A client
//! may add hundreds of thousands of waiters, and the call then takes milliseconds without ever
//! sleeping. In a thread that serves many clients, such calls delay all of them.
//!
//! The time of each call is measured with a cheap clock. The time includes pauses of the thread, so
//! only a *suspect* is charged: after a long call, the processor time of the client's calls is
//! measured too, for twice as long as it takes until the long call is within the client's share. So
//! a client uses at most one and a half times its share, even if it has one long call at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::time::ClockId;
use parking_lot::Mutex;

use crate::time::nanoseconds;
use crate::TimeShare;

/// Time of a call that costs nothing: calls of honest clients take less.
const FREE: Duration = Duration::from_micros(100);
/// Additional time without cost for each byte that the call transfers.
const FREE_PER_BYTE: Duration = Duration::from_nanos(5);
/// A client may use one part of this many parts of a thread's time for the rest of its calls.
const PARTS: u32 = 200;
/// A client is suspect for this many times the length of its last long call.
const SUSPICION: u32 = 2 * PARTS;
/// Use beyond the share at a time. A rare interrupt of the host in a call does not matter.
const BURST: Duration = Duration::from_millis(5);

/// The calls of one client. All threads may use it.
#[derive(Debug)]
pub struct LongCalls {
    clock: CallClock,
    share: TimeShare,
    start: Instant,
    /// Time since `start`, in nanoseconds, until which the client is a suspect.
    suspect: AtomicU64,
    calls: AtomicU64,
    time: AtomicU64,
    longest: AtomicU64,
}

/// The long calls of a client so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongCallStats {
    /// Number of calls that were charged.
    pub calls: u64,
    /// Their processor time.
    pub time: Duration,
    /// Processor time of the longest of them.
    pub longest: Duration,
}

/// Time that a call takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallTime {
    /// Time that passes.
    pub wall: Duration,
    /// Processor time of the calling thread.
    pub cpu: Duration,
}

/// The clocks that measure calls: those of the system, or a manual one for tests. In a simulation,
/// in which no time passes during a call, no call is long.
#[derive(Clone, Debug)]
pub struct CallClock(Option<Arc<Mutex<Manual>>>);

#[derive(Debug)]
struct Manual {
    now: Instant,
    cpu: Duration,
    call: CallTime,
}

impl CallClock {
    pub const fn system() -> Self {
        Self(None)
    }

    /// A clock that shows `now` until it is set. Clones are the same clock.
    pub fn manual(now: Instant) -> Self {
        Self(Some(Arc::new(Mutex::new(Manual {
            now,
            cpu: Duration::ZERO,
            call: CallTime::default(),
        }))))
    }

    /// Sets a manual clock to `now`.
    pub fn set(&self, now: Instant) {
        self.change(|manual| manual.now = now);
    }

    /// Lets each later call take this time by a manual clock.
    pub fn set_call_time(&self, call: CallTime) {
        self.change(|manual| manual.call = call);
    }

    fn change(&self, change: impl FnOnce(&mut Manual)) {
        if let Some(manual) = &self.0 {
            change(&mut manual.lock());
        }
    }

    fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(manual) => manual.lock().now,
        }
    }

    /// Processor time of the calling thread.
    fn cpu(&self) -> Duration {
        match &self.0 {
            // `rustix` would read /proc/self/auxv first, which the sandbox refuses.
            None => ClockId::CLOCK_THREAD_CPUTIME_ID
                .now()
                .map(Duration::from)
                .unwrap_or_default(),
            Some(manual) => manual.lock().cpu,
        }
    }

    fn pass(&self) {
        self.change(|manual| {
            manual.now += manual.call.wall;
            manual.cpu += manual.call.cpu;
        });
    }
}

impl LongCalls {
    /// No long calls yet.
    pub fn new(clock: CallClock) -> Self {
        let start = clock.now();
        Self {
            clock,
            share: TimeShare::new(PARTS, BURST, start),
            start,
            suspect: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            time: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    /// The clock that measures the calls.
    pub const fn clock(&self) -> &CallClock {
        &self.clock
    }

    /// Makes a call, and measures it.
    pub fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        self.measure(self.clock.now(), call, |_| 0)
    }

    /// Makes a call that returns the number of bytes that it has transferred, and measures it.
    pub fn transfer<E>(&self, call: impl FnOnce() -> Result<usize, E>) -> Result<usize, E> {
        let bytes = |result: &Result<usize, E>| *result.as_ref().unwrap_or(&0);
        self.measure(self.clock.now(), call, bytes)
    }

    /// Makes a call unless the client has used up its share.
    pub fn run_within_share<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        let now = self.clock.now();
        let may = self.share.pause(now).is_zero();
        may.then(|| self.measure(now, call, |_| 0))
    }

    /// How long after `now` no call should be made for the client in a thread of all.
    pub fn pause(&self, now: Instant) -> Duration {
        self.share.pause(now)
    }

    /// The long calls so far.
    pub fn stats(&self) -> LongCallStats {
        LongCallStats {
            calls: self.calls.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.time.load(Ordering::Relaxed)),
            longest: Duration::from_nanos(self.longest.load(Ordering::Relaxed)),
        }
    }

    fn measure<T>(
        &self,
        start: Instant,
        call: impl FnOnce() -> T,
        bytes: impl FnOnce(&T) -> usize,
    ) -> T {
        let cpu = self.is_suspect(start).then(|| self.clock.cpu());
        let result = call();
        self.clock.pass();
        let end = self.clock.now();
        let took = end.saturating_duration_since(start);
        if took > FREE {
            let free = u32::try_from(bytes(&result)).unwrap_or(u32::MAX);
            self.judge(end, took, cpu, FREE + FREE_PER_BYTE * free);
        }
        result
    }

    fn is_suspect(&self, now: Instant) -> bool {
        let until = self.suspect.load(Ordering::Relaxed);
        until > 0 && self.since_start(now) < until
    }

    /// Charges a call that took longer than most and ended at `end`. `cpu` is the thread's time at
    /// its start, if it was measured.
    fn judge(&self, end: Instant, took: Duration, cpu: Option<Duration>, free: Duration) {
        if took <= free {
            return;
        }
        let until = nanoseconds((took - free).saturating_mul(SUSPICION));
        let until = self.since_start(end).saturating_add(until);
        self.suspect.fetch_max(until, Ordering::Relaxed);
        let Some(cpu) = cpu else { return };
        let used = self.clock.cpu().saturating_sub(cpu);
        let excess = used.saturating_sub(free);
        if excess.is_zero() {
            return;
        }
        self.share.charge(excess, end);
        let used = nanoseconds(used);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.time.fetch_add(used, Ordering::Relaxed);
        self.longest.fetch_max(used, Ordering::Relaxed);
    }

    fn since_start(&self, now: Instant) -> u64 {
        nanoseconds(now.saturating_duration_since(self.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LONG: CallTime = CallTime {
        wall: Duration::from_millis(10),
        cpu: Duration::from_millis(10),
    };

    fn long_calls(call: CallTime) -> (LongCalls, Instant) {
        let now = Instant::now();
        let clock = CallClock::manual(now);
        clock.set_call_time(call);
        (LongCalls::new(clock), now)
    }

    #[test]
    fn the_second_long_call_is_charged() {
        let (calls, start) = long_calls(LONG);
        calls.run(|| {});
        assert_eq!(calls.stats(), LongCallStats::default());
        assert_eq!(calls.pause(start + 10 * MS), Duration::ZERO);
        calls.run(|| {});
        let stats = calls.stats();
        assert_eq!(
            (stats.calls, stats.time, stats.longest),
            (1, 10 * MS, 10 * MS)
        );
        // The call may take 1/200 of the time, apart from a burst and its free part.
        let pause = calls.pause(start + 20 * MS);
        assert!(pause > 900 * MS && pause < 1000 * MS, "{pause:?}");
        assert_eq!(calls.run_within_share(|| {}), None);
        calls.clock().set(start + 20 * MS + pause);
        assert_eq!(calls.run_within_share(|| {}), Some(()));
        assert_eq!(calls.stats().calls, 2);
    }

    /// The thread lost the processor during calls that cost nothing.
    #[test]
    fn calls_during_which_the_thread_waited_are_free() {
        let (calls, _) = long_calls(CallTime {
            cpu: Duration::from_micros(90),
            ..LONG
        });
        for _ in 0..1000 {
            assert_eq!(calls.run_within_share(|| {}), Some(()));
        }
        assert_eq!(calls.stats(), LongCallStats::default());
    }

    #[test]
    fn a_client_is_a_suspect_for_a_multiple_of_its_last_long_call() {
        let (calls, start) = long_calls(LONG);
        for (at, charged) in [(0, 0), (1000, 1), (4900, 2), (10_000, 2), (11_000, 3)] {
            calls.clock().set(start + at * MS);
            calls.run(|| {});
            assert_eq!(calls.stats().calls, charged, "{at}");
        }
    }

    #[test]
    fn calls_that_transfer_much_may_take_longer() {
        let (calls, _) = long_calls(CallTime { wall: MS, cpu: MS });
        for _ in 0..10 {
            assert_eq!(calls.transfer(|| Ok::<_, ()>(200 << 10)), Ok(200 << 10));
        }
        assert_eq!(calls.stats().calls, 0);
        for _ in 0..2 {
            assert_eq!(calls.transfer(|| Ok::<_, ()>(1500)), Ok(1500));
            assert_eq!(calls.transfer(|| Err::<usize, _>(())), Err(()));
        }
        assert_eq!(calls.stats().calls, 3);
    }

    #[test]
    fn the_clocks_of_the_system_run() {
        let clock = CallClock::system();
        let (now, cpu) = (clock.now(), clock.cpu());
        while clock.cpu() == cpu {}
        assert!(clock.now() > now);
    }
}
