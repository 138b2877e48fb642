// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! State that the HCAs of a process share: worker threads, timers, and the map from MAC
//! addresses to HCAs.

mod hcas;
mod server;
#[cfg(feature = "testing")]
mod testing;
mod watch;
mod worker_load;

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use roce::net::Mac;
use roce::saved::Epoch;
use sandbox::Pulse;
use scheduler::{
    shard, Clock, Crew, Doing, Flow, FlowKey, PortFlows, Scheduler, SchedulerConfig, StandIns,
    Waiting, WorkerKind, MAX_WORKERS,
};

use self::hcas::Registry;
use self::server::Server;
use self::watch::Patience;
pub(crate) use self::watch::{Watch, Watched};
use self::worker_load::WorkerLoads;
pub use self::worker_load::WorkerStatus;
use crate::address_leases::AddressLeases;
use crate::shuffle::Secret;
#[cfg(feature = "counting")]
use crate::turn::done;
use crate::turn::{TURN, TURN_TIME};

/// Maximum of the default number of workers. The other CPUs are left to the VMs.
const MAX_DEFAULT_WORKERS: usize = 4;

/// The data path between two QPs of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// Copy between the memories of the QPs' VMs.
    #[default]
    Direct,
    /// Send packets, as to any other peer.
    Wire,
}

/// Configuration of a [`Runtime`].
#[derive(Clone, Debug, Default)]
pub struct RuntimeConfig {
    /// Number of workers, at most [`MAX_WORKERS`]. The default is the number of CPUs less one, but
    /// at least 1 and at most 4.
    pub workers: Option<usize>,
    /// The data path between QPs of the process.
    pub path: PathPolicy,
    /// CPUs that are dedicated to workers. Each of them gets one worker, which never sleeps. If the
    /// list is not empty, `workers` and `poll` are ignored. Only for workers that are threads.
    pub dedicated: Vec<usize>,
    /// Time for which a worker polls an empty send queue before it requests a doorbell. The worker
    /// does not sleep meanwhile. With a manual clock, send queues are not polled.
    pub poll: Duration,
    /// Whether the thread that receives a doorbell after an idle gap may do the work itself if all
    /// workers sleep.
    pub at_once: bool,
    /// The clock for timers and rate limits.
    pub clock: Clock,
    /// How the workers run.
    pub worker_kind: WorkerKind,
    /// The secret from which the numbers and keys of objects are derived. By default it is random;
    /// a known secret makes runs repeatable.
    pub secret: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// The workers, by number.
    pub workers: Vec<WorkerStatus>,
    /// Budget of a turn, for each half of a QP. The unit is the cost of copying one byte. The last
    /// step of a turn may exceed the budget.
    pub turn_budget: u64,
    /// Cost of the longest turn of any thread, in the unit of `turn_budget`.
    pub longest_turn: u64,
    /// The most by which the work that a turn has done cost more than was charged, at the least
    /// prices: 0, unless a charge is missing.
    #[cfg(feature = "counting")]
    pub uncharged: u64,
    /// Number of times that a thread waited until the turns in progress had ended, for example
    /// after it removed an object.
    pub grace_periods: u64,
}

/// The activity of a worker, and the flows that wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerActivity {
    pub doing: Doing,
    /// How long the worker has done so. Time since the last round of a worker that sleeps.
    pub since: Duration,
    /// The ready flows of the worker, by port.
    pub waiting: Vec<Waiting>,
}

/// The HCAs of a process and the workers that serve them. The drop ends the workers' threads.
pub struct Runtime {
    shared: Arc<SharedRuntime>,
    crew: Crew<Server>,
}

/// The part of a [`Runtime`] that HCAs and workers use.
pub(crate) struct SharedRuntime {
    pub(crate) hcas: Registry,
    patience: Patience,
    pub(crate) scheduler: Scheduler,
    pub(crate) address_leases: AddressLeases,
    pub(crate) secret: Secret,
    /// The time from which times in saved state count.
    pub(crate) epoch: Epoch,
    loads: WorkerLoads,
    /// The workers, once all were made.
    stand_ins: OnceLock<StandIns<Server>>,
}

impl Runtime {
    /// Creates a runtime and starts its workers.
    pub fn new(config: RuntimeConfig) -> io::Result<Self> {
        let RuntimeConfig {
            workers,
            dedicated,
            path,
            poll,
            at_once,
            clock,
            worker_kind,
            secret,
        } = config;
        let workers = workers.unwrap_or_else(|| {
            let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
            cpus.saturating_sub(1).min(MAX_DEFAULT_WORKERS)
        });
        let workers = match dedicated.len() {
            0 => workers.clamp(1, MAX_WORKERS),
            count => count.min(MAX_WORKERS),
        };
        let patience = match dedicated.is_empty() {
            true if clock.stands_still() => Patience::Limited(Duration::ZERO),
            true => Patience::Limited(poll),
            false => Patience::Unlimited,
        };
        let shared = Arc::new(SharedRuntime {
            hcas: Registry::new(path == PathPolicy::Direct),
            patience,
            epoch: Epoch::of_boot(),
            scheduler: Scheduler::new(SchedulerConfig {
                workers,
                at_once,
                clock,
                turn: TURN,
                turn_time: TURN_TIME,
            }),
            address_leases: AddressLeases::default(),
            secret: Secret::new(secret),
            loads: WorkerLoads::new(workers),
            stand_ins: OnceLock::new(),
        });
        let mut runtime = Self {
            shared,
            crew: Crew::new(worker_kind),
        };
        for worker in 0..workers {
            let server = Server::new(runtime.shared.clone(), worker);
            match dedicated.get(worker) {
                Some(cpu) => runtime.crew.add_on(*cpu, server)?,
                None => runtime.crew.add(server)?,
            }
        }
        let stand_ins = runtime.crew.stand_ins(runtime.shared.scheduler.clock.now());
        runtime.shared.stand_ins.get_or_init(|| stand_ins);
        Ok(runtime)
    }

    /// Executes the next step of a stepped worker: begins a round, gives one flow a turn, or ends
    /// the round. Returns whether the worker is awake. The order of these calls, and of the frames
    /// that an idle caller delivers, determines what the workers do.
    pub fn step(&self, worker: usize) -> bool {
        self.crew.step(worker)
    }

    /// Whether all stepped workers sleep although there is work, so a wake-up was lost.
    pub fn sleeps_over_work(&self) -> bool {
        let shared = &self.shared;
        self.crew.sleeps_on() && (shared.scheduler.is_busy() || shared.scheduler.is_due())
    }

    /// Holds the workers between two rounds, see [`Scheduler::hold`].
    pub fn hold(&self, deadline: Instant) -> bool {
        self.shared.scheduler.hold(deadline)
    }

    /// Lets the workers go on after [`hold`](Self::hold).
    pub fn release(&self) {
        self.shared.scheduler.release();
    }

    /// The present time, as all processes of the host count it: since the host's start.
    pub fn since_boot(&self) -> Duration {
        let now = self.shared.scheduler.clock.now();
        Duration::from_nanos(self.shared.epoch.nanos(Some(now)))
    }

    /// The status of the workers.
    pub fn status(&self) -> RuntimeStatus {
        let handovers = |worker| self.shared.scheduler.handovers(worker);
        RuntimeStatus {
            workers: self.shared.loads.of_workers(handovers),
            turn_budget: TURN as u64,
            longest_turn: self.shared.loads.longest_turn(),
            #[cfg(feature = "counting")]
            uncharged: self.shared.loads.uncharged(),
            grace_periods: self.shared.scheduler.quiesce.periods(),
        }
    }

    /// The rounds of each worker.
    pub fn pulses(&self) -> impl Iterator<Item = &Pulse> {
        self.shared.scheduler.pulses()
    }

    /// The activity of each worker. Takes no lock, so it works while a worker
    /// is held in a turn.
    pub fn activities(&self) -> Vec<WorkerActivity> {
        let scheduler = &self.shared.scheduler;
        let hcas = self.shared.hcas.load();
        let activity = |worker| {
            let (doing, since) = scheduler.doing(worker);
            let flows = |port| hcas.at(port).map(|hca| &hca.flows.port);
            WorkerActivity {
                doing,
                since,
                waiting: scheduler.waiting(worker, flows),
            }
        };
        (0..scheduler.workers()).map(activity).collect()
    }

    pub(crate) fn shared(&self) -> &Arc<SharedRuntime> {
        &self.shared
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shared.scheduler.stop();
        self.crew.join();
        // Breaks the cycle of references between HCAs and runtime.
        self.shared.hcas.clear();
    }
}

impl SharedRuntime {
    /// The home of a flow, if the flow's port exists.
    pub(crate) fn home(&self, FlowKey { port, flow }: FlowKey) -> Option<usize> {
        let hcas = self.hcas.load();
        hcas.at(port).map(|hca| hca.flows.port.home(flow))
    }

    /// Whether a port of this process has this MAC address.
    pub(crate) fn has_port(&self, mac: Mac) -> bool {
        self.hcas.load().with_mac(&mac).is_some()
    }

    /// The own MAC address of the port that is reached at `mac`; `mac` itself, unless it is a
    /// additional address of a port of this process.
    #[inline]
    pub(crate) fn own_mac(&self, mac: Mac) -> Mac {
        let hcas = self.hcas.load();
        hcas.with_mac(&mac).map_or(mac, |hca| hca.mac())
    }

    /// Makes `flow` ready. If its worker sleeps, gives it and other flows of its port turns in the
    /// current thread, which must not be a worker or hold a lock.
    pub(crate) fn serve_here(&self, flows: &PortFlows, flow: Flow) {
        match self.stand_ins.get() {
            Some(stand_ins) => stand_ins.serve_here(&self.scheduler, flows, flow),
            None => self.scheduler.make_ready(flows, flow),
        }
    }

    /// Records the cost of a turn of the current thread.
    #[inline]
    pub(crate) fn note_turn(&self, cost: usize) {
        #[cfg(feature = "counting")]
        self.loads.note_done(shard(), cost, done::end());
        self.loads.note_turn(shard(), cost);
    }
}
