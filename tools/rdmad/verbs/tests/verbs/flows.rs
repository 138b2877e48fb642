// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Order of turns: small messages are sent before large ones, and idle workers steal work.

use verbs::PathPolicy;
use virtio_rdma_abi::ib::{QpState, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::Doorbell;

use crate::harness::*;

/// Number of pairs of QPs that send.
const PAIRS: usize = 32;
/// Bytes of a large message, which takes two turns.
const LARGE: u32 = 256 << 10;

/// Creates connected pairs of QPs in the two VMs, and lets these workers finish their work.
fn pairs<'vm>(world: &'vm World, count: usize, workers: &[usize]) -> Vec<Pair<'vm>> {
    let vms = [&world.vms[0], &world.vms[1]];
    let pair = |_| Pair::between(vms, Options::default(), Options::default());
    let pairs = Vec::from_iter((0..count).map(pair));
    for pair in &pairs {
        assert_eq!(pair.qa.state(), QpState::Rts);
    }
    world.rest(workers);
    pairs
}

/// A small message is sent within three turns, even if many QPs have large messages to send.
#[test]
fn a_small_message_waits_for_few_turns() {
    const MESSAGES: u64 = 8;
    let world = World::stepped(1, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let pairs = pairs(&world, PAIRS + 1, &[0]);
    let (sparse, bulk) = pairs.split_last().unwrap();
    let (source, sink) = (a.mr(LARGE.into()), b.mr(LARGE.into()));
    for pair in bulk {
        let large = |id| {
            let wr = Wr::new(id, WrOpcode::RdmaWrite);
            wr.local(&source, 0, LARGE).remote(&sink, 0).bytes()
        };
        pair.qa.post_all(&Vec::from_iter((0..MESSAGES).map(large)));
        pair.qa.ring_doorbell(Doorbell::Sq);
    }
    let sent = || a.device.status().counters.direct_tx_bytes;
    // Waits until each bulk QP has had two turns, so that the scheduler treats it as bulk.
    while sent() < 2 * PAIRS as u64 * u64::from(LARGE) {
        assert!(world.runtime.step(0));
    }
    for id in 0..20 {
        sparse.write(id);
        let mut turns = 0;
        while sparse.cq_a.poll().is_none() {
            let before = sent();
            assert!(world.runtime.step(0), "asleep before the end");
            turns += u64::from(sent() > before);
        }
        assert!((1..=3).contains(&turns), "{turns} turns");
    }
    let left = PAIRS as u64 * MESSAGES * u64::from(LARGE) - sent();
    assert!(
        left > 0,
        "the large messages were sent before the small ones"
    );
    // The large messages are sent too.
    world.rest(&[0]);
    for pair in bulk {
        (0..MESSAGES).for_each(|id| {
            pair.cq_a.expect(id, WcStatus::Success);
        });
    }
}

/// An endless stream of small messages does not block large messages.
#[test]
fn small_messages_leave_large_ones_their_turns() {
    let world = World::stepped(1, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let pairs = pairs(&world, PAIRS + 1, &[0]);
    let (large, small) = pairs.split_last().unwrap();
    let (source, sink) = (a.mr(LARGE.into()), b.mr(LARGE.into()));
    let wr = Wr::new(7, WrOpcode::RdmaWrite);
    large.qa.post(&wr.local(&source, 0, LARGE).remote(&sink, 0));
    for id in 0..100 {
        for pair in small {
            while pair.cq_a.poll().is_some() {}
            pair.write(id);
        }
        for _ in 0..PAIRS {
            world.runtime.step(0);
        }
        if let Some(cqe) = large.cq_a.poll() {
            assert_eq!(cqe.wr_id, 7);
            return;
        }
    }
    panic!("the large message was not sent");
}

/// An idle worker steals QPs that wait for another worker, and becomes their home.
#[test]
fn a_worker_without_work_takes_over() {
    let world = World::stepped(2, PathPolicy::Direct);
    let pairs = pairs(&world, PAIRS, &[0, 1]);
    let steals = || world.runtime.status().workers[1].steals;
    let before = steals();
    for id in 0..2 {
        pairs.iter().for_each(|pair| {
            pair.write(id);
        });
        // Worker 0 takes no steps, like a worker that does not get a CPU.
        world.rest(&[1]);
        for pair in &pairs {
            pair.cq_a.expect(id, WcStatus::Success);
        }
        let taken = steals() - before;
        assert!((1..PAIRS as u64).contains(&taken), "{taken} QPs of {PAIRS}");
    }
    let taken = steals();
    pairs.iter().for_each(|pair| {
        pair.write(2);
    });
    world.rest(&[1]);
    assert_eq!(steals(), taken, "they stay where they are");
}
