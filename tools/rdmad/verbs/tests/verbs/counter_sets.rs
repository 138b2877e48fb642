// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counter sets.

use std::sync::atomic::Ordering;

use roce::headers::{Bth, Headers, RcResponse};
use roce::Psn;
use testkit::engine::*;
use verbs::{Limits, PathPolicy};
use virtio_rdma_abi::config::{CounterSetConfig, COUNTER_SET_CONFIG_OFFSET};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::{CounterSetNumber, Qpn};
use virtio_rdma_abi::wire::Wire;

use crate::commands::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};

const NONE: CounterSetNumber = CounterSetNumber::NONE;

fn world(path: PathPolicy) -> World {
    with_limits(path, Limits::default())
}

fn with_limits(path: PathPolicy, limits: Limits) -> World {
    let world = World::with_limits(2, path, limits);
    negotiate(&world);
    world
}

fn negotiate(world: &World) {
    world.negotiate(&[Feature::Counters, Feature::CounterSets, Feature::RateLimit]);
}

fn create(vm: &Vm) -> Result<CounterSetNumber, u8> {
    vm.call(CmdCreateCounterSet { port: 1 })
        .map(|made| made.csn)
}

fn destroy(vm: &Vm, csn: CounterSetNumber) -> Result<(), u8> {
    vm.call(CmdDestroyCounterSet { csn }).map(|_| ())
}

fn bind(qp: &Qp<'_>, csn: CounterSetNumber) -> Result<(), u8> {
    let qpn = qp.qpn;
    qp.vm.call(CmdBindCounterSet { qpn, csn }).map(|_| ())
}

fn query(vm: &Vm, csn: CounterSetNumber) -> RspQueryCounters {
    vm.call(CmdQueryCounterSet { csn }).unwrap()
}

/// A new counter set to which `qp` is bound.
fn set_of(qp: &Qp<'_>) -> CounterSetNumber {
    let csn = create(qp.vm).unwrap();
    bind(qp, csn).unwrap();
    csn
}

/// The fields that a counter set may count.
fn of_qps(counters: RspQueryCounters) -> RspQueryCounters {
    RspQueryCounters {
        bad_packets: 0,
        pkey_violations: 0,
        qkey_violations: 0,
        doorbells: 0,
        completion_events: 0,
        ..counters
    }
}

/// The sums of two sets of counters.
fn sum(one: RspQueryCounters, other: RspQueryCounters) -> [u64; RspQueryCounters::NAMES.len()] {
    let (one, other) = (one.values(), other.values());
    std::array::from_fn(|index| one[index] + other[index])
}

fn write(pair: &Pair<'_>, id: u64, len: u32) {
    pair.qa.post(&pair.wr(id, WrOpcode::RdmaWrite, len));
    pair.cq_a.expect(id, WcStatus::Success);
}

/// Bytes that a QP has sent, on either path.
fn sent(counters: &RspQueryCounters) -> u64 {
    counters.tx_bytes + counters.direct_tx_bytes
}

/// Bytes that a QP has received, on either path.
fn received(counters: &RspQueryCounters) -> u64 {
    counters.rx_bytes + counters.direct_rx_bytes
}

#[test]
fn a_set_counts_the_work_of_its_qps_alone() {
    const LEN: u32 = 5000;
    on_both_paths(|path| {
        let world = world(path);
        let [bound, other] = [(); 2].map(|()| Pair::new(&world));
        let (a, b) = (bound.a, bound.b);
        // abi: R-1204
        let [csa, csb] = [&bound.qa, &bound.qb].map(set_of);
        write(&other, 1, LEN);
        // abi: R-1206
        assert_eq!(query(a, csa), RspQueryCounters::ZERO);
        let before = query(a, NONE);
        assert!(sent(&before) >= u64::from(LEN));

        write(&bound, 2, LEN);
        bound.qa.post(&bound.wr(3, WrOpcode::RdmaRead, LEN));
        bound.cq_a.expect(3, WcStatus::Success);
        // abi: R-1205
        let [of_a, of_b] = [query(a, csa), query(b, csb)];
        match path {
            PathPolicy::Direct => {
                assert_eq!((of_a.direct_tx_messages, of_b.direct_rx_messages), (2, 2));
                for side in [&of_a, &of_b] {
                    assert_eq!((sent(side), received(side)), (LEN.into(), LEN.into()));
                }
            }
            PathPolicy::Wire => {
                // Five packets for the WRITE, and one READ request.
                assert_eq!(of_a.tx_packets - of_a.retransmitted_packets, 6);
                assert!(sent(&of_a) > LEN.into() && received(&of_a) > LEN.into());
                assert_eq!(
                    (sent(&of_a), received(&of_a)),
                    (received(&of_b), sent(&of_b))
                );
            }
        }
        let after = query(a, NONE);
        // abi: R-1216
        assert_eq!(of_qps(after), of_qps(before), "not counted twice");
        // abi: R-1215
        assert_eq!(a.counters().values(), sum(after, of_a));

        // The set outlives its QP, and its counts outlive the set.
        bound.qa.destroy().unwrap();
        // abi: R-1211
        assert_eq!(query(a, csa), of_a);
        let total = a.counters();
        destroy(a, csa).unwrap();
        // abi: R-1215
        assert_eq!(a.counters(), total);
        // abi: R-1216
        assert_eq!(query(a, NONE), after);
        assert_eq!(a.call(CmdQueryCounterSet { csn: csa }).err(), Some(EINVAL));
    });
}

/// While all QPs of a port are bound, the port itself counts none of their events.
// abi: R-1210, R-1213, R-1214
#[test]
fn a_set_counts_every_event_of_its_qps() {
    on_both_paths(|path| {
        let world = world(path);
        let options = Options {
            // Eight times 34 ms: on a busy machine, a worker may be late by some.
            timeout: 13,
            retry_cnt: 7,
            ..Options::default()
        };
        let [pair, failing] = [(); 2].map(|()| Pair::with(&world, options, options));
        let datagrams = Pair::with(&world, Options::of(QpType::Ud), Options::of(QpType::Ud));
        let (a, b) = (pair.a, pair.b);
        let [csa, csb] = [a, b].map(|vm| create(vm).unwrap());
        for pair in [&pair, &failing, &datagrams] {
            bind(&pair.qa, csa).unwrap();
            bind(&pair.qb, csb).unwrap();
        }
        let rate = CmdSetRateLimit {
            qpn: pair.qa.qpn,
            rate_limit: 10_000_000,
            ..CmdSetRateLimit::ZERO
        };
        a.call(rate).unwrap();
        write(&pair, 1, 20_000);
        // The SEND finds no receive at first.
        pair.qa.post(&pair.send(2, 100));
        wait("an RNR NAK", || {
            (query(a, csa).rnr_naks_received > 0).then_some(())
        });
        pair.qb.post_recv(7, &[sge(&pair.mb, 0, 100)]);
        pair.cq_a.expect(2, WcStatus::Success);
        datagrams.qb.post_recv(8, &[sge(&datagrams.mb, 0, 1000)]);
        datagrams.qa.post(&datagrams.send(3, 100));
        datagrams.cq_a.expect(3, WcStatus::Success);
        datagrams.cq_b.expect(8, WcStatus::Success);
        if path == PathPolicy::Wire {
            let bth = Bth::new(0xffff, pair.qb.qpn, Psn::new(0));
            let headers = Headers::new(bth, RcResponse::Congestion);
            world.net.inject(b.mac, &frame(a, b, &headers, &[]));
            wait("a notification", || {
                (query(b, csb).notifications_received > 0).then_some(())
            });
            world.net.lose_one_in.store(20, Ordering::Relaxed);
            for id in 10..40 {
                write(&pair, id, 20_000);
            }
            world.net.lose_one_in.store(0, Ordering::Relaxed);
            let [of_a, of_b] = [query(a, csa), query(b, csb)];
            assert!(of_a.retransmitted_packets > 0 && of_b.out_of_sequence > 0);
        }
        let mut bad = failing.wr(4, WrOpcode::RdmaWrite, 100);
        bad.remote.rkey ^= 1;
        failing.qa.post(&bad);
        failing.cq_a.expect(4, WcStatus::RemAccessErr);
        pair.qb.destroy().unwrap();
        pair.qa.post(&pair.wr(5, WrOpcode::RdmaWrite, 100));
        pair.cq_a.expect(5, WcStatus::RetryExcErr);
        wait("a NAK", || (query(b, csb).naks_sent > 0).then_some(()));

        let [of_a, of_b] = [query(a, csa), query(b, csb)];
        assert!(of_a.naks_received > 0 && of_b.rkey_violations == 1);
        assert!(of_a.timeouts >= 2 && of_a.paced_bytes > 20_000 && of_b.rnr_naks_sent > 0);
        for (vm, csn) in [(a, csa), (b, csb)] {
            assert_eq!(of_qps(query(vm, csn)), query(vm, csn));
        }
        assert_eq!(of_qps(query(a, NONE)), RspQueryCounters::ZERO);
        // On the wire the port counts packets to the destroyed QP.
        let port = query(b, NONE);
        let expected = RspQueryCounters {
            rx_packets: port.rx_packets,
            rx_bytes: port.rx_bytes,
            ..RspQueryCounters::ZERO
        };
        assert_eq!(of_qps(port), expected);
    });
}

// abi: R-1209, R-1210, R-1211
#[test]
fn a_qp_moves_to_another_set_in_any_state() {
    on_both_paths(|path| {
        let world = world(path);
        let pair = Pair::new(&world);
        let vm = pair.a;
        let fresh = Qp::new(vm, &pair.cq_a, &pair.cq_a, Options::default());
        let [one, two] = [(); 2].map(|()| create(vm).unwrap());
        bind(&fresh, one).unwrap();
        bind(&pair.qa, one).unwrap();
        write(&pair, 1, 1000);
        bind(&pair.qa, two).unwrap();
        let of_one = query(vm, one);
        write(&pair, 2, 3000);
        let of_two = query(vm, two);
        bind(&pair.qa, NONE).unwrap();
        write(&pair, 3, 5000);
        assert_eq!((query(vm, one), query(vm, two)), (of_one, of_two));
        assert!((1000..3000).contains(&sent(&of_one)) && (3000..5000).contains(&sent(&of_two)));
        assert!(sent(&query(vm, NONE)) >= 5000);
    });
}

// abi, R-1207, R-1212
#[test]
fn a_set_is_busy_while_qps_are_bound_to_it() {
    let world = world(PathPolicy::Direct);
    let [one, two] = [(); 2].map(|()| Pair::new(&world));
    let vm = one.a;
    let csn = set_of(&one.qa);
    bind(&two.qa, csn).unwrap();
    // A QP is bound once, however often the driver says so.
    bind(&two.qa, csn).unwrap();
    assert_eq!(destroy(vm, csn), Err(EBUSY));
    bind(&one.qa, NONE).unwrap();
    assert_eq!(destroy(vm, csn), Err(EBUSY));
    two.qa.destroy().unwrap();
    destroy(vm, csn).unwrap();
    assert_eq!(destroy(vm, csn), Err(EINVAL));
    assert_eq!(bind(&one.qa, csn), Err(EINVAL));
    assert_eq!(bind(&two.qa, NONE), Err(EINVAL), "a destroyed QP");
}

// abi: R-1202, R-1203, R-1207
#[test]
fn bad_numbers_are_refused() {
    let world = world(PathPolicy::Direct);
    let pair = Pair::new(&world);
    let vm = pair.a;
    for port in [0, 2, 255] {
        let request = CmdCreateCounterSet { port };
        assert_eq!(vm.call(request).err(), Some(EINVAL));
    }
    let csn = set_of(&pair.qa);
    let foreign = create(pair.b).unwrap();
    assert_ne!(csn, NONE);
    for qpn in [0, u32::MAX].map(Qpn::new) {
        let request = CmdBindCounterSet { qpn, csn };
        assert_eq!(vm.call(request).err(), Some(EINVAL));
    }
    let max = Limits::default().max_counter_sets;
    let others = [max + 1, u32::MAX].map(CounterSetNumber::new);
    for csn in others
        .into_iter()
        .chain([foreign].into_iter().filter(|&other| other != csn))
    {
        assert_eq!(bind(&pair.qa, csn), Err(EINVAL));
        assert_eq!(destroy(vm, csn), Err(EINVAL));
        assert_eq!(vm.call(CmdQueryCounterSet { csn }).err(), Some(EINVAL));
    }
    assert_eq!(destroy(vm, NONE), Err(EINVAL));
    // The QP stays bound after all refusals.
    write(&pair, 1, 100);
    assert_eq!(query(vm, csn).direct_tx_messages, 1);
}

#[test]
fn sets_are_limited_and_charged() {
    let limits = Limits {
        max_counter_sets: 3,
        ..Limits::default()
    };
    let world = with_limits(PathPolicy::Direct, limits);
    let vm = &world.vms[0];
    let space = vm.hca.config_space();
    let config = CounterSetConfig::decode(&space[COUNTER_SET_CONFIG_OFFSET..]).unwrap();
    // abi: R-1200, R-1201
    assert_eq!(config.max_counter_sets, 3);
    let used = || vm.hca.status().memory.used;
    let before = used();
    // abi: R-83
    let mut sets = [(); 3].map(|()| create(vm).unwrap());
    // abi: R-84
    assert_eq!(create(vm), Err(ENOMEM));
    assert!(used() > before);
    sets.sort();
    // abi: R-1208
    assert_eq!(sets, [1, 2, 3].map(CounterSetNumber::new));
    destroy(vm, sets[1]).unwrap();
    assert_eq!(create(vm), Ok(sets[1]));
    for csn in sets {
        destroy(vm, csn).unwrap();
    }
    // abi: R-119
    assert_eq!(used(), before);
}

// abi, R-1216
#[test]
fn a_reset_destroys_sets_and_keeps_the_counts_of_the_port() {
    let world = world(PathPolicy::Direct);
    let pair = Pair::new(&world);
    let vm = pair.a;
    let [one, two] = [(); 2].map(|()| create(vm).unwrap());
    bind(&pair.qa, one).unwrap();
    write(&pair, 1, 1000);
    bind(&pair.qa, two).unwrap();
    destroy(vm, one).unwrap();
    write(&pair, 2, 1000);
    let total = vm.counters();
    assert_eq!(sent(&total), 2000);
    vm.hca.reset();
    negotiate(&world);
    assert_eq!(of_qps(vm.counters()), of_qps(total));
    assert_eq!(vm.counters(), query(vm, NONE));
    for csn in [one, two] {
        assert_eq!(vm.call(CmdQueryCounterSet { csn }).err(), Some(EINVAL));
    }
}

// abi
#[test]
fn sets_need_their_feature_and_own_rings() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    let refused = || {
        let none = CmdQueryCounterSet { csn: NONE };
        assert_eq!(create(vm), Err(EOPNOTSUPP));
        assert_eq!(destroy(vm, NONE), Err(EOPNOTSUPP));
        assert_eq!(bind(&qp, NONE), Err(EOPNOTSUPP));
        assert_eq!(vm.call(none).err(), Some(EOPNOTSUPP));
    };
    refused();
    vm.hca.set_features(Features::of(&[Feature::CounterSets]));
    refused();
}
