// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Scheduling of workers: threads, clock, sleep and wake-ups.
//!
//! This folder decides when a worker gives turns, sleeps and wakes up. It does not depend on
//! HCAs: the trait [`Work`] is its interface to them. The same code serves three kinds of
//! worker:
//!
//! | kind | a worker is | primitives (`sync`) |
//! |---|---|---|
//! | threads | a thread | std's and parking_lot's |
//! | stepped | a state machine, whose [steps](Crew::step) a simulation executes | the same |
//! | loom (`tests/loom`) | a thread of the model | loom's |
//!
//! [`Crew`] distinguishes threads from stepped workers when workers start. loom has its own types
//! of atomics, so it is chosen at compile time: the parent module provides the module `sync`.

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
mod stand_in;
#[cfg(feature = "testing")]
mod testing;
mod timer;
mod work;
mod worker;
mod worker_kind;

use std::time::{Duration, Instant};

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
pub(crate) use self::stand_in::StandIns;
use self::sync::{AtomicBool, AtomicU64, Ordering};
pub(crate) use self::timer::{Alarm, Timers, Until};
pub(crate) use self::work::{Next, TurnEnd, TurnStart, Work};
pub use self::worker_kind::WorkerKind;

/// Configuration of a [`Scheduler`].
pub(crate) struct SchedulerConfig {
    /// Number of workers, from one to [`MAX_WORKERS`].
    pub workers: usize,
    /// Whether a thread that receives a doorbell may give the QP a turn itself.
    pub at_once: bool,
    /// The clock for timers.
    pub clock: Clock,
    /// The budget of a turn: a turn with this cost is full.
    pub turn: usize,
    /// Time that a turn may take.
    pub turn_time: Duration,
}

/// Scheduling state that the workers share: clock, deadlines, ready flows and sleep.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub clock: Clock,
    /// Time at which the scheduler was created, before all deadlines.
    #[cfg(feature = "testing")]
    pub start: Instant,
    pub quiesce: Quiesce,
    sleep: Sleep,
    workers: Box<[CachePadded<WorkerState>]>,
    stopped: AtomicBool,
    at_once: bool,
    turn: usize,
    turn_time: Duration,
}

/// Scheduling state of one worker.
#[derive(Debug)]
struct WorkerState {
    /// Deadlines of the QPs whose home this worker was when their deadline was set.
    timers: Timers,
    /// Ports with flows that are ready for this worker.
    ports: ByClass<ReadySet<PortId>>,
    /// Number of flows that this worker took from other workers.
    steals: AtomicU64,
    /// Number of times that another thread stood in for this worker.
    stand_ins: AtomicU64,
}

/// How often a worker did work of others, and others did its work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Handovers {
    /// Number of flows that the worker took from other workers.
    pub steals: u64,
    /// Number of times that another thread stood in for the worker.
    pub stand_ins: u64,
}

impl Scheduler {
    /// A scheduler without ready flows. A [`Crew`] runs its workers.
    pub(crate) fn new(config: SchedulerConfig) -> Self {
        let SchedulerConfig {
            workers,
            at_once,
            clock,
            turn,
            turn_time,
        } = config;
        let start = clock.now();
        let state = || WorkerState {
            timers: Timers::new(start),
            // Ports are numbered from 1.
            ports: ByClass::empty(MAX_PORTS + 1),
            steals: AtomicU64::new(0),
            stand_ins: AtomicU64::new(0),
        };
        Self {
            #[cfg(feature = "testing")]
            start,
            clock,
            quiesce: Quiesce::new(workers),
            sleep: Sleep::new(workers),
            workers: (0..workers).map(|_| CachePadded::new(state())).collect(),
            stopped: AtomicBool::new(false),
            at_once,
            turn,
            turn_time,
        }
    }

    /// Number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// How often work was handed over from and to `worker`.
    pub(crate) fn handovers(&self, worker: usize) -> Handovers {
        let worker = &self.workers[worker];
        Handovers {
            steals: worker.steals.load(Ordering::Relaxed),
            stand_ins: worker.stand_ins.load(Ordering::Relaxed),
        }
    }

    /// Wakes `worker`, which has work, if it sleeps. Returns whether it was woken. The current
    /// worker is not woken, since it looks for work before it sleeps.
    #[inline]
    fn wake(&self, worker: usize) -> bool {
        current::current() != Some(worker) && self.sleep.wake(worker)
    }

    /// Ends all workers.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.sleep.wake_all();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Whether a deadline has passed that no worker has handled.
    pub(crate) fn is_due(&self) -> bool {
        let now = self.clock.now();
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// The earliest deadline of all workers.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let next = |worker: &CachePadded<WorkerState>| worker.timers.next();
        self.workers.iter().filter_map(next).min()
    }
}
