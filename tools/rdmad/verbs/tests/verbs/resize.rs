// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Resizing of CQs, which moves them to other rings.

use testkit::engine::*;
use verbs::{Limits, PathPolicy};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{AsyncEvent, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::wire::Wire;

use crate::events::qp;

const EINVAL: u8 = 22;
const EOPNOTSUPP: u8 = 95;

fn write(pair: &Pair<'_>, id: u64) {
    pair.qa.post(&pair.wr(id, WrOpcode::RdmaWrite, 8));
}

/// Waits until the device has written `count` completions, without polling them.
fn await_completions(pair: &Pair<'_>, count: u32) {
    let ring = &pair.cq_a.ring;
    wait("completions", || (ring.device() == count).then_some(()));
}

// abi
#[test]
fn completions_on_either_side_of_a_move_keep_their_order() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let mut pair = Pair::new(&world);
        let mut next = 0;
        for (slots, cqe) in [(128, 100), (16, 16), (32_768, 32_766), (8, 7), (64, 64)] {
            let old = next;
            while next < old + 7 {
                write(&pair, next);
                next += 1;
            }
            await_completions(&pair, 7);
            let left = pair.cq_a.resize(slots, cqe).unwrap();
            let ids: Vec<u64> = left.iter().map(|cqe| cqe.wr_id).collect();
            assert_eq!(ids, (old..old + 7).collect::<Vec<_>>());
            assert_eq!(
                pair.cq_a.resize(4, 5).err(),
                Some(EINVAL),
                "more entries than slots"
            );
            assert!(pair.cq_a.resize(64, 64).unwrap().is_empty());
        }
        write(&pair, 99);
        pair.cq_a.expect(99, WcStatus::Success);
    });
}

// abi
#[test]
fn moves_under_traffic_lose_nothing() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let mut pair = Pair::new(&world);
        let (mut posted, mut polled) = (0, 0);
        for round in 0..200u32 {
            while posted < polled + 30 {
                write(&pair, posted);
                posted += 1;
            }
            let slots = [32, 64, 256][round as usize % 3];
            let left = pair.cq_a.resize(slots, slots).unwrap();
            for cqe in left {
                assert_eq!(cqe.wr_id, polled);
                polled += 1;
            }
            if round % 4 == 0 {
                while polled < posted {
                    pair.cq_a.expect(polled, WcStatus::Success);
                    polled += 1;
                }
            }
        }
    });
}

// abi
#[test]
fn the_event_that_was_asked_for_comes_after_a_move() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let mut pair = Pair::new(&world);
        let cookie = pair.cq_a.cookie;
        for (round, slots) in [(0, 128), (1, 16), (2, 64)] {
            pair.cq_a.arm(ArmKind::Next);
            assert!(pair.cq_a.resize(slots, slots).unwrap().is_empty());
            assert!(pair.a.sink.is_empty());
            write(&pair, round);
            pair.a.sink.expect(EventKind::Completion, cookie);
            pair.cq_a.event_received();
            pair.cq_a.expect(round, WcStatus::Success);
        }
        // An event that was raised before the move is not raised again.
        pair.cq_a.arm(ArmKind::Next);
        write(&pair, 9);
        pair.a.sink.expect(EventKind::Completion, cookie);
        assert_eq!(pair.cq_a.resize(128, 128).unwrap().len(), 1);
        write(&pair, 10);
        pair.cq_a.expect(10, WcStatus::Success);
        assert!(pair.a.sink.is_empty());
    });
}

// abi
#[test]
fn what_does_not_fit_is_refused() {
    let limits = Limits {
        max_cqe: 200,
        ..Limits::default()
    };
    let world = World::with_limits(2, PathPolicy::Direct, limits);
    let mut pair = Pair::new(&world);
    for id in 0..10 {
        write(&pair, id);
    }
    await_completions(&pair, 10);
    assert_eq!(pair.cq_a.resize(16, 9).err(), Some(EINVAL), "10 not polled");
    assert_eq!(pair.cq_a.resize(16, 10).unwrap().len(), 10);
    assert_eq!(pair.cq_a.resize(16, 0).err(), Some(EINVAL));
    assert_eq!(pair.cq_a.resize(256, 201).err(), Some(EINVAL));
    let nothing = CmdResizeCq {
        cqn: Cqn::new(999),
        cqe: 1,
        ..CmdResizeCq::ZERO
    };
    assert_eq!(pair.a.call(nothing), Err(EINVAL));
    pair.a.hca.set_features(Features::of(&[Feature::RingAddr]));
    assert_eq!(pair.cq_a.resize(16, 16).err(), Some(EOPNOTSUPP));
}

// abi: R-582
#[test]
fn a_dead_cq_does_not_move() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 16);
    let qp = qp(vm, &cq);
    for id in 0..17 {
        qp.post(&Wr::new(id, WrOpcode::RdmaWrite));
    }
    let dead = EventKind::Async(AsyncEvent::CqErr);
    vm.sink.expect(dead, cq.cookie);
    // All CQEs are marked as polled, so the new ring has room. The resize is refused because the CQ
    // is dead.
    cq.ring.set_owner(16);
    assert_eq!(cq.begin_resize(32, 32).err(), Some(EINVAL));
}
