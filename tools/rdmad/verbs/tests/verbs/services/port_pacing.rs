// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rate limits of a port. Only the test advances the clock.

use std::time::Duration;

use testkit::engine::*;
use verbs::{Clock, PathPolicy, PortRates, Rate, Throttled};
use virtio_rdma_abi::ib::{QpState, QpType, WcStatus, WrOpcode};

use super::pacing::{world, Load, DEPTH, MESSAGE, MILLISECOND};

/// Time for which a rate is measured, by the clock of the test.
const TIME: Duration = Duration::from_secs(10);
/// Interval at which the SQs are filled. Under a limit, a full SQ lasts longer than this.
const STEP: Duration = Duration::from_millis(10);
/// Limit in bytes a second.
const BYTES: u64 = 1_000_000;
/// Limit in messages a second.
const MESSAGES: u64 = 200;

fn limit(per_second: u64) -> Option<Rate> {
    Some(Rate {
        per_second,
        burst: None,
    })
}

fn of_bytes(per_second: u64) -> PortRates {
    PortRates {
        bytes: limit(per_second),
        messages: None,
    }
}

fn of_messages(per_second: u64) -> PortRates {
    PortRates {
        bytes: None,
        messages: limit(per_second),
    }
}

/// Number of bytes that a VM has sent on both data paths.
fn sent(vm: &Vm) -> u64 {
    let counters = vm.counters();
    counters.direct_tx_bytes + counters.tx_bytes
}

fn steps(time: Duration) -> u64 {
    (time.as_millis() / STEP.as_millis()) as u64
}

/// Runs for `time` and keeps the SQs of all loads filled.
fn run(world: &World, loads: &mut [Load<'_, '_>], time: Duration) {
    for _ in 0..steps(time) {
        loads.iter_mut().for_each(Load::refill);
        world.runtime.advance(STEP);
    }
    loads.iter_mut().for_each(Load::collect);
}

fn completed(loads: &[Load<'_, '_>]) -> u64 {
    loads.iter().map(|load| load.completed).sum()
}

/// Checks that `got` is within 2 % of `asked`.
fn is_near(got: u64, asked: u64) {
    assert!(got.abs_diff(asked) <= asked / 50, "{got} of {asked}");
}

#[test]
fn the_qps_of_a_port_share_its_bytes_and_its_neighbour_is_not_slowed() {
    in_all_setups(|setup| {
        let world = world(3, setup, Clock::manual());
        let [a, b, c] = [0, 1, 2].map(|number| &world.vms[number]);
        let types = [QpType::Rc, QpType::Uc, QpType::Ud];
        let pairs = types.map(|qp_type| {
            let options = Options::of(qp_type);
            Pair::between([a, b], options, options)
        });
        let neighbours = Pair::between([c, b], Options::default(), Options::default());
        a.hca.set_rates(of_bytes(BYTES));
        let mut loads = Vec::from_iter(pairs.iter().map(Load::new));
        loads.push(Load::new(&neighbours));
        run(&world, &mut loads, Duration::from_millis(100));
        let before = sent(a);
        let of_neighbour = loads[3].completed;
        run(&world, &mut loads, TIME);
        is_near(sent(a) - before, BYTES * TIME.as_secs());
        assert!(loads[..3].iter().all(|load| load.completed > DEPTH));
        // All work requests of the neighbour complete within their step.
        let posted = DEPTH * steps(TIME);
        assert_eq!(loads[3].completed - of_neighbour, posted);
        let counters = a.counters();
        assert_eq!((counters.timeouts, counters.retransmitted_packets), (0, 0));
        let status = a.hca.status();
        assert_eq!(status.rates, of_bytes(BYTES));
        // The limit was in effect most of the time.
        assert!(status.throttled.bytes >= TIME / 2, "{status:?}");
        assert_eq!(c.hca.status().throttled, Throttled::default());
    });
}

#[test]
fn the_qps_of_a_port_share_its_messages() {
    in_all_setups(|setup| {
        let world = world(2, setup, Clock::manual());
        let types = [QpType::Rc, QpType::Uc, QpType::Ud];
        let pairs = types.map(|qp_type| {
            let options = Options::of(qp_type);
            Pair::with(&world, options, options)
        });
        world.vms[0].hca.set_rates(of_messages(MESSAGES));
        let mut loads = Vec::from_iter(pairs.iter().map(Load::new));
        run(&world, &mut loads, Duration::from_millis(500));
        let before = completed(&loads);
        run(&world, &mut loads, TIME);
        is_near(completed(&loads) - before, MESSAGES * TIME.as_secs());
        assert!(world.vms[0].hca.status().throttled.messages >= TIME / 2);
    });
}

#[test]
fn what_a_port_reads_is_its_own() {
    in_all_setups(|setup| {
        let world = world(2, setup, Clock::manual());
        let pair = Pair::new(&world);
        world.vms[0].hca.set_rates(of_bytes(BYTES));
        let mut loads = [Load::new(&pair)];
        loads[0].wr = pair.wr(0, WrOpcode::RdmaRead, MESSAGE);
        run(&world, &mut loads, Duration::from_millis(100));
        let before = completed(&loads);
        run(&world, &mut loads, TIME);
        let read = (completed(&loads) - before) * u64::from(MESSAGE);
        is_near(read, BYTES * TIME.as_secs());
    });
}

#[test]
fn another_limit_wakes_who_waits() {
    in_all_setups(|setup| {
        let world = world(2, setup, Clock::manual());
        let hca = &world.vms[0].hca;
        let pair = Pair::new(&world);
        for slow in [of_bytes(1), of_messages(1)] {
            hca.set_rates(slow);
            let mut loads = [Load::new(&pair)];
            run(&world, &mut loads, Duration::from_secs(1));
            let before = loads[0].completed;
            run(&world, &mut loads, Duration::from_secs(1));
            assert!(loads[0].completed <= before + 1, "it waits");
            hca.set_rates(PortRates::default());
            // The workers run without an advance of the clock.
            world.runtime.advance(Duration::ZERO);
            loads[0].collect();
            assert!(loads[0].completed >= before + DEPTH - 1);
        }
    });
}

#[test]
fn a_qp_that_a_port_holds_back_flushes_what_waits() {
    in_all_setups(|setup| {
        for rates in [of_bytes(1), of_messages(1)] {
            let world = world(2, setup, Clock::manual());
            world.vms[0].hca.set_rates(rates);
            let pair = Pair::new(&world);
            let mut load = Load::new(&pair);
            load.refill();
            world.runtime.advance(MILLISECOND);
            pair.qa.to(QpState::Err);
            world.runtime.advance(Duration::ZERO);
            let mut ended = load.completed;
            while let Some(cqe) = pair.cq_a.poll() {
                ended += 1;
                if ended == DEPTH {
                    assert_eq!(cqe.status, WcStatus::WrFlushErr.value());
                }
            }
            assert_eq!(ended, DEPTH);
        }
    });
}

/// A limit far above the throughput has no effect.
#[test]
fn a_limit_that_is_never_reached_holds_nothing_back() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = world(2, setup, Clock::manual());
        let pair = Pair::new(&world);
        world.vms[0].hca.set_rates(PortRates {
            bytes: limit(u64::MAX),
            messages: limit(u64::MAX),
        });
        let mut loads = [Load::new(&pair)];
        run(&world, &mut loads, 10 * STEP);
        assert_eq!(loads[0].completed, 10 * DEPTH);
        assert_eq!(world.vms[0].hca.status().throttled, Throttled::default());
    });
}
