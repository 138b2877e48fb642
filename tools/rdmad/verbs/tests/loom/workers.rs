// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Workers as a runtime has them, from their start to their end. They serve a set of numbers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use virtio_rdma_abi::number::{PortId, Qpn};

use crate::scheduler::{
    Alarm, Clock, Crew, Next, QpKey, ReadySet, Scheduler, SchedulerConfig, Work, WorkerKind,
};
use crate::sync::{check, spawn, Condvar, Mutex};

const QP: QpKey = QpKey {
    port: PortId::new(1),
    qpn: Qpn::NONE,
};

/// The shared part: a runtime with one device, so to say.
struct Model {
    scheduler: Scheduler,
    ready: ReadySet<Qpn>,
    /// How often a number was served.
    served: Mutex<usize>,
    more: Condvar,
}

impl Model {
    /// Calls `scenario`; then the workers end.
    fn run(workers: usize, clock: Clock, scenario: impl FnOnce(&Arc<Self>)) {
        let model = Arc::new(Self {
            scheduler: Scheduler::new(SchedulerConfig {
                workers,
                worker_kind: WorkerKind::Threads,
                at_once: false,
                clock,
            }),
            ready: ReadySet::new(2),
            served: Mutex::new(0),
            more: Condvar::new(),
        });
        let mut crew = Crew::new(WorkerKind::Threads);
        for _ in 0..workers {
            let worked = false;
            let model = model.clone();
            crew.add(Server { model, worked }).unwrap();
        }
        scenario(&model);
        model.scheduler.stop();
        // A worker that sleeps on ends in a deadlock, which the checker reports.
        crew.join();
        assert_eq!(model.ready.take(), None);
        assert!(model.ready.is_empty());
    }

    /// As a doorbell does.
    fn give(&self, qpn: u32) {
        if self.ready.insert(Qpn::new(qpn)) {
            self.scheduler.wake();
        }
    }

    /// Returns when so many were served. Lost work ends in a deadlock, which the checker reports.
    fn await_served(&self, count: usize) {
        let mut served = self.served.lock();
        while *served < count {
            self.more.wait(&mut served);
        }
        assert_eq!(*served, count);
    }
}

struct Server {
    model: Arc<Model>,
    worked: bool,
}

impl Work for Server {
    type Places = ();

    fn scheduler(&self) -> &Scheduler {
        &self.model.scheduler
    }

    fn is_busy(&self) -> bool {
        !self.model.ready.is_empty()
    }

    fn places(&self) {}

    fn expired(&self, qp: QpKey) {
        self.model.give(qp.qpn.get());
    }

    fn begin(&mut self, _: Instant) {
        self.worked = false;
    }

    fn visit(&mut self, (): &(), index: usize) -> bool {
        if index == 0 && self.model.ready.take().is_some() {
            self.worked = true;
            if !self.model.ready.is_empty() {
                self.model.scheduler.wake_another();
            }
            *self.model.served.lock() += 1;
            self.model.more.notify_all();
        }
        index == 0
    }

    fn end(&mut self) -> Next {
        match self.worked {
            true => Next::Round,
            false => Next::Sleep,
        }
    }
}

/// A worker that sleeps while nothing is ready takes all that becomes ready.
#[test]
fn no_wake_up_is_lost() {
    check(|| {
        Model::run(1, Clock::manual(), |model| {
            let giver = {
                let model = model.clone();
                spawn(String::new(), move || model.give(0)).unwrap()
            };
            model.give(1);
            model.await_served(2);
            giver.join().unwrap();
        });
    });
}

/// A deadline that is set while a worker falls asleep ends its sleep.
#[test]
fn no_deadline_is_slept_through() {
    check(|| {
        Model::run(1, Clock::system(), |model| {
            let scheduler = &model.scheduler;
            let time = Duration::from_millis(1);
            let _until = Alarm::default().set(scheduler, QP, scheduler.clock.now() + time);
            scheduler.clock.pass(time);
            model.await_served(1);
        });
    });
}

/// A caller that lets time pass on a clock that stands still finds all due work done.
#[test]
fn what_is_due_is_done_when_time_has_passed() {
    check(|| {
        Model::run(1, Clock::manual(), |model| {
            let scheduler = &model.scheduler;
            let time = Duration::from_millis(1);
            let _until = Alarm::default().set(scheduler, QP, scheduler.clock.now() + time);
            scheduler.advance(time, || !model.ready.is_empty());
            assert_eq!(*model.served.lock(), 1);
        });
    });
}

/// Workers end whatever they are at.
#[test]
fn workers_end() {
    check(|| Model::run(2, Clock::manual(), |_| {}));
}
