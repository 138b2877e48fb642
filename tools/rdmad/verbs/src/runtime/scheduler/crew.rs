// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The set of workers, as threads or stepped.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::stand_in::StandIns;
use super::sync::{spawn, JoinHandle, Mutex};
use super::work::Work;
use super::worker::Worker;
use super::worker_kind::WorkerKind;

/// The workers of a runtime.
pub(crate) struct Crew<W> {
    kind: WorkerKind,
    /// The workers. The thread of a worker holds its lock, except while the worker sleeps.
    workers: Vec<Arc<Mutex<Worker<W>>>>,
    /// The workers' threads, if they have threads.
    threads: Vec<JoinHandle<()>>,
}

impl<W: Work> Crew<W> {
    /// An empty crew.
    pub(crate) const fn new(kind: WorkerKind) -> Self {
        Self {
            kind,
            workers: Vec::new(),
            threads: Vec::new(),
        }
    }

    /// Adds a worker that executes `work`.
    pub(crate) fn add(&mut self, work: W) -> io::Result<()> {
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

    /// The workers, for threads that stand in for them from `now` on.
    pub(crate) fn stand_ins(&self, now: Instant) -> StandIns<W> {
        StandIns::new(now, self.workers.iter().map(Arc::downgrade))
    }

    /// Executes the next step of a stepped worker. Returns whether the worker is awake.
    pub(crate) fn step(&self, number: usize) -> bool {
        let is_stepped = self.kind == WorkerKind::Stepped;
        let worker = self.workers.get(number).filter(|_| is_stepped);
        worker.is_some_and(|worker| worker.lock().step())
    }

    /// Whether all workers are stepped and would still sleep at their next step.
    pub(crate) fn sleeps_on(&self) -> bool {
        let sleeps_on = |worker: &Arc<Mutex<Worker<W>>>| worker.lock().sleeps_on();
        self.kind == WorkerKind::Stepped && self.workers.iter().all(sleeps_on)
    }

    /// Waits until all threads of workers have ended, after they were [told to
    /// stop](super::Scheduler::stop).
    pub(crate) fn join(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}
