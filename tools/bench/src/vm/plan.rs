// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Measurements between two virtual machines, in the order of one round.

use super::perftest::Verb;

/// A measurement, which is made once per round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Case {
    /// A stream in one direction, shared by QPs.
    Stream {
        /// The verb that moves the data.
        verb: Verb,
        /// The device in use.
        device: Which,
        /// Bytes of a message.
        size: u64,
        /// Number of QPs that share the stream.
        qps: u64,
        /// The memory of the programs.
        memory: Memory,
    },
    RoundTrips {
        /// The verb that moves the messages.
        verb: Verb,
        /// The device in use.
        device: Which,
        /// Bytes of a message.
        size: u64,
        /// Whether both sides sleep until a message arrives.
        events: bool,
    },
    /// A TCP connection.
    Tcp {
        /// Bytes that a call writes.
        size: u64,
    },
}

/// The device that a measurement uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// virtio-rdma.
    Own,
    Rxe,
}

/// How the kernel allocates the programs' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Page by page, the default.
    Pages,
    /// In large folios.
    Folios,
}

/// Both devices, virtio-rdma first.
const BOTH: [Which; 2] = [Which::Own, Which::Rxe];

/// The extent of the measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Message sizes of streams.
    pub sizes: Vec<u64>,
    /// The message sizes in `sizes` for which virtio-rdma is measured once more, with the programs'
    /// memory in large folios.
    pub in_folios: Vec<u64>,
    /// Message sizes of round trips.
    pub latencies: Vec<u64>,
    /// Numbers of QPs that share a stream of small messages.
    pub qps: Vec<u64>,
}

/// Bytes of a message in measurements of the message rate.
pub const SMALL: u64 = 64;

impl Extent {
    /// The default: the measurements for the goals, and enough sizes for a curve.
    pub fn coarse() -> Self {
        Self {
            sizes: vec![2, 4 << 10, 64 << 10, 256 << 10, 8 << 20],
            in_folios: vec![256 << 10, 8 << 20],
            latencies: vec![2, 64 << 10],
            qps: vec![1, 8, 64],
        }
    }

    /// The measurements for the goals, and little else.
    pub fn brief() -> Self {
        Self {
            sizes: vec![2, 64 << 10, 1 << 20],
            in_folios: Vec::new(),
            latencies: vec![2],
            qps: vec![1],
        }
    }

    /// Every power of two.
    pub fn full() -> Self {
        let sizes: Vec<_> = (1..=23).map(|shift| 1 << shift).collect();
        Self {
            latencies: sizes.clone(),
            in_folios: sizes
                .iter()
                .copied()
                .filter(|size| *size >= 256 << 10)
                .collect(),
            sizes,
            qps: (0..=6).map(|shift| 1 << shift).collect(),
        }
    }

    /// One size, to see that everything works.
    pub fn quick() -> Self {
        Self {
            sizes: vec![64 << 10],
            in_folios: Vec::new(),
            latencies: vec![2],
            qps: vec![1],
        }
    }

    /// The measurements of a round. Cases to compare are adjacent.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &size in &self.sizes {
            for verb in [Verb::Write, Verb::Read] {
                let stream = |device, memory| Case::Stream {
                    verb,
                    device,
                    size,
                    qps: 1,
                    memory,
                };
                cases.extend(BOTH.map(|device| stream(device, Memory::Pages)));
                if self.in_folios.contains(&size) {
                    cases.push(stream(Which::Own, Memory::Folios));
                }
            }
            cases.push(Case::Tcp { size });
        }
        for &qps in &self.qps {
            let streams = BOTH.map(|device| Case::Stream {
                verb: Verb::Write,
                device,
                size: SMALL,
                qps,
                memory: Memory::Pages,
            });
            // With one QP, the case may be included in `sizes` already.
            if !cases.contains(&streams[0]) {
                cases.extend(streams);
            }
        }
        for &size in &self.latencies {
            let ways = [
                (Verb::Write, false),
                (Verb::Send, false),
                (Verb::Send, true),
            ];
            for (verb, events) in ways {
                cases.extend(BOTH.map(|device| Case::RoundTrips {
                    verb,
                    device,
                    size,
                    events,
                }));
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_case_comes_twice() {
        for extent in [
            Extent::quick(),
            Extent::brief(),
            Extent::coarse(),
            Extent::full(),
        ] {
            let cases = extent.cases();
            let different: std::collections::HashSet<_> = cases.iter().collect();
            assert_eq!(different.len(), cases.len());
        }
    }

    #[test]
    fn the_default_has_what_goals_ask_for() {
        let extent = Extent::coarse();
        for size in [64 << 10, 256 << 10, 8 << 20] {
            assert!(extent.sizes.contains(&size));
        }
        assert!(extent.latencies.contains(&2) && extent.qps.contains(&1));
    }
}
