// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Fault injection: simulates the faults of a bad network, reproducibly by a seed.
//!
//! For each frame, the same number of random numbers is drawn from one generator, whatever the
//! faults. So the nth frame has the same faults in every run with the same seed and probabilities:
//!
//! | fault | effect |
//! |---|---|
//! | drop | the frame disappears; no other fault applies to it |
//! | corrupt | one bit after the Ethernet header is inverted |
//! | duplicate | a copy follows at once |
//! | reorder | the frame waits until 1 to [`REORDER_SPAN`] later frames have overtaken it, [`REORDER_LIMIT`] at most |
//! | delay | the frame waits 1 to [`DELAY_LIMIT`] milliseconds; a frame to be reordered is not delayed as well |
//!
//! At most [`HELD_LIMIT`] frames wait; later frames are sent on at once. Only the times vary
//! between runs with the same seed.

use std::str::FromStr;
use std::time::{Duration, Instant};

use roce::Frame;
use thiserror::Error;

/// Maximum number of frames that overtake a reordered frame.
pub const REORDER_SPAN: u64 = 8;
/// Longest time that a reordered frame waits to be overtaken.
pub const REORDER_LIMIT: Duration = Duration::from_millis(2);
/// Longest delay in milliseconds.
pub const DELAY_LIMIT: u64 = 10;
/// Maximum number of frames that are held back at a time.
pub const HELD_LIMIT: usize = 256;

const ETHERNET_HEADER: usize = 14;

/// Probabilities of faults, each from 0 to 1, and the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Probability that a frame disappears.
    pub drop: f64,
    /// Probability that a frame arrives twice.
    pub duplicate: f64,
    /// Probability that later frames overtake a frame.
    pub reorder: f64,
    /// Probability that a bit of a frame changes.
    pub corrupt: f64,
    /// Probability that a frame arrives late.
    pub delay: f64,
    /// Seed of the random numbers that determine the faults.
    pub seed: u64,
}

/// Why a text can't be parsed as a [`FaultPlan`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// This part does not have the form `NAME=VALUE`.
    #[error("{0:?} is not NAME=VALUE")]
    Form(String),
    /// No fault has this name.
    #[error("unknown fault {0:?}; there are drop, duplicate, reorder, corrupt, delay, and seed")]
    Name(String),
    /// The value is not a probability.
    #[error("{0:?} is not a probability from 0 to 1")]
    Probability(String),
    /// The value is not a seed.
    #[error("{0:?} is not a seed, a number from 0 to 2^64 - 1")]
    Seed(String),
}

impl FromStr for FaultPlan {
    type Err = ParseError;

    /// Parses a list such as `drop=0.01,seed=7`. Values that are not named are 0.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut plan = Self::default();
        for part in text.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| ParseError::Form(part.to_owned()))?;
            let probability = match name {
                "drop" => &mut plan.drop,
                "duplicate" => &mut plan.duplicate,
                "reorder" => &mut plan.reorder,
                "corrupt" => &mut plan.corrupt,
                "delay" => &mut plan.delay,
                "seed" => {
                    plan.seed = value
                        .parse()
                        .map_err(|_| ParseError::Seed(value.to_owned()))?;
                    continue;
                }
                _ => return Err(ParseError::Name(name.to_owned())),
            };
            *probability = value
                .parse()
                .ok()
                .filter(|value| (0.0..=1.0).contains(value))
                .ok_or_else(|| ParseError::Probability(value.to_owned()))?;
        }
        Ok(plan)
    }
}

/// A frame that is held back, and the switch's data about it.
#[derive(Debug)]
struct Held<T> {
    /// Number of passed frames at which this frame is released.
    after: u64,
    /// Time at which this frame is released at the latest.
    at: Instant,
    tag: T,
    frame: Frame,
}

/// Applies a plan to a sequence of frames. `T` is the switch's data about a frame.
#[derive(Debug)]
pub(crate) struct Injector<T> {
    plan: FaultPlan,
    rng: fastrand::Rng,
    passed: u64,
    held: Vec<Held<T>>,
}

impl<T: Copy> Injector<T> {
    pub(crate) fn new(plan: FaultPlan) -> Self {
        Self {
            plan,
            rng: fastrand::Rng::with_seed(plan.seed),
            passed: 0,
            held: Vec::with_capacity(HELD_LIMIT),
        }
    }

    /// Drops the waiting frames for whose tag `tags` returns true.
    pub(crate) fn forget(&mut self, tags: impl Fn(&T) -> bool) {
        self.held.retain(|held| !tags(&held.tag));
    }

    /// Applies the faults to a frame. Passes the frames whose delay is over to `emit`.
    pub(crate) fn pass(
        &mut self,
        tag: T,
        mut frame: Frame,
        now: Instant,
        emit: &mut impl FnMut(T, Frame),
    ) {
        let mut decide = |probability: f64| self.rng.f64() < probability;
        let drop = decide(self.plan.drop);
        let corrupt = decide(self.plan.corrupt);
        let duplicate = decide(self.plan.duplicate);
        let reorder = decide(self.plan.reorder);
        let delay = decide(self.plan.delay);
        let [bit, span, wait] = [(); 3].map(|()| self.rng.u64(..));
        self.passed += 1;
        if !drop {
            let body = frame.get_mut(ETHERNET_HEADER..).unwrap_or_default();
            if corrupt && !body.is_empty() {
                // A frame has less than 2^17 bits.
                let bit = (bit % (body.len() as u64 * 8)) as usize;
                body[bit / 8] ^= 1 << (bit % 8);
            }
            let copy = if duplicate { frame.duplicate() } else { None };
            if self.held.len() >= HELD_LIMIT {
                emit(tag, frame);
            } else if reorder {
                self.held.push(Held {
                    after: self.passed + 1 + span % REORDER_SPAN,
                    at: now + REORDER_LIMIT,
                    tag,
                    frame,
                });
            } else if delay {
                self.held.push(Held {
                    after: u64::MAX,
                    at: now + Duration::from_millis(1 + wait % DELAY_LIMIT),
                    tag,
                    frame,
                });
            } else {
                emit(tag, frame);
            }
            if let Some(copy) = copy {
                emit(tag, copy);
            }
        }
        self.release(now, emit);
    }

    /// Passes the frames that have waited long enough to `emit`.
    pub(crate) fn release(&mut self, now: Instant, emit: &mut impl FnMut(T, Frame)) {
        let mut at = 0;
        while at < self.held.len() {
            if self.held[at].after <= self.passed || self.held[at].at <= now {
                let held = self.held.remove(at);
                emit(held.tag, held.frame);
            } else {
                at += 1;
            }
        }
    }

    /// Time at which [`release`](Self::release) will have a frame to release, if any waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::FramePool;

    /// Sends `count` frames through an injector with the plan `text`. Each frame contains its
    /// number. Returns the numbers of the frames in the order of their arrival; the number of a
    /// corrupted frame is negated.
    fn fate(text: &str, count: u8) -> Vec<i32> {
        let pool = FramePool::new(1000);
        let mut injector = Injector::new(text.parse().unwrap());
        let (now, mut arrived) = (Instant::now(), Vec::new());
        let mut emit = |number: u8, frame: Frame| {
            let expected = [[0; 14].as_slice(), &[number; 6]].concat();
            let wrong: u32 = frame
                .iter()
                .zip(&expected)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert!(wrong <= 1 && frame[..14] == [0; 14]);
            arrived.push(i32::from(number) * if wrong == 0 { 1 } else { -1 });
        };
        for number in 1..=count {
            let mut frame = pool.take(20).unwrap();
            frame.fill(0);
            frame[14..].fill(number);
            injector.pass(number, frame, now, &mut emit);
        }
        injector.release(now + Duration::from_secs(1), &mut emit);
        assert_eq!(injector.deadline(), None);
        arrived
    }

    #[test]
    fn each_fault_does_what_it_says() {
        let all: Vec<i32> = (1..=100).collect();
        assert_eq!(fate("seed=1", 100), all);
        assert_eq!(fate("drop=1", 100), []);
        assert_eq!(
            fate("corrupt=1", 100),
            all.iter().map(|n| -n).collect::<Vec<_>>()
        );
        let doubled: Vec<i32> = all.iter().flat_map(|&n| [n, n]).collect();
        assert_eq!(fate("duplicate=1", 100), doubled);
        assert_eq!(fate("delay=1", 100).len(), 100);

        let kept = fate("drop=0.3,seed=3", 100);
        assert!((40..95).contains(&kept.len()) && kept.is_sorted());
        let moved = fate("reorder=0.2,seed=3", 100);
        assert!(!moved.is_sorted());
        for (at, &number) in moved.iter().enumerate() {
            assert!(
                at as i32 + 1 - number <= REORDER_SPAN as i32 + 1,
                "overtaken by too many"
            );
        }
        let mut sorted = moved;
        sorted.sort();
        assert_eq!(sorted, all);
    }

    #[test]
    fn a_seed_repeats() {
        let plan = "drop=0.1,duplicate=0.1,reorder=0.1,corrupt=0.1,delay=0.1";
        assert_eq!(
            fate(&format!("{plan},seed=7"), 200),
            fate(&format!("{plan},seed=7"), 200)
        );
        assert_ne!(
            fate(&format!("{plan},seed=7"), 200),
            fate(&format!("{plan},seed=8"), 200)
        );
    }

    #[test]
    fn what_is_held_is_bounded() {
        let pool = FramePool::new(1000);
        let mut injector = Injector::new("delay=1".parse().unwrap());
        let mut passed = 0;
        for _ in 0..HELD_LIMIT + 10 {
            injector.pass((), pool.take(20).unwrap(), Instant::now(), &mut |(), _| {
                passed += 1
            });
        }
        assert_eq!(injector.held.len() + passed, HELD_LIMIT + 10);
        assert!(injector.held.len() <= HELD_LIMIT && passed >= 10);
    }

    #[test]
    fn plans_are_parsed_or_refused() {
        let plan: FaultPlan = "drop=0.25,seed=18446744073709551615".parse().unwrap();
        assert_eq!(
            plan,
            FaultPlan {
                drop: 0.25,
                seed: u64::MAX,
                ..FaultPlan::default()
            }
        );
        for (text, reason) in [
            ("", "NAME=VALUE"),
            ("drop", "NAME=VALUE"),
            ("lose=1", "unknown fault"),
            ("drop=2", "probability"),
            ("drop=-0.1", "probability"),
            ("drop=NaN", "probability"),
            ("seed=-1", "seed"),
        ] {
            let error = text.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
