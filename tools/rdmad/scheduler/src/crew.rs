// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The set of workers, as threads or stepped, and threads that stand in for sleeping workers.
//!
//! Waking a worker takes longer than the work for most batches of frames, and the worker's CPU has
//! neither the frames nor, afterwards, the receiver of the answers in its cache. So a thread that
//! has frames for a port and has nothing else to do executes the work itself if the worker sleeps:
//! it *stands in* for the worker. To all others the worker is awake meanwhile. The worker's own
//! thread sleeps on, unless work is left, or the work needs the worker for other reasons: a
//! deadline, or queues to poll.
//!
//! The thread has work of other VMs to do afterwards, so it does little: only turns of the frames'
//! port, and only of flows that are not bulk. Nobody knows whether the host has to provide the
//! memory that they access, for example from a disk. A single access may then take long. So after a
//! slow stand-in, the workers do all work for nine times as long: the host delays the thread for a
//! tenth of its time at most.

use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use budget::TimeShare;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use virtio_rdma_abi::number::PortId;

use crate::flow::{Flow, PortFlows};
use crate::sync::{spawn, JoinHandle, Mutex};
use crate::work::Work;
use crate::worker::Worker;
use crate::Scheduler;

/// How the workers of a runtime run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerKind {
    /// Each worker is a thread.
    #[default]
    Threads,
    /// Calls of [`Crew::step`] run the workers, and so do threads that stand in.
    Stepped,
}

/// The workers of a runtime.
pub struct Crew<W> {
    kind: WorkerKind,
    /// The workers. The thread of a worker holds its lock, except while the worker sleeps.
    workers: Vec<Arc<Mutex<Worker<W>>>>,
    /// The workers' threads, if they have threads.
    threads: Vec<JoinHandle<()>>,
}

impl<W: Work> Crew<W> {
    /// An empty crew.
    pub const fn new(kind: WorkerKind) -> Self {
        Self {
            kind,
            workers: Vec::new(),
            threads: Vec::new(),
        }
    }

    /// Adds a worker that executes `work`.
    pub fn add(&mut self, work: W) -> io::Result<()> {
        let number = self.workers.len();
        let bed = work.scheduler().sleep.bed(number).clone();
        let worker = Arc::new(Mutex::new(Worker::new(number, work)));
        self.workers.push(worker.clone());
        if self.kind == WorkerKind::Threads {
            let run = move || Worker::run(&worker, &bed);
            self.threads.push(spawn(format!("worker-{number}"), run)?);
        }
        Ok(())
    }

    /// Like [`add`](Self::add), for a worker whose thread is bound to `cpu`.
    pub fn add_on(&mut self, cpu: usize, work: W) -> io::Result<()> {
        with_affinity(cpu, || self.add(work))?
    }

    /// The workers, for threads that stand in for them from `now` on.
    pub fn stand_ins(&self, now: Instant) -> StandIns<W> {
        StandIns::new(now, self.workers.iter().map(Arc::downgrade))
    }

    /// Executes the next step of a stepped worker. Returns whether the worker is awake.
    pub fn step(&self, number: usize) -> bool {
        let is_stepped = self.kind == WorkerKind::Stepped;
        let worker = self.workers.get(number).filter(|_| is_stepped);
        worker.is_some_and(|worker| worker.lock().step())
    }

    /// Whether all workers are stepped and would still sleep at their next step.
    pub fn sleeps_on(&self) -> bool {
        let sleeps_on = |worker: &Arc<Mutex<Worker<W>>>| worker.lock().sleeps_on();
        self.kind == WorkerKind::Stepped && self.workers.iter().all(sleeps_on)
    }

    /// Waits until all threads of workers have ended, after they were [told to
    /// stop](crate::Scheduler::stop).
    pub fn join(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}

/// Calls `start` while the current thread is bound to `cpu`. Threads that `start` creates inherit
/// this affinity, so their sandbox need not permit them to set it.
fn with_affinity<T>(cpu: usize, start: impl FnOnce() -> T) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    let mut only = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    let result = start();
    sched_setaffinity(None, &before)?;
    Ok(result)
}

/// Slow stand-ins take one part of this many parts of the time at most.
const PARTS: u32 = 10;

/// The workers of a crew, as threads that stand in see them.
pub struct StandIns<W> {
    workers: Box<[Weak<Mutex<Worker<W>>>]>,
    /// The time of slow stand-ins.
    share: TimeShare,
}

impl<W: Work> StandIns<W> {
    /// The given workers, in the order of their numbers. Threads may stand in from `now` on.
    pub(crate) fn new(now: Instant, workers: impl Iterator<Item = Weak<Mutex<Worker<W>>>>) -> Self {
        Self {
            workers: workers.collect(),
            share: TimeShare::new(PARTS, Duration::ZERO, now),
        }
    }

    /// Makes `flow` ready, and stands in for the flow's home if the home sleeps. The current thread
    /// must not be a worker or hold a lock.
    pub fn serve_here(&self, scheduler: &Scheduler, flows: &PortFlows, flow: Flow) {
        if let Some(home) = scheduler.add(flows, flow) {
            if !self.stand_in(scheduler, home, flows.port()) {
                scheduler.call(home);
            }
        }
    }

    /// Executes work of `worker` for `port` in the current thread, if the worker sleeps. Returns
    /// false if the worker is awake or has ended, or if the last stand-in was slow.
    fn stand_in(&self, scheduler: &Scheduler, worker: usize, port: PortId) -> bool {
        let start = scheduler.clock.now();
        if !self.share.pause(start).is_zero() {
            return false;
        }
        let Some(worker) = self.workers.get(worker).and_then(Weak::upgrade) else {
            return false;
        };
        let held = worker.try_lock();
        let done = held.is_some_and(|mut worker| worker.stand_in(port));
        let end = scheduler.clock.now();
        let time = end.saturating_duration_since(start);
        if time > scheduler.turn_time {
            self.share.charge(time, end);
        }
        done
    }
}
