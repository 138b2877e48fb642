// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Models of complete workers, from start to end. The workers serve the flows of one port.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use virtio_rdma_abi::number::{PortId, Qpn};

use scheduler::sync::{check, check_few, spawn, Condvar, JoinHandle, Mutex};
use scheduler::{
    Alarm, Clock, Crew, Exclusive, Flow, FlowKey, Next, PortFlows, Scheduler, SchedulerConfig,
    StandIns, TurnEnd, TurnStart, Work, WorkerKind,
};

const PORT: PortId = PortId::new(1);
const QP: FlowKey = FlowKey {
    port: PORT,
    flow: Flow::of(Qpn::new(1)),
};
/// Cost of a turn that uses up its budget.
const TURN: usize = 10;
/// Number of flows of the port.
const FLOWS: usize = 3;
/// Number of the QP whose turn with work sets a deadline of [`QP`], after [`DELAY`].
const SETS_ALARM: u32 = 2;
const DELAY: Duration = Duration::from_millis(1);

/// State that all threads of a model share, like the state of a runtime with one device.
struct Model {
    scheduler: Scheduler,
    flows: PortFlows,
    /// Whether the port has been attached.
    attached: Mutex<bool>,
    qps: [ModelQp; FLOWS],
    /// Number of turns that executed work.
    served: Mutex<usize>,
    more: Condvar,
    /// Whether turns of QP [`SETS_ALARM`] set a deadline.
    alarms: bool,
    stand_ins: OnceLock<StandIns<Server>>,
}

/// Properties of the QPs of a model.
#[derive(Clone, Copy, Default)]
struct Kind {
    /// QPs whose numbers are lower use up the budget of each turn.
    bulk: usize,
    /// Whether turns of QP [`SETS_ALARM`] set a deadline.
    alarms: bool,
}

#[derive(Default)]
struct ModelQp {
    serving: Exclusive,
    /// Number of work requests that were posted and not executed.
    posted: Mutex<usize>,
    /// Whether each turn of the QP uses up its budget.
    is_bulk: bool,
    is_destroyed: Mutex<bool>,
}

impl Model {
    /// Starts workers, calls `scenario`, and stops the workers.
    fn run<T>(workers: usize, clock: Clock, scenario: impl FnOnce(&Arc<Self>) -> T) -> T {
        Self::run_as(workers, clock, Kind::default(), scenario)
    }

    /// Like [`run`](Self::run), with QPs of this kind.
    fn run_as<T>(
        workers: usize,
        clock: Clock,
        kind: Kind,
        scenario: impl FnOnce(&Arc<Self>) -> T,
    ) -> T {
        let Kind { bulk, alarms } = kind;
        let qp = |number| ModelQp {
            is_bulk: number < bulk,
            ..ModelQp::default()
        };
        let model = Arc::new(Self {
            scheduler: Scheduler::new(SchedulerConfig {
                workers,
                at_once: false,
                clock,
                turn: TURN,
                turn_time: Duration::from_secs(1),
            }),
            flows: PortFlows::new(PORT, FLOWS as u32, workers),
            attached: Mutex::new(true),
            qps: std::array::from_fn(qp),
            served: Mutex::new(0),
            more: Condvar::new(),
            alarms,
            stand_ins: OnceLock::new(),
        });
        // All flows have worker 0 as their home, so that the other workers can steal flows.
        for number in 0..FLOWS as u32 {
            model.flows.set_home(Flow::of(Qpn::new(number)), 0);
        }
        let mut crew = Crew::new(WorkerKind::Threads);
        for _ in 0..workers {
            let worked = false;
            let model = model.clone();
            crew.add(Server { model, worked }).unwrap();
        }
        model
            .stand_ins
            .get_or_init(|| crew.stand_ins(model.scheduler.clock.now()));
        let result = scenario(&model);
        model.scheduler.stop();
        // If a worker continues to sleep, loom reports a deadlock.
        crew.join();
        for qp in &model.qps {
            assert_eq!(*qp.posted.lock(), 0, "work is left");
        }
        result
    }

    /// Posts work to a QP and makes its flow ready, as a doorbell does.
    fn give(&self, number: u32) {
        self.post(number);
        self.make_ready(number);
    }

    fn post(&self, number: u32) {
        *self.qps[number as usize].posted.lock() += 1;
    }

    fn make_ready(&self, number: u32) {
        let flow = Flow::of(Qpn::new(number));
        self.scheduler.make_ready(&self.flows, flow);
    }

    /// Starts a thread that makes a QP ready, and serves it itself if the worker sleeps, like the
    /// switch's thread.
    fn serve_here(self: &Arc<Self>, number: u32) -> JoinHandle<()> {
        let model = self.clone();
        let serve = move || {
            let flow = Flow::of(Qpn::new(number));
            let stand_ins = model.stand_ins.get().expect("workers");
            stand_ins.serve_here(&model.scheduler, &model.flows, flow);
        };
        spawn(String::new(), serve).unwrap()
    }

    /// Destroys a QP, as DESTROY_QP does. On return, no turn serves the QP.
    fn destroy(&self, number: u32) {
        *self.qps[number as usize].is_destroyed.lock() = true;
        self.scheduler.quiesce.synchronize();
        assert!(!self.qps[number as usize].serving.is_busy());
    }

    /// Waits until `count` turns have executed work. If work is lost, loom reports a deadlock.
    fn await_served(&self, count: usize) {
        let mut served = self.served.lock();
        while *served < count {
            self.more.wait(&mut served);
        }
        assert_eq!(*served, count);
    }
}

/// A worker's view of the port at the start of a round.
struct Places {
    model: Arc<Model>,
    attached: bool,
}

struct Server {
    model: Arc<Model>,
    worked: bool,
}

impl Work for Server {
    type Places = Places;

    fn scheduler(&self) -> &Scheduler {
        &self.model.scheduler
    }

    fn places(&self) -> Places {
        Places {
            model: self.model.clone(),
            attached: *self.model.attached.lock(),
        }
    }

    fn flows(places: &Places, port: PortId) -> Option<&PortFlows> {
        (port == PORT && places.attached).then_some(&places.model.flows)
    }

    fn peer(&self, _: &Places, _: FlowKey) -> Option<FlowKey> {
        None
    }

    fn is_served(&self, places: &Places, key: FlowKey) -> bool {
        qp(&places.model, key.flow).serving.is_busy()
    }

    fn expired(&self, key: FlowKey) {
        self.model.give(key.flow.qpn().expect("a QP's flow").get());
    }

    fn begin(&mut self, _: Instant) {
        self.worked = false;
    }

    fn serve(&mut self, places: &Places, key: FlowKey, _start: TurnStart) -> TurnEnd {
        let Places { model, .. } = places;
        self.worked = true;
        let qp = qp(model, key.flow);
        let worker = scheduler::shard() - 1;
        let _turn = model.scheduler.quiesce.begin(worker);
        if *qp.is_destroyed.lock() {
            return TurnEnd::default();
        }
        let turn = || {
            let mut posted = qp.posted.lock();
            let done = usize::from(*posted > 0);
            *posted -= done;
            if done > 0 && model.alarms && key.flow == Flow::of(Qpn::new(SETS_ALARM)) {
                let deadline = model.scheduler.clock.now() + DELAY;
                let _until = Alarm::default().set(&model.scheduler, QP, 0, deadline);
            }
            *model.served.lock() += done;
            model.more.notify_all();
            TurnEnd {
                again: *posted > 0,
                cost: if qp.is_bulk { TURN } else { 1 },
            }
        };
        let Some(ended) = qp.serving.run(turn) else {
            return TurnEnd::default();
        };
        let mut end = ended.result;
        end.again |= ended.again;
        end
    }

    fn end(&mut self) -> Next {
        match self.worked {
            true => Next::Round,
            false => Next::Sleep,
        }
    }
}

fn qp(model: &Model, flow: Flow) -> &ModelQp {
    &model.qps[flow.qpn().expect("a QP's flow").get() as usize]
}

/// A worker that sleeps while no flow is ready serves every flow that becomes ready.
#[test]
fn no_wake_up_is_lost() {
    check_few(2, || {
        Model::run(1, Clock::manual(), |model| {
            let giver = {
                let model = model.clone();
                spawn(String::new(), move || model.give(2)).unwrap()
            };
            model.give(1);
            model.await_served(2);
            giver.join().unwrap();
        });
    });
}

/// Work that is posted during a turn is executed in another turn.
#[test]
fn no_work_is_left_at_the_end_of_a_turn() {
    check(|| {
        let kind = Kind {
            bulk: 2,
            ..Kind::default()
        };
        Model::run_as(1, Clock::manual(), kind, |model| {
            model.give(1);
            model.give(1);
            model.await_served(2);
        });
    });
}

/// A port that is attached and gets work during a worker's round is served.
#[test]
fn a_new_port_is_served() {
    check_few(2, || {
        Model::run(1, Clock::manual(), |model| {
            *model.attached.lock() = false;
            model.make_ready(2);
            *model.attached.lock() = true;
            model.give(1);
            model.await_served(1);
        });
    });
}

/// Two workers serve flows that have the same home; one worker steals them. Each work request is
/// executed exactly once.
#[test]
fn stolen_flows_are_served_once() {
    check_few(1, || {
        Model::run(2, Clock::manual(), |model| {
            model.give(1);
            model.give(2);
            model.await_served(2);
        });
    });
}

/// A QP is destroyed while work is posted to it and a worker steals and serves it. No turn serves
/// this QP afterwards, and the other QP is served.
#[test]
fn a_destroyed_qp_has_no_turn() {
    check_few(1, || {
        Model::run(2, Clock::manual(), |model| {
            model.make_ready(1);
            model.destroy(1);
        });
    });
}

/// A deadline that is set while a worker goes to sleep wakes the worker.
#[test]
fn no_deadline_is_slept_through() {
    check(|| {
        Model::run(1, Clock::system(), |model| {
            let scheduler = &model.scheduler;
            let time = Duration::from_millis(1);
            let _until = Alarm::default().set(scheduler, QP, 0, scheduler.clock.now() + time);
            scheduler.clock.pass(time);
            model.await_served(1);
        });
    });
}

/// After a caller has advanced a manual clock, all work that is due is done.
#[test]
fn what_is_due_is_done_when_time_has_passed() {
    check(|| {
        Model::run(1, Clock::manual(), |model| {
            let scheduler = &model.scheduler;
            let time = Duration::from_millis(1);
            let _until = Alarm::default().set(scheduler, QP, 0, scheduler.clock.now() + time);
            scheduler.advance(time);
            assert_eq!(*model.served.lock(), 1);
        });
    });
}

/// Workers end when the scheduler stops, in any state of the workers.
#[test]
fn workers_end() {
    check(|| Model::run(2, Clock::manual(), |_| {}));
}

/// A thread that has work for a worker stands in for it or wakes it, while another thread rings a
/// doorbell. All work is done, and each turn belongs to one of both.
#[test]
fn who_stands_in_serves_every_flow_once() {
    check_few(2, || {
        Model::run(1, Clock::manual(), |model| {
            model.post(2);
            let host = model.serve_here(2);
            model.give(1);
            model.await_served(2);
            host.join().unwrap();
        });
    });
}

/// A deadline that is set in a turn of a thread that stands in wakes the worker, even if it went to
/// sleep without a deadline.
#[test]
fn the_worker_wakes_for_a_deadline_of_its_stand_in() {
    let kind = Kind {
        alarms: true,
        ..Kind::default()
    };
    check_few(2, move || {
        Model::run_as(1, Clock::system(), kind, |model| {
            model.post(SETS_ALARM);
            model.serve_here(SETS_ALARM).join().unwrap();
            model.await_served(1);
            model.scheduler.clock.pass(DELAY);
            model.await_served(2);
        });
    });
}

/// Workers end although another thread stands in for one when the scheduler stops.
#[test]
fn workers_end_while_another_stands_in() {
    check_few(2, || {
        let host = Model::run(1, Clock::manual(), |model| model.serve_here(1));
        host.join().unwrap();
    });
}
