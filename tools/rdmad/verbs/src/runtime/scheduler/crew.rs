// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The set of workers, as threads or stepped.

use std::io;

use super::sync::{spawn, JoinHandle, Mutex};
use super::work::Work;
use super::worker::Worker;
use super::worker_kind::WorkerKind;

/// The workers of a runtime.
pub(crate) enum Crew<W> {
    /// Each worker is a thread.
    Threads(Vec<JoinHandle<()>>),
    /// Calls of [`step`](Self::step) execute the steps of each worker.
    Steps(Mutex<Vec<Worker<W>>>),
}

impl<W: Work> Crew<W> {
    /// An empty crew.
    pub(crate) fn new(kind: WorkerKind) -> Self {
        match kind {
            WorkerKind::Threads => Self::Threads(Vec::new()),
            WorkerKind::Stepped => Self::Steps(Mutex::new(Vec::new())),
        }
    }

    /// Adds a worker that executes `work`.
    pub(crate) fn add(&mut self, work: W) -> io::Result<()> {
        match self {
            Self::Threads(threads) => {
                let number = threads.len();
                let worker = Worker::new(number, work);
                threads.push(spawn(format!("worker-{number}"), || worker.run())?);
            }
            Self::Steps(workers) => {
                let workers = &mut *workers.lock();
                workers.push(Worker::new(workers.len(), work));
            }
        }
        Ok(())
    }

    /// Executes the next step of a stepped worker. Returns whether the worker is awake.
    pub(crate) fn step(&self, number: usize) -> bool {
        match self {
            Self::Threads(_) => false,
            Self::Steps(workers) => {
                let worker = &mut *workers.lock();
                worker.get_mut(number).is_some_and(Worker::step)
            }
        }
    }

    /// Whether all workers are stepped and would still sleep at their next step.
    pub(crate) fn sleeps_on(&self) -> bool {
        match self {
            Self::Threads(_) => false,
            Self::Steps(workers) => workers.lock().iter().all(Worker::sleeps_on),
        }
    }

    /// Waits until all workers have ended, after they were [told to stop](super::Scheduler::stop).
    pub(crate) fn join(&mut self) {
        let Self::Threads(threads) = self else {
            return;
        };
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}
