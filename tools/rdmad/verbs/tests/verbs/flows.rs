// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Order of turns: small messages are sent before large ones, and idle workers steal work.

use std::time::Duration;

use roce::headers::{Body, Part, SendPart};
use roce::work::With;
use testkit::engine::*;
use verbs::{Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::{ArmKind, Doorbell};

use crate::services::numbered;

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

/// Posts `messages` large WRITEs to each of these pairs, and steps worker 0 until each pair has had
/// two turns, so that the scheduler treats it as bulk.
fn keep_busy(world: &World, bulk: &[Pair<'_>], messages: u64) {
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let (source, sink) = (a.mr(LARGE.into()), b.mr(LARGE.into()));
    for pair in bulk {
        let large = |id| {
            let wr = Wr::new(id, WrOpcode::RdmaWrite);
            wr.local(&source, 0, LARGE).remote(&sink, 0).bytes()
        };
        pair.qa.post_all(&Vec::from_iter((0..messages).map(large)));
        pair.qa.ring_doorbell(Doorbell::Sq);
    }
    while sent(world) < 2 * bulk.len() as u64 * u64::from(LARGE) {
        assert!(world.runtime.step(0));
    }
}

/// Bytes that VM 0 has sent on the direct path.
fn sent(world: &World) -> u64 {
    world.vms[0].hca.status().counters.direct_tx_bytes
}

/// Steps worker 0 until `is_done` returns true. Returns the number of turns of bulk QPs, and gives
/// up after `most` of them.
fn turns_until(world: &World, most: u64, is_done: impl Fn() -> bool) -> u64 {
    let mut turns = 0;
    while !is_done() && turns < most {
        let before = sent(world);
        assert!(world.runtime.step(0), "asleep before the end");
        turns += u64::from(sent(world) > before);
    }
    turns
}

/// Packets to a QP of VM 0 that does not exist.
fn stray_packets(world: &World, count: usize) -> Vec<Vec<u8>> {
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let body = Body::Uc(Part::Send(SendPart::Only(With::Nothing)));
    let headers = numbered(body, 0xffff, Qpn::new(9999), 0);
    vec![frame(b, a, &headers, b"data"); count]
}

/// Number of these CQs whose completion event VM 0 has received.
fn told(world: &World, pairs: &[Pair<'_>]) -> usize {
    let events = world.vms[0].sink.events.lock().unwrap();
    let is_told = |pair: &&Pair<'_>| {
        let event = (EventKind::Completion, pair.cq_a.cookie);
        events.iter().any(|sent| (sent.1, sent.2) == event)
    };
    pairs.iter().filter(is_told).count()
}

/// Received frames of a port have half of the port's turns, however many of its QPs are busy.
#[test]
fn frames_do_not_wait_for_each_bulk_qp() {
    for count in [8, 64] {
        let world = World::stepped(1, PathPolicy::Direct);
        let bulk = pairs(&world, count, &[0]);
        keep_busy(&world, &bulk, 12);
        let mac = world.vms[0].mac;
        world.net.inject_all(mac, &stray_packets(&world, 320));
        let turns = turns_until(&world, 1000, || world.net.waiting(mac) == 0);
        // A full turn has 64 frames.
        assert!(turns <= 12, "{turns} turns of {count} QPs");
    }
}

/// Doorbells of CQs wait neither for bulk QPs of their port nor for its frames.
#[test]
fn notifications_do_not_wait_for_bulk_work() {
    let world = World::stepped(1, PathPolicy::Direct);
    let mut idle = pairs(&world, 8, &[0]);
    for pair in &idle {
        pair.write(1);
    }
    world.rest(&[0]);
    let bulk = pairs(&world, 64, &[0]);
    keep_busy(&world, &bulk, 12);
    let mac = world.vms[0].mac;
    world.net.inject_all(mac, &stray_packets(&world, 1000));
    turns_until(&world, 2, || false);
    for pair in &mut idle {
        // A completion has arrived while the program armed the CQ, so the driver rings.
        assert!(pair.cq_a.arm_silently(ArmKind::Next));
        pair.cq_a.ring_doorbell();
    }
    let turns = turns_until(&world, 1000, || told(&world, &idle) == idle.len());
    assert!(turns <= 3, "{turns} turns before the last event");
}

/// CQs that ring at the same time are all told, although nothing else happens.
#[test]
fn cqs_that_ring_together_are_all_told() {
    // More than a turn of notifications has.
    const CQS: usize = 80;
    let world = World::stepped(1, PathPolicy::Direct);
    let pairs = pairs(&world, CQS, &[0]);
    for pair in &pairs {
        pair.write(1);
    }
    world.rest(&[0]);
    for pair in &pairs {
        assert!(pair.cq_a.arm_silently(ArmKind::Next));
        pair.cq_a.ring_doorbell();
    }
    let mut turns = 0;
    while told(&world, &pairs) < CQS {
        let before = told(&world, &pairs);
        assert!(world.runtime.step(0), "asleep before the end");
        turns += u32::from(told(&world, &pairs) > before);
    }
    assert_eq!(turns, 2);
}

/// A VM that rings doorbells all the time, of its CQs or of a QP without work, leaves bulk QPs of
/// other VMs their turns.
#[test]
fn doorbells_leave_bulk_qps_their_turns() {
    const STEPS: u32 = 1000;
    let world = World::stepped(1, PathPolicy::Direct);
    let bulk = pairs(&world, 4, &[0]);
    let cqs = [(); 2].map(|()| Cq::new(&world.vms[1], 64));
    let idle = Pair::new(&world);
    keep_busy(&world, &bulk, 12);
    let doorbells: [&dyn Fn(); 2] = [&|| cqs.iter().for_each(Cq::ring_doorbell), &|| {
        idle.qb.ring_doorbell(Doorbell::Sq)
    }];
    for ring in doorbells {
        for _ in 0..3 {
            let before = sent(&world);
            let rings = |_: &u32| {
                ring();
                assert!(world.runtime.step(0));
                sent(&world) == before
            };
            assert!((0..STEPS).take_while(rings).count() < STEPS as usize);
        }
    }
}

/// QPs that wait for room in the frame port get turns although those before them use none.
#[test]
fn room_for_frames_is_passed_on() {
    // More than get a turn together.
    const QPS: usize = 60;
    for destroyed in [40, 0] {
        let world = World::stepped(1, PathPolicy::Wire);
        let a = &world.vms[0];
        let options = Options::of(QpType::Ud);
        let vms = [a, &world.vms[1]];
        let pairs = Vec::from_iter((0..QPS).map(|_| Pair::between(vms, options, options)));
        world.rest(&[0]);
        let buffers = world.net.take_buffers(a.mac);
        for pair in &pairs {
            pair.qa.post(&pair.wr(1, WrOpcode::Send, 8));
        }
        world.rest(&[0]);
        let mut pairs = pairs;
        pairs.sort_by_key(|pair| pair.qa.qpn);
        let (gone, left) = pairs.split_at(destroyed);
        for pair in gone {
            pair.qa.destroy().unwrap();
        }
        drop(buffers);
        a.hca.frames_ready();
        world.rest(&[0]);
        for pair in left {
            let sent = pair.cq_a.poll().map(|cqe| cqe.wr_id);
            assert_eq!(sent, Some(1), "{destroyed} QPs are gone");
        }
    }
}

/// A frame buffer that becomes free between a QP's search for one and its registration for room is
/// not missed.
#[test]
fn room_that_comes_too_early_is_not_missed() {
    // The turn is given by the worker, or by the thread that rings the doorbell.
    for at_once in [false, true] {
        let config = RuntimeConfig {
            path: PathPolicy::Wire,
            at_once,
            ..stepped::config(1)
        };
        let world = World::with_config(2, config, Limits::default());
        let options = Options::of(QpType::Ud);
        let pair = Pair::with(&world, options, options);
        world.rest(&[0]);
        world.runtime.pass(Duration::from_millis(1));
        let buffers = world.net.take_buffers(pair.a.mac);
        *world.net.free_too_late.lock().unwrap() = buffers;
        pair.qa.post(&pair.wr(1, WrOpcode::Send, 8));
        let is_served = world.net.free_too_late.lock().unwrap().is_empty();
        assert_eq!(is_served, at_once);
        world.rest(&[0]);
        assert_eq!(pair.cq_a.poll().map(|cqe| cqe.wr_id), Some(1));
    }
}

/// QPs that wait for room get it together, as far as it goes.
#[test]
fn room_for_frames_is_for_many_qps() {
    const QPS: usize = 64;
    let world = World::stepped(1, PathPolicy::Wire);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let options = Options::of(QpType::Ud);
    let pairs = Vec::from_iter((0..QPS).map(|_| Pair::between([a, b], options, options)));
    world.rest(&[0]);
    let buffers = world.net.take_buffers(a.mac);
    for pair in &pairs {
        let mut wr = pair.wr(1, WrOpcode::Send, 8);
        if let Some(to) = &mut wr.to {
            // No port has this address, so nobody but the senders gets turns.
            to.av.dmac = mac(99);
        }
        pair.qa.post(&wr);
    }
    world.rest(&[0]);
    drop(buffers);
    let is_sent = |pair: &Pair<'_>| pair.cq_a.poll().is_some();
    let (mut steps, mut sent) = (0, 0);
    while sent < QPS {
        assert!(world.runtime.step(0), "asleep before the end");
        steps += 1;
        sent += pairs.iter().filter(|pair| is_sent(pair)).count();
    }
    // One turn each, one turn of the port for 16 of them, and the steps that begin and end rounds.
    assert!(steps < QPS + QPS / 2, "{steps}");
}

/// Packets of a peer in another process wait for few turns of a VM that is busy on the direct path,
/// however many of its QPs are.
#[test]
fn packets_arrive_beside_bulk_qps() {
    const LEN: u32 = 64 << 10;
    const MESSAGES: u64 = 4;
    for count in [8, 64, 256] {
        let world = World::stepped(1, PathPolicy::Direct);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let bulk = pairs(&world, count, &[0]);
        world.runtime.set_path(PathPolicy::Wire);
        let far = Pair::between([b, a], Options::default(), Options::default());
        world.rest(&[0]);
        keep_busy(&world, &bulk, 8);
        for id in 0..MESSAGES {
            far.qa.post(&far.wr(id, WrOpcode::RdmaWrite, LEN));
        }
        let done = std::cell::Cell::new(0);
        let turns = turns_until(&world, 2000, || {
            while far.cq_a.poll().is_some() {
                done.set(done.get() + 1);
            }
            done.get() == MESSAGES
        });
        assert!(turns <= 12, "{turns} turns of {count} QPs");
    }
}

/// A small message is sent within three turns, even if many QPs have large messages to send.
#[test]
fn a_small_message_waits_for_few_turns() {
    const MESSAGES: u64 = 8;
    let world = World::stepped(1, PathPolicy::Direct);
    let pairs = pairs(&world, PAIRS + 1, &[0]);
    let (sparse, bulk) = pairs.split_last().unwrap();
    keep_busy(&world, bulk, MESSAGES);
    for id in 0..20 {
        sparse.write(id);
        let mut turns = 0;
        while sparse.cq_a.poll().is_none() {
            let before = sent(&world);
            assert!(world.runtime.step(0), "asleep before the end");
            turns += u64::from(sent(&world) > before);
        }
        assert!((1..=3).contains(&turns), "{turns} turns");
    }
    let left = PAIRS as u64 * MESSAGES * u64::from(LARGE) - sent(&world);
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
    // The other ends have moved too, since turns of both ends exclude each other.
    pairs.iter().for_each(|pair| {
        let wr = Wr::new(3, WrOpcode::RdmaWrite).local(&pair.mb, 0, 8);
        pair.qb.post(&wr.remote(&pair.ma, 0));
    });
    world.rest(&[1]);
    pairs.iter().for_each(|pair| {
        pair.cq_b.expect(3, WcStatus::Success);
    });
    assert_eq!(steals(), taken, "the other ends are where they are");
}

/// A worker with more ready QPs than one wakes a worker that sleeps, even if the QPs have become
/// ready by its own timers.
#[test]
fn a_busy_worker_wakes_another_one() {
    let world = World::stepped(2, PathPolicy::Direct);
    let pairs = pairs(&world, PAIRS, &[0, 1]);
    for pair in &pairs {
        pair.qa.post(&pair.send(1, 8));
    }
    // Worker 0 takes all QPs over. They wait, since no receives are posted.
    world.rest(&[0]);
    world.rest(&[0, 1]);
    world.runtime.pass(Duration::from_millis(1));
    assert!(!world.runtime.step(1), "it has no QPs");
    // The round begins, and the first QP gets its turn.
    assert!(world.runtime.step(0) && world.runtime.step(0));
    assert!(world.runtime.step(1), "nobody was woken");
}
