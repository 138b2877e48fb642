// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The longest turns, for the status.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

/// Each worker notes its own; other threads share the first entry.
#[derive(Debug)]
pub(super) struct Longest(Box<[CachePadded<Maxima>]>);

#[derive(Debug, Default)]
struct Maxima {
    /// The greatest cost of a turn.
    cost: AtomicU64,
    /// The longest time, in nanoseconds, from one look at all devices to the next.
    round: AtomicU64,
}

impl Longest {
    /// None yet, for `workers` workers.
    pub(super) fn new(workers: usize) -> Self {
        Self((0..=workers).map(|_| CachePadded::default()).collect())
    }

    /// A turn of `shard` cost so much.
    #[inline]
    pub(super) fn note_turn(&self, shard: usize, cost: usize) {
        raise(&self.0[shard].cost, cost as u64);
    }

    /// A round of `shard` took so long.
    #[inline]
    pub(super) fn note_round(&self, shard: usize, time: Duration) {
        // Five centuries fit.
        raise(&self.0[shard].round, time.as_nanos() as u64);
    }

    /// The greatest cost of a turn and the longest round of all.
    pub(super) fn longest(&self) -> (u64, Duration) {
        let max = |of: fn(&Maxima) -> &AtomicU64| {
            let values = self
                .0
                .iter()
                .map(|maxima| of(maxima).load(Ordering::Relaxed));
            values.max().unwrap_or(0)
        };
        let round = max(|maxima| &maxima.round);
        (max(|maxima| &maxima.cost), Duration::from_nanos(round))
    }
}

/// The line stays shared by all that read it as long as nothing is longer.
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
    fn the_longest_of_all_workers() {
        let longest = Longest::new(2);
        longest.note_turn(1, 5);
        longest.note_turn(2, 9);
        longest.note_turn(2, 7);
        longest.note_round(1, Duration::from_micros(3));
        longest.note_round(0, Duration::from_micros(2));
        assert_eq!(longest.longest(), (9, Duration::from_micros(3)));
    }
}
