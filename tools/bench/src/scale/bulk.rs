// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Bulk QPs, and the players: threads that act as the guests' programs and keep the send queues
//! full.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use testkit::engine::Cq;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::WcStatus;
use virtio_rdma_ring::{CompletionConsumer, RingMemory};

use super::lane::Lane;
use crate::device::own_time;

/// Pause of a player that has found few completions, so that workers can use its processor.
const PAUSE: Duration = Duration::from_micros(50);
/// A poll finds few completions if it finds fewer than one per `LITTLE` outstanding work requests.
const LITTLE: u32 = 8;

/// QPs of one guest that share a CQ.
pub struct Group<'vm> {
    cq: Cq<'vm>,
    consumer: CompletionConsumer,
    /// Each lane with its number among all bulk QPs. The lane's index is the id of its work
    /// requests.
    lanes: Vec<(usize, Lane<'vm>)>,
    /// Number of polled completions of each lane.
    taken: Vec<u32>,
    depth: u32,
}

/// Counters of the players, which the measuring thread reads.
pub struct PlayerCounters {
    /// Number of messages of each bulk QP.
    pub messages: Vec<AtomicU64>,
    /// Processor time of each player in nanoseconds.
    pub player_times: Vec<AtomicU64>,
    /// Whether the players must end.
    pub stop: AtomicBool,
}

impl PlayerCounters {
    /// Counters that are zero.
    pub fn new(qps: usize, players: usize) -> Self {
        let zeroes = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            messages: zeroes(qps),
            player_times: zeroes(players),
            stop: AtomicBool::new(false),
        }
    }
}

impl<'vm> Group<'vm> {
    /// A group of QPs with `depth` outstanding work requests each.
    pub fn new(cq: Cq<'vm>, lanes: Vec<(usize, Lane<'vm>)>, depth: u32) -> Self {
        Self {
            consumer: CompletionConsumer::new(cq.ring.layout),
            taken: vec![0; lanes.len()],
            cq,
            lanes,
            depth,
        }
    }

    fn fill(&mut self) {
        for (_, lane) in &mut self.lanes {
            lane.post(self.depth);
        }
    }

    /// Polls completions and posts as many work requests. Returns their number.
    fn turn(&mut self, messages: &[AtomicU64]) -> u32 {
        let ring = &self.cq.ring;
        let mut all = 0;
        while let Some(position) = self.consumer.take(ring).expect("a sound CQ") {
            let mut bytes = [0; Cqe::SIZE];
            ring.read(ring.layout.slot(position), &mut bytes);
            let cqe = Cqe::from_bytes(&bytes);
            assert_eq!(cqe.status, WcStatus::Success.value(), "{cqe:?}");
            self.taken[cqe.wr_id as usize] += 1;
            all += 1;
        }
        if all == 0 {
            return 0;
        }
        self.consumer.publish(ring);
        for ((number, lane), taken) in self.lanes.iter_mut().zip(&mut self.taken) {
            if *taken > 0 {
                lane.complete(*taken);
                lane.post(*taken);
                // Only this thread writes the counter.
                let sum = messages[*number].load(Ordering::Relaxed) + u64::from(*taken);
                messages[*number].store(sum, Ordering::Relaxed);
                *taken = 0;
            }
        }
        all
    }
}

/// Acts as the programs of these QPs until `stop` is set.
pub fn play(mut groups: Vec<Group<'_>>, counters: &PlayerCounters, player: usize) {
    let lanes: usize = groups.iter().map(|group| group.lanes.len()).sum();
    let outstanding = lanes as u32 * groups.first().map_or(0, |group| group.depth);
    groups.iter_mut().for_each(Group::fill);
    while !counters.stop.load(Ordering::Relaxed) {
        let turns = groups.iter_mut();
        let done: u32 = turns.map(|group| group.turn(&counters.messages)).sum();
        counters.player_times[player].store(own_time().as_nanos() as u64, Ordering::Relaxed);
        if done < outstanding / LITTLE {
            sleep(PAUSE);
        }
    }
}
