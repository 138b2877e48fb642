// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A load, and its measurement.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{clock_gettime, ClockId};
use testkit::engine::{Cq, Daemon, Vm};
use verbs::RuntimeConfig;
use virtio_rdma_abi::ring::CQ_SLOTS;
use vswitch::Config;

use super::bulk::{play, Group, PlayerCounters};
use super::lane::{Guest, Lane, BUFFERS};
use super::probe::Probe;
use super::quantity::Quantity;
use super::statistics::{fairness, percentile};
use super::Options;
use crate::device::own_time;
use crate::figure::Shape;

/// Maximum number of outstanding messages, and of their bytes, for each busy worker.
const MESSAGES: u32 = 8192;
const BYTES: u32 = 64 << 20;
/// Minimum and maximum number of outstanding work requests of a bulk QP.
const DEPTHS: (u32, u32) = (8, 16_384);
/// Maximum number of bulk QPs that share a CQ, and of the CQ's entries.
const QPS_A_CQ: u32 = 64;
const ENTRIES: u32 = 32_768;
/// Time until the load is steady.
const WARM_UP: Duration = Duration::from_millis(100);

pub struct Load<'a> {
    shape: Shape,
    options: &'a Options,
}

/// Counters at one time.
struct Snapshot {
    at: Instant,
    device_time: Duration,
    messages: Vec<u64>,
}

/// Stops the players on drop, also if the measurement panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Load<'a> {
    pub fn new(shape: Shape, options: &'a Options) -> Self {
        Self { shape, options }
    }

    pub fn measure(&self) -> Vec<(Quantity, f64)> {
        let daemon = self.daemon();
        let guests: Vec<_> = daemon
            .vms
            .iter()
            .map(|vm| Guest::new(vm, self.options.size))
            .collect();
        let cqs: Vec<_> = guests
            .iter()
            .map(|guest| Cq::new(guest.vm, *CQ_SLOTS.start()))
            .collect();
        let before = charged(&daemon.vms);
        let groups = self.groups(&guests, &cqs);
        let memory = charged(&daemon.vms) - before;
        let last = daemon.vms.len() - 1;
        let mut probe = Probe::new([&daemon.vms[0], &daemon.vms[last]]);
        let players = deal(groups, self.players());
        let counters = PlayerCounters::new(self.shape.qps as usize, players.len());
        let time = Duration::from_secs_f64(self.options.time);
        let mut latencies = Vec::new();
        let (mut first, mut then) = (None, None);
        thread::scope(|scope| {
            let _stop = Stop(&counters.stop);
            for (player, groups) in players.into_iter().enumerate() {
                let counters = &counters;
                scope.spawn(move || play(groups, counters, player));
            }
            thread::sleep(WARM_UP);
            first = Some(Snapshot::new(&counters));
            thread::sleep(time);
            then = Some(Snapshot::new(&counters));
            latencies = probe.run(time);
        });
        latencies.sort_by(f64::total_cmp);
        let mut figures = match (first, then) {
            (Some(first), Some(then)) => self.bulk_figures(&first, &then, memory),
            _ => Vec::new(),
        };
        let tails = [
            (Quantity::Median, 0.5),
            (Quantity::Percentile99, 0.99),
            (Quantity::Percentile999, 0.999),
        ];
        figures.extend(tails.into_iter().filter_map(|(quantity, part)| {
            percentile(&latencies, part).map(|value| (quantity, value))
        }));
        figures
    }

    fn bulk_figures(&self, first: &Snapshot, then: &Snapshot, memory: u64) -> Vec<(Quantity, f64)> {
        let shares = then.messages.iter().zip(&first.messages);
        let shares: Vec<u64> = shares.map(|(then, first)| then - first).collect();
        let messages = shares.iter().sum::<u64>() as f64;
        let seconds = (then.at - first.at).as_secs_f64();
        let on_processor = (then.device_time - first.device_time).as_secs_f64();
        let mut guests = vec![0; self.shape.guests.min(self.shape.qps) as usize];
        for (number, share) in shares.iter().enumerate() {
            guests[number % self.shape.guests as usize] += share;
        }
        let of_workers = seconds * f64::from(self.shape.workers);
        let mut figures = Vec::new();
        if let (Some(qps), Some(guests)) = (fairness(&shares), fairness(&guests)) {
            figures.extend([
                (Quantity::Rate, messages / seconds / 1e6),
                (Quantity::ProcessorTime, on_processor / messages * 1e9),
                (Quantity::Busy, on_processor / of_workers),
                (Quantity::QpFairness, qps),
                (Quantity::GuestFairness, guests),
                (Quantity::Memory, memory as f64 / shares.len() as f64),
            ]);
        }
        figures
    }

    fn daemon(&self) -> Daemon {
        let runtime = RuntimeConfig {
            workers: Some(self.shape.workers as usize),
            path: self.options.path.policy(),
            poll: Duration::from_micros(self.options.poll.into()),
            at_once: true,
            ..RuntimeConfig::default()
        };
        let guests = 1..=self.shape.guests as usize;
        Daemon::with_runtime(guests, runtime, Config::default(), |_| {})
    }

    /// Outstanding work requests of each bulk QP: enough that workers stay busy while players
    /// pause.
    fn depth(&self) -> u32 {
        let busy = self.shape.workers.min(self.shape.qps);
        let messages = MESSAGES.min(BYTES / self.options.size) * busy / self.shape.qps.max(1);
        1 << messages.clamp(DEPTHS.0, DEPTHS.1).ilog2()
    }

    /// All bulk QPs. QP number n belongs to guest n modulo the number of guests; its peer belongs
    /// to the next guest.
    fn groups<'vm>(&self, guests: &[Guest<'vm>], cqs: &[Cq<'vm>]) -> Vec<Group<'vm>> {
        let depth = self.depth();
        let room = QPS_A_CQ.min(ENTRIES / depth) as usize;
        let mut groups = Vec::new();
        for (index, guest) in guests.iter().enumerate() {
            let numbers: Vec<_> = (index..self.shape.qps as usize)
                .step_by(guests.len())
                .collect();
            let peer = (index + 1) % guests.len();
            for numbers in numbers.chunks(room) {
                let entries = (depth * numbers.len() as u32).next_power_of_two();
                let cq = Cq::new(guest.vm, entries);
                let lane = |(id, &number): (usize, &usize)| {
                    let first = number as u32 % BUFFERS;
                    let lane = Lane::new(
                        (guest, &guests[peer]),
                        (&cq, &cqs[peer]),
                        depth,
                        self.options.size,
                        (id as u64, first),
                    );
                    (number, lane)
                };
                let lanes = numbers.iter().enumerate().map(lane).collect();
                groups.push(Group::new(cq, lanes, depth));
            }
        }
        groups
    }

    /// Number of players: the number of processors that workers do not use, minus 1; at least 1 and
    /// at most the number of workers.
    fn players(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let workers = self.shape.workers as usize;
        cores.saturating_sub(workers + 1).clamp(1, workers)
    }
}

impl Snapshot {
    fn new(counters: &PlayerCounters) -> Self {
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let process = clock_gettime(ClockId::ProcessCPUTime);
        let process = Duration::try_from(process).expect("a time since the process began");
        let players = counters.player_times.iter().map(load).sum();
        Self {
            at: Instant::now(),
            device_time: process - Duration::from_nanos(players) - own_time(),
            messages: counters.messages.iter().map(load).collect(),
        }
    }
}

/// Distributes groups to at most `players` players.
fn deal(groups: Vec<Group<'_>>, players: usize) -> Vec<Vec<Group<'_>>> {
    let mut dealt: Vec<Vec<_>> = (0..players.min(groups.len())).map(|_| Vec::new()).collect();
    for (index, group) in groups.into_iter().enumerate() {
        let player = index % dealt.len();
        dealt[player].push(group);
    }
    dealt
}

/// Memory that is charged to the devices, in bytes.
fn charged(vms: &[Vm]) -> u64 {
    vms.iter().map(|vm| vm.hca.status().memory.used).sum()
}
