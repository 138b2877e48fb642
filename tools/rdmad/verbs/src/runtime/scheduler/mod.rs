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
//! [`Crew`] and [`Sleep`] know which of the first two it is: an enum that is chosen
//! once and looked at only where workers start, sleep or wake up. The third has other types of
//! atomics and is therefore chosen when this folder is compiled: its parent has the module `sync`.

mod at_once;
mod claim;
mod clock;
mod crew;
mod current;
mod exclusive;
mod flow;
mod limits;
mod quiesce;
mod ready;
mod sleep;
#[cfg(feature = "testing")]
mod testing;
mod timer;
mod work;
mod worker;
mod worker_kind;

use std::time::Instant;

use crossbeam_utils::CachePadded;
use virtio_rdma_abi::number::PortId;

use super::sync;

pub(crate) use self::at_once::IdleGap;
pub use self::clock::Clock;
pub(crate) use self::crew::Crew;
pub(crate) use self::current::shard;
pub(crate) use self::exclusive::Exclusive;
pub(crate) use self::flow::{ByClass, Flow, FlowKey, PortFlows};
pub use self::limits::{MAX_PORTS, MAX_WORKERS};
pub(crate) use self::quiesce::Quiesce;
pub(crate) use self::ready::ReadySet;
use self::sleep::Sleep;
use self::sync::{AtomicBool, AtomicU64, Ordering};
pub(crate) use self::timer::{Alarm, QpKey, Timers, Until};
pub(crate) use self::work::{Next, TurnEnd, Work};
pub use self::worker_kind::WorkerKind;

/// How a [`Scheduler`] is made.
pub(crate) struct SchedulerConfig {
    /// Workers, from one to [`MAX_WORKERS`].
    pub workers: usize,
    /// The way in which they run.
    pub worker_kind: WorkerKind,
    /// Whether a thread that rings a doorbell may do the work itself.
    pub at_once: bool,
    /// The clock that timers go by.
    pub clock: Clock,
    /// Cost of a turn that is full.
    pub turn: usize,
}

/// State that workers share beside their work: the clock, deadlines, what is ready, and where they
/// sleep.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub clock: Clock,
    /// The time before all deadlines.
    #[cfg(feature = "testing")]
    pub start: Instant,
    pub quiesce: Quiesce,
    sleep: Sleep,
    workers: Box<[CachePadded<WorkerState>]>,
    stopped: AtomicBool,
    at_once: bool,
    turn: usize,
}

/// State of one worker.
#[derive(Debug)]
struct WorkerState {
    /// Its deadlines.
    timers: Timers,
    /// Ports that have ready flows for it.
    ports: ByClass<ReadySet<PortId>>,
    /// Flows that it took from other workers.
    steals: AtomicU64,
}

impl Scheduler {
    /// Without work. Its workers are those of a [`Crew`].
    pub(crate) fn new(config: SchedulerConfig) -> Self {
        let SchedulerConfig {
            workers,
            worker_kind,
            at_once,
            clock,
            turn,
        } = config;
        let start = clock.now();
        let state = || WorkerState {
            timers: Timers::new(start),
            // Ports count from 1.
            ports: ByClass::empty(MAX_PORTS + 1),
            steals: AtomicU64::new(0),
        };
        Self {
            #[cfg(feature = "testing")]
            start,
            clock,
            quiesce: Quiesce::new(workers),
            sleep: Sleep::new(worker_kind, workers),
            workers: (0..workers).map(|_| CachePadded::new(state())).collect(),
            stopped: AtomicBool::new(false),
            at_once,
            turn,
        }
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Flows that `worker` has taken from other workers.
    pub(crate) fn steals(&self, worker: usize) -> u64 {
        self.workers[worker].steals.load(Ordering::Relaxed)
    }

    /// Something is there for `worker`. The current thread needs no wake-up: a worker looks for
    /// more before it sleeps.
    #[inline]
    fn wake(&self, worker: usize) -> bool {
        current::current() != Some(worker) && self.sleep.wake(worker)
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
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// The next deadline of all workers.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let next = |worker: &CachePadded<WorkerState>| worker.timers.next();
        self.workers.iter().filter_map(next).min()
    }
}
