// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The age of the oldest of many frames that leave in any order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Frames that are added within this time of each other count as equally old.
pub(crate) const PRECISION: Duration = Duration::from_millis(1);

/// The times at which frames were added. The oldest is found without looking at others.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    /// Frames that were added together, in the order of time. The first and the last batch have
    /// frames.
    batches: VecDeque<Batch>,
    /// The number of the first batch.
    first: u64,
}

#[derive(Debug)]
struct Batch {
    /// When the first frame of the batch was added.
    since: Instant,
    /// Number of frames that have not left.
    frames: usize,
}

/// The age of a frame: the number of its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age(u64);

impl Ages {
    /// Adds a frame at `now`.
    pub(crate) fn add(&mut self, now: Instant) -> Age {
        match self.batches.back_mut() {
            Some(last) if now.saturating_duration_since(last.since) < PRECISION => last.frames += 1,
            _ => self.batches.push_back(Batch {
                since: now,
                frames: 1,
            }),
        }
        Age(self.first + self.batches.len() as u64 - 1)
    }

    /// Removes a frame of this age.
    pub(crate) fn remove(&mut self, Age(number): Age) {
        self.batches[(number - self.first) as usize].frames -= 1;
        let is_empty = |batch: &Batch| batch.frames == 0;
        while self.batches.front().is_some_and(is_empty) {
            self.batches.pop_front();
            self.first += 1;
        }
        while self.batches.back().is_some_and(is_empty) {
            self.batches.pop_back();
        }
    }

    /// When the oldest frame was added, or up to [`PRECISION`] before.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.batches.front().map(|batch| batch.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oldest frame is known however frames come and go.
    #[test]
    fn the_oldest_frame_is_known() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut now = Instant::now();
        let (mut ages, mut frames) = (Ages::default(), Vec::new());
        for round in 0..20_000 {
            now += PRECISION * random.u32(0..3) / 2;
            // Frames accumulate and leave by turns.
            if random.u32(0..10) < 3 + round / 2000 % 2 * 4 || frames.is_empty() {
                frames.push((now, ages.add(now)));
            } else {
                let (_, age) = frames.swap_remove(random.usize(0..frames.len()));
                ages.remove(age);
            }
            let oldest = frames.iter().map(|(since, _)| *since).min();
            let told = ages.oldest();
            assert_eq!(told.is_some(), oldest.is_some());
            let early = oldest.zip(told).map(|(oldest, told)| oldest - told);
            assert!(early.is_none_or(|early| early < PRECISION), "{early:?}");
        }
    }

    #[test]
    fn batches_without_frames_do_not_accumulate() {
        let start = Instant::now();
        let mut ages = Ages::default();
        let oldest = ages.add(start);
        for round in 1..1000 {
            let age = ages.add(start + round * PRECISION);
            ages.remove(age);
        }
        assert_eq!((ages.batches.len(), ages.oldest()), (1, Some(start)));
        ages.remove(oldest);
        assert_eq!(ages.oldest(), None);
    }
}
