// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What the devices of one process share: worker threads, timers, and the way from a MAC address to a device.

mod at_once;
mod clock;
mod exclusive;
mod longest;
mod quiesce;
mod ready;
mod sleep;
mod sync;
mod timer;
mod watch;
mod worker;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use sandbox::Kind;

pub(crate) use self::at_once::Lull;
pub use self::clock::Clock;
pub(crate) use self::exclusive::Exclusive;
use self::longest::Longest;
use self::quiesce::Quiesce;
pub(crate) use self::ready::ReadySet;
use self::sleep::Sleep;
pub(crate) use self::timer::{Alarm, Timers, Until};
pub(crate) use self::watch::{Watch, Watched};
pub(crate) use self::worker::shard;
use self::worker::Worker;
use crate::claims::Claims;
use crate::shuffle::Secret;
use crate::status::FabricStatus;
use crate::turn::TURN;
use crate::Device;

/// Workers unless told otherwise: CPUs are left to the VMs.
const MAX_DEFAULT_WORKERS: usize = 4;

/// A QP of the fabric: port and QPN.
pub(crate) type QpKey = (u32, u32);

/// How two QPs of one process exchange data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// By copying between the memories of their VMs.
    #[default]
    Direct,
    /// By packets, as with any other peer.
    Wire,
}

/// How a [`Fabric`] works.
#[derive(Clone, Debug, Default)]
pub struct FabricConfig {
    /// Threads that serve; by default as many as there are CPUs less one, but from one to four.
    pub workers: Option<usize>,
    /// How QPs of the process exchange data.
    pub path: PathPolicy,
    /// How long a worker goes on looking at a queue that ran dry instead of asking for a doorbell. It does not sleep
    /// meanwhile. Only by the clock of the system.
    pub poll: Duration,
    /// Whether a thread that rings a doorbell after a lull does the work itself if all workers sleep.
    pub at_once: bool,
    /// The clock that timers and rate limits go by.
    pub clock: Clock,
    /// Whether workers are no threads, but do what [`Fabric::step`] tells them to.
    pub stepped: bool,
    /// What the numbers of objects and their keys are drawn by; unknown unless told. For what must repeat
    /// itself.
    pub secret: Option<u64>,
}

/// The devices of a process and the workers that serve them. Dropping it ends their threads.
pub struct Fabric {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Those that are stepped.
    workers: Mutex<Vec<Worker>>,
}

/// The part of a [`Fabric`] that devices and workers know.
pub(crate) struct Shared {
    /// Sorted by port.
    devices: ArcSwap<Vec<Arc<Device>>>,
    /// The next device's port.
    next_port: Mutex<u32>,
    direct: AtomicBool,
    stopped: AtomicBool,
    workers: usize,
    poll: Duration,
    at_once: bool,
    pub(crate) clock: Clock,
    pub(crate) timers: Timers,
    pub(crate) quiesce: Quiesce,
    pub(crate) claims: Claims,
    pub(crate) secret: Secret,
    sleep: Sleep,
    longest: Longest,
}

impl Fabric {
    /// Starts the threads.
    pub fn new(config: FabricConfig) -> io::Result<Self> {
        let FabricConfig {
            workers,
            path,
            poll,
            at_once,
            clock,
            stepped,
            secret,
        } = config;
        let workers = workers.unwrap_or_else(|| {
            let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
            cpus.saturating_sub(1).min(MAX_DEFAULT_WORKERS)
        });
        let workers = workers.max(1);
        let shared = Arc::new(Shared {
            devices: ArcSwap::default(),
            next_port: Mutex::new(1),
            direct: AtomicBool::new(path == PathPolicy::Direct),
            stopped: AtomicBool::new(false),
            workers,
            poll: match clock.stands_still() {
                true => Duration::ZERO,
                false => poll,
            },
            at_once,
            timers: Timers::new(clock.now()),
            clock,
            quiesce: Quiesce::new(workers),
            claims: Claims::default(),
            secret: Secret::new(secret),
            sleep: match stepped {
                true => Sleep::stepped(),
                false => Sleep::default(),
            },
            longest: Longest::new(workers),
        });
        let mut fabric = Self {
            shared: shared.clone(),
            threads: Vec::new(),
            workers: Mutex::default(),
        };
        if stepped {
            let workers = (0..workers).map(|number| Worker::new(&shared, number));
            fabric.workers = Mutex::new(workers.collect());
            return Ok(fabric);
        }
        for index in 0..workers {
            let shared = shared.clone();
            let thread = sandbox::spawn(Kind::Worker, format!("worker-{index}"), move || {
                worker::run(&shared, index);
            })?;
            fabric.threads.push(thread);
        }
        Ok(fabric)
    }

    /// Whether QPs of this process exchange data directly. Takes effect on a QP when it next goes to RTR or RTS.
    pub fn set_path(&self, path: PathPolicy) {
        self.shared
            .direct
            .store(path == PathPolicy::Direct, Ordering::Relaxed);
    }

    /// Has a worker that is stepped do the next step of its round: begin, give one device a turn, end.
    /// Returns whether it is awake. Nothing else serves, so what happens is decided by the order of the
    /// calls.
    pub fn step(&self, worker: usize) -> bool {
        let mut workers = self.workers.lock();
        let worker = workers.get_mut(worker);
        worker.is_some_and(|worker| worker.step(&self.shared))
    }

    /// Lets `time` pass on a clock that stands still. What is due then is left to [steps](Self::step).
    pub fn pass(&self, time: Duration) {
        self.shared.clock.advance(time);
    }

    /// How long it is to the next deadline, if there is one.
    pub fn next_deadline(&self) -> Option<Duration> {
        let next = self.shared.timers.next()?;
        Some(next.saturating_duration_since(self.shared.clock.now()))
    }

    /// Lets `time` pass on a clock that stands still, from one deadline to the next: each is met to the nanosecond.
    /// Returns when all is done that was due, and what that entailed. On the clock of the system it sleeps.
    pub fn advance(&self, time: Duration) {
        if !self.shared.clock.stands_still() {
            return std::thread::sleep(time);
        }
        self.settle();
        let end = self.shared.clock.now() + time;
        loop {
            let now = self.shared.clock.now();
            let next = self.shared.timers.next().map_or(end, |next| next.min(end));
            self.shared
                .clock
                .advance(next.saturating_duration_since(now));
            self.settle();
            if next == end {
                return;
            }
        }
    }

    /// Returns when nothing is left to do before time passes, which it does not meanwhile.
    fn settle(&self) {
        while !self.shared.is_idle() {
            // A worker that was about to sleep does not know that the clock went on.
            self.shared.sleep.wake_all();
            std::thread::yield_now();
        }
    }

    /// What there is to see of the workers.
    pub fn status(&self) -> FabricStatus {
        let (longest_turn, longest_round) = self.shared.longest.longest();
        FabricStatus {
            workers: self.shared.workers,
            turn_budget: TURN as u64,
            longest_turn,
            longest_round,
            grace_periods: self.shared.quiesce.periods(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.sleep.wake_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
        // Devices know the fabric and the fabric its devices.
        self.shared.devices.store(Arc::default());
    }
}

impl Shared {
    /// Makes the device that `make` returns for its port known.
    pub(crate) fn attach(&self, make: impl FnOnce(u32) -> Arc<Device>) -> Arc<Device> {
        let mut next = self.next_port.lock();
        let device = make(*next);
        *next += 1;
        let config = device.config();
        self.claims
            .give(device.port(), config.mac, &config.addresses);
        let mut devices = Vec::clone(&self.devices.load());
        devices.push(device.clone());
        self.devices.store(Arc::new(devices));
        device
    }

    /// Forgets a device. Returns when no worker serves it any more.
    pub(crate) fn detach(&self, port: u32) {
        {
            let _change = self.next_port.lock();
            let mut devices = Vec::clone(&self.devices.load());
            devices.retain(|device| device.port() != port);
            self.devices.store(Arc::new(devices));
            self.claims.take_back(port);
        }
        self.quiesce.synchronize();
    }

    /// The device whose port has this MAC address, if QPs exchange data directly.
    pub(crate) fn direct_peer(&self, mac: [u8; 6]) -> Option<Arc<Device>> {
        if !self.direct.load(Ordering::Relaxed) {
            return None;
        }
        self.devices
            .load()
            .iter()
            .find(|device| device.mac() == mac)
            .cloned()
    }

    /// Whether a port of this process has this MAC address.
    pub(crate) fn has_port(&self, mac: [u8; 6]) -> bool {
        self.devices.load().iter().any(|device| device.mac() == mac)
    }

    /// A turn of the current thread ended that cost so much.
    #[inline]
    pub(crate) fn note_turn(&self, cost: usize) {
        self.longest.note_turn(shard(), cost);
    }

    /// Threads that serve.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Whether no worker has anything to do now. Whoever is not asleep may have.
    fn is_idle(&self) -> bool {
        let due = || {
            let now = self.clock.now();
            self.timers.next().is_some_and(|deadline| deadline <= now)
        };
        self.sleep
            .all_sleep(self.workers, || !self.busy() && !due())
    }

    /// Something is ready to be served.
    #[inline]
    pub(crate) fn wake(&self) {
        // A worker that makes something ready looks for more itself, and wakes others as far as there is.
        if !worker::is_worker() {
            self.sleep.wake();
        }
    }
}
