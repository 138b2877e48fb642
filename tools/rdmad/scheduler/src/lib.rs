// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A fair scheduler: workers that give turns to flows.
//!
//! This crate decides when a worker gives turns, sleeps and wakes up. It does not know what is done
//! in a turn: the trait [`Work`] is its interface to the objects that are served. The same code
//! serves three kinds of worker:
//!
//! | kind | a worker is | primitives (`sync`) |
//! |---|---|---|
//! | threads | a thread | std's and parking_lot's |
//! | stepped | a state machine, whose [steps](Crew::step) a simulation executes | the same |
//! | loom (`tests/loom`) | a thread of the model | loom's |
//!
//! [`Crew`] distinguishes threads from stepped workers when workers start. loom has its own types
//! of atomics, so `--cfg loom` chooses them at compile time.
//!
//! | module | what it holds |
//! |---|---|
//! | `flow` | flows, their home and class |
//! | `ready` | sets of what is ready |
//! | `claim` | which flow is next, and which worker serves it |
//! | `work` | the trait `Work`, a turn's start and end |
//! | `worker`, `current` | a worker's loop, and which worker a thread is |
//! | `crew` | the workers as threads, stepped, or stood in for |
//! | `activity`, `observe` | the activity of each worker, and the flows that wait for it |
//! | `at_once` | turns that the thread gives that received a doorbell |
//! | `sleep`, `timer`, `alarm`, `clock` | sleep and wake-ups, deadlines, time |
//! | `exclusive`, `quiesce` | turns that exclude each other, and waiting for their end |
//! | `shared`, `sync` | locks and atomics |

#![forbid(unsafe_code)]

mod activity;
#[cfg(feature = "testing")]
mod advance;
mod alarm;
mod at_once;
mod claim;
mod clock;
mod crew;
mod current;
mod exclusive;
mod flow;
mod observe;
mod quiesce;
mod ready;
pub mod shared;
mod sleep;
#[cfg(not(loom))]
mod sync;
#[cfg(loom)]
pub mod sync;
mod timer;
mod work;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use sandbox::Gate;
use virtio_rdma_abi::number::PortId;

use self::activity::Activity;
pub use self::activity::Doing;
pub use self::alarm::{Alarm, Until};
pub use self::at_once::IdleGap;
use self::clock::nanos_since;
pub use self::clock::Clock;
pub use self::crew::{Crew, StandIns, WorkerKind};
use self::current::current;
pub use self::current::shard;
pub use self::exclusive::{Ended, Exclusive};
use self::flow::ByClass;
pub use self::flow::{Flow, FlowKey, PortFlows, QpKey, Waiting, MAX_PORTS};
pub use self::quiesce::{Quiesce, Turn};
pub use self::ready::ReadySet;
use self::sleep::Sleep;
pub use self::sleep::MAX_WORKERS;
use self::sync::{AtomicBool, AtomicU64, Ordering};
use self::timer::Timers;
pub use self::work::{Next, TurnEnd, TurnStart, Work};

/// Configuration of a [`Scheduler`].
pub struct SchedulerConfig {
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
pub struct Scheduler {
    pub clock: Clock,
    /// Time at which the scheduler was created, before all deadlines.
    pub start: Instant,
    pub quiesce: Quiesce,
    sleep: Sleep,
    workers: Box<[CachePadded<WorkerState>]>,
    stopped: AtomicBool,
    /// Holds workers between two rounds.
    gate: Arc<Gate>,
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
    /// Notes of the worker's activity. Threads that make flows ready read the other words.
    activity: CachePadded<Activity>,
}

/// How often a worker did work of others, and others did its work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handovers {
    /// Number of flows that the worker took from other workers.
    pub steals: u64,
    /// Number of times that another thread stood in for the worker.
    pub stand_ins: u64,
}

impl Scheduler {
    /// A scheduler without ready flows. A [`Crew`] runs its workers.
    pub fn new(config: SchedulerConfig) -> Self {
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
            activity: CachePadded::default(),
        };
        Self {
            start,
            clock,
            quiesce: Quiesce::new(workers),
            sleep: Sleep::new(workers),
            workers: (0..workers).map(|_| CachePadded::new(state())).collect(),
            stopped: AtomicBool::new(false),
            gate: Arc::default(),
            at_once,
            turn,
            turn_time,
        }
    }

    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// How often work was handed over from and to `worker`.
    pub fn handovers(&self, worker: usize) -> Handovers {
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
        current() != Some(worker) && self.sleep.wake(worker)
    }

    /// Nanoseconds from the start of the scheduler to `at`.
    #[inline]
    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        nanos_since(self.start, at)
    }

    /// The time for a flow that becomes ready now. A worker takes the start of its round, which
    /// costs it no look at the clock.
    #[inline]
    pub(crate) fn ready_at(&self) -> u64 {
        let worker = current().and_then(|worker| self.workers.get(worker));
        match worker {
            Some(worker) => worker.activity.round(),
            None => self.nanos(self.clock.now()),
        }
    }

    /// Ends all workers.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.gate.open();
        self.sleep.wake_all();
    }

    /// Lets no worker begin a round, and waits until none is within one. Returns false if one still
    /// is at `deadline`. Turns of other threads are the caller's business.
    pub fn hold(&self, deadline: Instant) -> bool {
        self.gate.close();
        self.sleep.wake_all();
        self.gate.holds_all(deadline)
    }

    /// Lets the workers go on after [`hold`](Self::hold).
    pub fn release(&self) {
        self.gate.open();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Whether a deadline has passed that no worker has handled.
    pub fn is_due(&self) -> bool {
        let now = self.clock.now();
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// The earliest deadline of all workers.
    pub fn next_deadline(&self) -> Option<Instant> {
        let next = |worker: &CachePadded<WorkerState>| worker.timers.next();
        self.workers.iter().filter_map(next).min()
    }
}
