// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Statistics of the workers, for the status.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use scheduler::Handovers;

/// Statistics of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Total time of the worker's rounds with work.
    pub busy: Duration,
    /// Cost of the worker's longest turn, in the unit of
    /// [`RuntimeStatus::turn_budget`](super::RuntimeStatus::turn_budget).
    pub longest_turn: u64,
    /// Time of the worker's longest round. A round has up to 8 turns; deadlines and watched QPs are
    /// checked once in a round.
    pub longest_round: Duration,
    /// Number of flows, mostly QPs, that the worker took over from other workers.
    pub steals: u64,
    /// Number of times that a thread with frames did work in place of the worker, which slept.
    pub stand_ins: u64,
}

/// The loads of all workers. Each worker updates its own entry; threads that are not workers share
/// entry 0.
#[derive(Debug)]
pub(super) struct WorkerLoads(Box<[CachePadded<Load>]>);

#[derive(Debug, Default)]
struct Load {
    /// Largest cost of a turn, in the unit of the turn budget.
    longest_turn: AtomicU64,
    /// The most that the work of a turn cost beyond the turn's charges.
    #[cfg(feature = "counting")]
    uncharged: AtomicU64,
    /// Longest time from the start of a round with work to the start of the next round, in
    /// nanoseconds.
    longest_round: AtomicU64,
    /// Total time of the rounds with work, in nanoseconds.
    busy: AtomicU64,
}

impl WorkerLoads {
    /// Zeroed loads of `workers` workers.
    pub(super) fn new(workers: usize) -> Self {
        Self((0..=workers).map(|_| CachePadded::default()).collect())
    }

    /// Records the cost of a turn. `shard` is the index of the thread's entry.
    #[inline]
    pub(super) fn note_turn(&self, shard: usize, cost: usize) {
        raise(&self.0[shard].longest_turn, cost as u64);
    }

    /// Records the charged cost of a turn, and the least cost of the work that it has done.
    #[cfg(feature = "counting")]
    pub(super) fn note_done(&self, shard: usize, charged: usize, done: usize) {
        raise(
            &self.0[shard].uncharged,
            done.saturating_sub(charged) as u64,
        );
    }

    /// The most that the work of a turn of any thread cost beyond the turn's charges.
    #[cfg(feature = "counting")]
    pub(super) fn uncharged(&self) -> u64 {
        let uncharged = self.0.iter().map(|load| &load.uncharged);
        let uncharged = uncharged.map(|cost| cost.load(Ordering::Relaxed));
        uncharged.max().unwrap_or(0)
    }

    /// Records a round with work, which took `time`. `shard` is the index of the worker's entry.
    #[inline]
    pub(super) fn note_round(&self, shard: usize, time: Duration) {
        // 64 bits of nanoseconds last for five centuries.
        let time = time.as_nanos() as u64;
        let load = &self.0[shard];
        raise(&load.longest_round, time);
        load.busy.fetch_add(time, Ordering::Relaxed);
    }

    /// Largest cost of a turn of any thread.
    pub(super) fn longest_turn(&self) -> u64 {
        let costs = self.0.iter().map(|load| &load.longest_turn);
        let costs = costs.map(|cost| cost.load(Ordering::Relaxed));
        costs.max().unwrap_or(0)
    }

    /// The status of each worker, in the order of worker numbers. `handovers` returns how often a
    /// worker's work was handed over.
    pub(super) fn of_workers(&self, handovers: impl Fn(usize) -> Handovers) -> Vec<WorkerStatus> {
        let nanoseconds = |time: &AtomicU64| Duration::from_nanos(time.load(Ordering::Relaxed));
        let workers = self.0.iter().skip(1);
        let statuses = workers.zip(0..).map(|(load, worker)| {
            let Handovers { steals, stand_ins } = handovers(worker);
            WorkerStatus {
                busy: nanoseconds(&load.busy),
                longest_turn: load.longest_turn.load(Ordering::Relaxed),
                longest_round: nanoseconds(&load.longest_round),
                steals,
                stand_ins,
            }
        });
        statuses.collect()
    }
}

/// Raises `longest` to `value` if `value` is larger. Otherwise nothing is written, so the cache
/// line stays shared.
#[inline]
fn raise(longest: &AtomicU64, value: u64) {
    if value > longest.load(Ordering::Relaxed) {
        longest.fetch_max(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_its_own() {
        let loads = WorkerLoads::new(2);
        loads.note_turn(0, 11);
        loads.note_turn(1, 5);
        loads.note_turn(2, 9);
        loads.note_turn(2, 7);
        loads.note_round(1, Duration::from_micros(3));
        loads.note_round(1, Duration::from_micros(2));
        let expected = [
            WorkerStatus {
                busy: Duration::from_micros(5),
                longest_turn: 5,
                longest_round: Duration::from_micros(3),
                ..WorkerStatus::default()
            },
            WorkerStatus {
                longest_turn: 9,
                ..WorkerStatus::default()
            },
        ];
        assert_eq!(loads.of_workers(|_| Handovers::default()), expected);
        assert_eq!(
            loads.longest_turn(),
            11,
            "a thread that is not a worker took it"
        );
    }

    #[cfg(feature = "counting")]
    #[test]
    fn work_that_costs_more_than_its_charge_is_told() {
        let loads = WorkerLoads::new(2);
        loads.note_done(1, 100, 90);
        assert_eq!(loads.uncharged(), 0);
        loads.note_done(1, 100, 130);
        loads.note_done(2, 100, 105);
        assert_eq!(loads.uncharged(), 30);
    }
}
