// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Threads, the clock and wake-ups, behind one seam.
//!
//! Nothing here knows a device. [`Work`] tells what is served; when a worker serves it, sleeps and
//! wakes up is decided here, by the same code for each of three makers:
//!
//! | maker | a worker is | primitives (`sync`) |
//! |---|---|---|
//! | threads | a thread | std's and parking_lot's |
//! | simulator | [steps](Crew::step) that its caller chooses | the same |
//! | loom (`tests/loom`) | a thread of the model | loom's |
//!
//! [`Crew`] and the bell of [`Sleep`] know which of the first two it is: an enum that is chosen
//! once and looked at only where workers start, sleep or wake up. The third has other types of
//! atomics and is therefore chosen when this folder is compiled: its parent has the module `sync`.

mod at_once;
mod clock;
mod crew;
mod exclusive;
mod quiesce;
mod ready;
mod sleep;
#[cfg(feature = "testing")]
mod testing;
mod timer;
mod worker;
mod worker_kind;

use super::sync;

pub(crate) use self::at_once::IdleGap;
pub use self::clock::Clock;
pub(crate) use self::crew::Crew;
pub(crate) use self::exclusive::Exclusive;
pub(crate) use self::quiesce::Quiesce;
pub(crate) use self::ready::ReadySet;
use self::sleep::Sleep;
use self::sync::{AtomicBool, Ordering};
pub(crate) use self::timer::{Alarm, QpKey, Timers, Until};
pub(crate) use self::worker::{shard, Next, Work};
pub use self::worker_kind::WorkerKind;

/// How a [`Scheduler`] is made.
pub(crate) struct SchedulerConfig {
    /// Workers, at least one.
    pub workers: usize,
    /// The way in which they run.
    pub worker_kind: WorkerKind,
    /// Whether a thread that rings a doorbell may do the work itself.
    pub at_once: bool,
    /// The clock that timers go by.
    pub clock: Clock,
}

/// State that workers share beside their work: the clock, deadlines, and where they sleep.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub clock: Clock,
    pub timers: Timers,
    pub quiesce: Quiesce,
    sleep: Sleep,
    stopped: AtomicBool,
    workers: usize,
    at_once: bool,
}

impl Scheduler {
    /// Without work. Its workers are those of a [`Crew`].
    pub(crate) fn new(config: SchedulerConfig) -> Self {
        let SchedulerConfig {
            workers,
            worker_kind,
            at_once,
            clock,
        } = config;
        Self {
            timers: Timers::new(clock.now()),
            clock,
            quiesce: Quiesce::new(workers),
            sleep: Sleep::new(worker_kind),
            stopped: AtomicBool::new(false),
            workers,
            at_once,
        }
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Something is ready to be served.
    #[inline]
    pub(crate) fn wake(&self) {
        // A worker that makes something ready looks for more itself, and wakes others as far as
        // there is.
        if !worker::is_worker() {
            self.sleep.wake();
        }
    }

    /// The current thread, a worker, leaves work for another one.
    #[inline]
    pub(crate) fn wake_another(&self) {
        self.sleep.wake();
    }

    /// Has all workers end.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.sleep.wake_all();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Whether a deadline is over that no worker has looked at.
    pub(crate) fn is_due(&self) -> bool {
        let now = self.clock.now();
        self.timers.next().is_some_and(|deadline| deadline <= now)
    }
}
