// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Two endpoints, a channel between them with random faults that depend on a seed, and a virtual
//! clock.

use std::time::{Duration, Instant};

use super::endpoint::{Endpoint, Settings};

/// SplitMix64, a pseudo-random number generator.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True with a probability of `percent` percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Probability of each fault of the channel, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub drop: u64,
    pub duplicate: u64,
    pub reorder: u64,
    pub corrupt: u64,
}

/// Default latency of the channel.
const LATENCY: Duration = Duration::from_micros(20);

struct InFlight {
    at: Instant,
    to: usize,
    frame: Vec<u8>,
}

/// A simulated connection.
pub struct Sim {
    pub ends: [Endpoint; 2],
    pub now: Instant,
    pub start: Instant,
    pub rng: Rng,
    pub faults: Faults,
    /// Latency from one end to the other.
    pub latency: Duration,
    /// Budget of a `transmit` call in bytes.
    pub budget: usize,
    /// Every frame that was sent, with the index of its sender. Lost frames are included.
    pub log: Vec<(usize, Vec<u8>)>,
    in_flight: Vec<InFlight>,
}

impl Sim {
    pub fn new(memory: usize, settings: Settings, faults: Faults, seed: u64) -> Self {
        let now = Instant::now();
        let mut rng = Rng(seed);
        let mut ends = [
            Endpoint::new(1, 2, memory, settings),
            Endpoint::new(2, 1, memory, settings),
        ];
        ends.iter_mut()
            .for_each(|end| rng.fill(&mut end.world.memory));
        Self {
            ends,
            now,
            start: now,
            rng,
            faults,
            latency: LATENCY,
            budget: 16 << 10,
            log: Vec::new(),
            in_flight: Vec::new(),
        }
    }

    fn put(&mut self, to: usize, mut frame: Vec<u8>) {
        if self.rng.chance(self.faults.drop) {
            return;
        }
        if self.rng.chance(self.faults.corrupt) {
            let at = self.rng.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << self.rng.below(8);
        }
        let copies = 1 + usize::from(self.rng.chance(self.faults.duplicate));
        for _ in 0..copies {
            let late = if self.rng.chance(self.faults.reorder) {
                self.rng.below(100)
            } else {
                0
            };
            let at = self.now + self.latency + Duration::from_micros(late);
            self.in_flight.push(InFlight {
                at,
                to,
                frame: frame.clone(),
            });
        }
    }

    /// Takes one step: lets both ends send, then delivers frames that are due or advances the
    /// clock. Returns false if nothing happened and no frame or timer is pending.
    pub fn step(&mut self) -> bool {
        let mut sent = false;
        for from in 0..2 {
            self.ends[from].transmit(self.budget, self.now);
            while let Some(frame) = self.ends[from].world.out.pop_front() {
                sent = true;
                self.log.push((from, frame.to_vec()));
                self.put(1 - from, frame.to_vec());
            }
        }
        let arrival = self.in_flight.iter().map(|frame| frame.at).min();
        let timer = self
            .ends
            .iter()
            .filter_map(|end| end.requester.next_deadline())
            .min();
        let Some(next) = arrival.into_iter().chain(timer).min() else {
            return sent;
        };
        if next > self.now {
            if sent {
                // Advances the clock by 2 µs at most, so that the budget does not limit the rate.
                self.now = next.min(self.now + Duration::from_micros(2));
                return true;
            }
            self.now = next;
        }
        let mut due = Vec::new();
        let now = self.now;
        self.in_flight.retain_mut(|frame| {
            let is_due = frame.at <= now;
            if is_due {
                due.push((frame.to, std::mem::take(&mut frame.frame)));
            }
            !is_due
        });
        for (to, frame) in due {
            self.ends[to].deliver(&frame, self.now);
        }
        for end in &mut self.ends {
            end.tick(self.now);
        }
        true
    }

    /// Takes steps until no frame or timer is pending.
    pub fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 2_000_000, "the connection makes no progress");
        }
    }
}
