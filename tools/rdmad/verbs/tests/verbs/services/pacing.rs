// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rate limits of QPs. Only the test advances the clock, so the measured rates do not depend on the
//! machine.

use std::fmt::Write;
use std::time::{Duration, Instant};

use testkit::engine::*;
use verbs::{Clock, DataPath, Limits, PathPolicy, PeerStatus, QpStatus, RuntimeConfig};
use virtio_rdma_abi::config::{RateLimitConfig, RATE_LIMIT_CONFIG_OFFSET};
use virtio_rdma_abi::ctrl::CmdSetRateLimit;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{QpAttrMask, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;

/// Error codes in responses to commands.
const EINVAL: u8 = 22;
const EOPNOTSUPP: u8 = 95;

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
/// Length in bytes of a message that is not a datagram.
pub(super) const MESSAGE: u32 = 8192;
/// Number of work requests in the SQ of a [`Load`].
pub(super) const DEPTH: u64 = 32;

pub(super) fn world(vms: usize, setup: impl Into<Setup>, clock: Clock) -> World {
    let Setup { path, mode } = setup.into();
    let config = RuntimeConfig {
        path,
        clock,
        ..RuntimeConfig::default()
    };
    let world = World::in_mode(mode, vms, config, Limits::default());
    for vm in &world.vms {
        vm.negotiate(&[Feature::RateLimit, Feature::Counters]);
    }
    world
}

pub(super) fn limit(
    qp: &Qp<'_>,
    rate_limit: u32,
    max_burst_size: u32,
    packet: u16,
) -> Result<(), u8> {
    let request = CmdSetRateLimit {
        qpn: qp.qpn,
        rate_limit,
        max_burst_size,
        typical_packet_size: packet,
        ..CmdSetRateLimit::ZERO
    };
    qp.vm.call(request).map(|_| ())
}

/// A QP that always has something to send.
pub(super) struct Load<'a, 'vm> {
    pair: &'a Pair<'vm>,
    pub(super) wr: Wr,
    posted: u64,
    pub(super) completed: u64,
}

impl<'a, 'vm> Load<'a, 'vm> {
    pub(super) fn new(pair: &'a Pair<'vm>) -> Self {
        let wr = match pair.qa.options.qp_type {
            // The peer has no receives, so it drops these datagrams.
            QpType::Ud => pair.wr(0, WrOpcode::Send, 1000),
            _ => pair.wr(0, WrOpcode::RdmaWrite, MESSAGE),
        };
        Self {
            pair,
            wr,
            posted: 0,
            completed: 0,
        }
    }

    /// Polls completions.
    pub(super) fn collect(&mut self) {
        while let Some(cqe) = self.pair.cq_a.poll() {
            assert_eq!(cqe.status, WcStatus::Success.value(), "{cqe:?}");
            self.completed += 1;
        }
    }

    /// Polls completions and fills the SQ.
    pub(super) fn refill(&mut self) {
        self.collect();
        let used = self.posted - self.completed;
        if used < DEPTH {
            for _ in used..DEPTH {
                self.pair.qa.post(&self.wr);
                self.posted += 1;
            }
        }
    }
}

/// Runs for `count` milliseconds. Returns the number of bytes that the rate limits of the first VM
/// counted in each millisecond.
fn series(world: &World, loads: &mut [Load<'_, '_>], count: usize) -> Vec<u64> {
    let mut before = world.vms[0].counters().paced_bytes;
    let mut series = Vec::with_capacity(count);
    for _ in 0..count {
        loads.iter_mut().for_each(Load::refill);
        world.runtime.advance(MILLISECOND);
        let now = world.vms[0].counters().paced_bytes;
        series.push(now - before);
        before = now;
    }
    series
}

/// Bytes that the rate `rate` in kb/s allows in `ms` milliseconds.
fn carried(rate: u32, ms: usize) -> u64 {
    u64::from(rate) * ms as u64 / 8
}

/// Checks that the mean rate is within 5 % of `rate`, in kb/s, and that in no period of 10 ms the
/// bytes exceed the rate by more than `burst` bytes.
fn holds(series: &[u64], rate: u32, burst: u64) {
    let total: u64 = series.iter().sum();
    let asked = carried(rate, series.len()) as f64;
    assert!(
        (total as f64 - asked).abs() <= 0.05 * asked,
        "{total} of {asked} bytes at {rate} kb/s"
    );
    for window in series.windows(10) {
        let bytes: u64 = window.iter().sum();
        let most = carried(rate, 10) + burst;
        assert!(
            bytes <= most,
            "{bytes} bytes in 10 ms, at most {most} may be"
        );
    }
}

/// Default burst of a rate limit, in bytes.
fn default_burst(rate: u32) -> u64 {
    carried(rate, 5).max(4096)
}

#[test]
fn every_type_of_qp_keeps_its_rate_on_both_paths() {
    const RATE: u32 = 20_000;
    in_all_setups(|setup| {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let world = world(2, setup, Clock::manual());
            let options = Options::of(qp_type);
            let pair = Pair::with(&world, options, options);
            limit(&pair.qa, RATE, 0, 0).unwrap();
            let mut loads = [Load::new(&pair)];
            series(&world, &mut loads, 10);
            // abi
            holds(&series(&world, &mut loads, 200), RATE, default_burst(RATE));
            let counters = world.vms[0].counters();
            assert_eq!((counters.timeouts, counters.retransmitted_packets), (0, 0));
            if setup.path == PathPolicy::Wire {
                // The acknowledgements of the peer are not counted.
                // abi
                assert_eq!(counters.paced_bytes, counters.tx_bytes);
            }
        }
    });
}

// abi: R-831
#[test]
fn rates_from_one_megabit_to_one_gigabit_hold() {
    for (rate, path) in [
        (1_000, PathPolicy::Direct),
        (1_000, PathPolicy::Wire),
        (10_000, PathPolicy::Direct),
        (100_000, PathPolicy::Direct),
        (1_000_000, PathPolicy::Direct),
    ] {
        in_both_modes(path, |setup| {
            let world = world(2, setup, Clock::manual());
            let pair = Pair::new(&world);
            limit(&pair.qa, rate, 0, 0).unwrap();
            let mut loads = [Load::new(&pair)];
            series(&world, &mut loads, 50);
            // High rates run for only 100 ms, because they are slow without optimization.
            let ms = if rate == 1_000 { 1000 } else { 100 };
            holds(&series(&world, &mut loads, ms), rate, default_burst(rate));
        });
    }
}

// abi
#[test]
fn bursts_are_as_long_as_asked_for() {
    const RATE: u32 = 8_000;
    for (burst, path) in [(2_000, PathPolicy::Direct), (60_000, PathPolicy::Wire)] {
        in_both_modes(path, |setup| {
            let world = world(2, setup, Clock::manual());
            let pair = Pair::new(&world);
            limit(&pair.qa, RATE, burst, 1_000).unwrap();
            // The token bucket is full after a pause.
            world.runtime.advance(100 * MILLISECOND);
            let mut loads = [Load::new(&pair)];
            let first = series(&world, &mut loads, 1)[0];
            assert!(
                first + 1_200 >= u64::from(burst) && first <= carried(RATE, 1) + u64::from(burst),
                "{first} bytes in a burst of {burst}"
            );
            let steady = series(&world, &mut loads, 300);
            holds(&steady, RATE, burst.into());
        });
    }
}

#[test]
fn a_limit_changes_and_goes_while_data_flows() {
    in_all_setups(|setup| {
        let world = world(2, setup, Clock::manual());
        let pair = Pair::new(&world);
        let mut loads = [Load::new(&pair)];
        let with_modify = |rate_limit| {
            let attr = QpAttr {
                // abi: R-240
                rate_limit,
                ..QpAttr::ZERO
            };
            pair.qa.modify(QpState::Rts, QpAttrMask::RATE_LIMIT, attr)
        };
        for rate in [10_000, 40_000, 5_000] {
            match rate {
                // abi: R-842
                40_000 => with_modify(rate).unwrap(),
                // abi
                _ => limit(&pair.qa, rate, 0, 0).unwrap(),
            }
            // abi: R-837
            assert_eq!(pair.qa.query().rate_limit, rate);
            let way = match setup.path {
                PathPolicy::Direct => DataPath::Direct,
                PathPolicy::Wire => DataPath::Wire,
            };
            let seen = QpStatus {
                qpn: pair.qa.qpn,
                qp_type: QpType::Rc,
                state: QpState::Rts,
                user: true,
                peer: Some(PeerStatus {
                    qpn: pair.qb.qpn,
                    path: way,
                }),
                rate_limit: Some(rate),
            };
            assert_eq!(world.vms[0].hca.qp_status(), [seen]);
            series(&world, &mut loads, 10);
            // abi: R-835
            holds(&series(&world, &mut loads, 200), rate, default_burst(rate));
        }
        limit(&pair.qa, 0, 0, 0).unwrap();
        // abi: R-837
        assert_eq!(pair.qa.query().rate_limit, 0);
        let before = loads[0].completed;
        assert_eq!(series(&world, &mut loads, 5), [0; 5], "nobody counts");
        loads[0].refill();
        assert!(loads[0].completed > before + 3 * DEPTH);
    });
}

#[test]
fn many_limited_qps_share_no_bucket() {
    in_both_modes(PathPolicy::Direct, |setup| {
        const RATE: u32 = 1_000;
        const QPS: usize = 24;
        let world = world(2, setup, Clock::manual());
        let pairs: Vec<_> = (0..QPS).map(|_| Pair::new(&world)).collect();
        let mut loads: Vec<_> = pairs.iter().map(Load::new).collect();
        for pair in &pairs {
            limit(&pair.qa, RATE, 0, 0).unwrap();
        }
        series(&world, &mut loads, 50);
        let burst = QPS as u64 * default_burst(RATE);
        holds(&series(&world, &mut loads, 500), RATE * QPS as u32, burst);
        let sent: Vec<_> = loads.iter().map(|load| load.completed).collect();
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(most - least <= 2, "{sent:?}");
    });
}

#[test]
fn a_limited_qp_flushes_what_waits() {
    in_all_setups(|setup| {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let world = world(2, setup, Clock::manual());
            let options = Options::of(qp_type);
            let pair = Pair::with(&world, options, options);
            limit(&pair.qa, 100, 0, 0).unwrap();
            let mut load = Load::new(&pair);
            load.refill();
            world.runtime.advance(MILLISECOND);
            pair.qa.to(QpState::Err);
            // Advances the clock by a second. Afterwards the workers have no work left.
            world.runtime.advance(1000 * MILLISECOND);
            let mut ended = load.completed;
            while let Some(cqe) = pair.cq_a.poll() {
                ended += 1;
                if ended == DEPTH {
                    assert_eq!(cqe.status, WcStatus::WrFlushErr.value());
                }
            }
            assert_eq!(ended, DEPTH, "{qp_type:?}");
        }
    });
}

#[test]
fn an_acknowledgement_that_is_waited_for_is_no_loss() {
    in_both_modes(PathPolicy::Wire, |setup| {
        // At 100 kb/s, a packet takes longer than the local ACK timeout.
        let options = Options {
            timeout: 14,
            retry_cnt: 0,
            ..Options::default()
        };
        let world = world(2, setup, Clock::manual());
        let pair = Pair::with(&world, options, options);
        limit(&pair.qa, 100, 0, 0).unwrap();
        let data = pattern(MESSAGE as usize, 5);
        pair.a.write(pair.ma.iova, &data);
        pair.qa.post(&pair.wr(1, WrOpcode::RdmaWrite, MESSAGE));
        world.runtime.advance(1000 * MILLISECOND);
        assert_eq!(pair.cq_a.next().status, WcStatus::Success.value());
        assert_eq!(pair.b.read(pair.mb.iova, data.len()), data);
        assert_eq!(world.vms[0].counters().timeouts, 0);
    });
}

#[test]
fn limits_are_refused_where_they_make_no_sense() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = world(2, setup, Clock::system());
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let space = a.hca.config_space();
        // abi: R-74
        let limits = RateLimitConfig::decode(&space[RATE_LIMIT_CONFIG_OFFSET..]).unwrap();
        let cq = Cq::new(a, 64);
        let qp = Qp::new(a, &cq, &cq, Options::default());
        let some = limits.min_rate;
        // abi: R-840
        assert_eq!(limit(&qp, some, 0, 0), Err(EINVAL), "RESET");
        qp.to_init().unwrap();
        assert_eq!(limit(&qp, some, 0, 0), Err(EINVAL), "INIT");
        qp.to_rtr(b, Qpn::new(5)).unwrap();
        assert_eq!(limit(&qp, some, 0, 0), Err(EINVAL), "RTR");
        qp.to_rts().unwrap();
        limit(&qp, some, limits.max_burst_size, u16::MAX).unwrap();
        limit(&qp, limits.max_rate, 0, 0).unwrap();
        for (rate, burst, packet) in [
            // abi
            (limits.min_rate - 1, 0, 0),
            // abi: R-76
            (limits.max_rate + 1, 0, 0),
            // abi: R-77
            (some, limits.max_burst_size + 1, 0),
            // abi: R-839
            (0, 1, 0),
            (0, 0, 1),
        ] {
            assert_eq!(limit(&qp, rate, burst, packet), Err(EINVAL));
            assert_eq!(qp.query().rate_limit, limits.max_rate, "nothing changed");
        }
        let reserved = CmdSetRateLimit {
            qpn: qp.qpn,
            rate_limit: some,
            // abi: R-828
            reserved: [0, 1],
            ..CmdSetRateLimit::ZERO
        };
        // abi: R-841
        assert_eq!(a.call(reserved).err(), Some(EINVAL));
        let modify = |rate_limit| {
            let attr = QpAttr {
                rate_limit,
                ..QpAttr::ZERO
            };
            qp.modify(QpState::Rts, QpAttrMask::RATE_LIMIT, attr)
        };
        assert_eq!(modify(limits.max_rate + 1), Err(EINVAL));
        modify(some).unwrap();
        qp.to(QpState::Sqd);
        limit(&qp, 2 * some, 0, 0).unwrap();
        qp.to(QpState::Err);
        // abi: R-840
        assert_eq!(limit(&qp, some, 0, 0), Err(EINVAL), "ERR");
        qp.to(QpState::Reset);
        // abi: R-837
        assert_eq!(qp.query().rate_limit, 0);

        let gsi = Qp::new(a, &cq, &cq, Options::of(QpType::Gsi));
        gsi.to_init().unwrap();
        gsi.to_rtr(b, Qpn::new(1)).unwrap();
        gsi.to_rts().unwrap();
        // abi: R-840
        assert_eq!(limit(&gsi, some, 0, 0), Err(EINVAL), "GSI");

        // Without the feature, rate limits are refused.
        a.negotiate(&[]);
        qp.to_init().unwrap();
        qp.to_rtr(b, Qpn::new(5)).unwrap();
        qp.to_rts().unwrap();
        // abi: R-15
        assert_eq!(limit(&qp, some, 0, 0), Err(EOPNOTSUPP));
        // abi: R-211
        assert_eq!(modify(some), Err(EOPNOTSUPP));
    });
}

/// Prints the throughput under a rate limit that changes, a line for each millisecond. The result
/// is plotted as Documentation/pacing.svg by tools/dev/pacing.
#[test]
#[ignore = "makes data for a plot"]
fn plot() {
    let world = world(2, PathPolicy::Wire, Clock::manual());
    let pair = Pair::new(&world);
    let mut loads = [Load::new(&pair)];
    let mut text = String::from("ms,asked,bytes\n");
    let mut ms = 0;
    for (rate, burst) in [(20_000, 0), (80_000, 0), (40_000, 60_000), (10_000, 0)] {
        limit(&pair.qa, rate, burst, 0).unwrap();
        for bytes in series(&world, &mut loads, 100) {
            writeln!(text, "{ms},{rate},{bytes}").unwrap();
            ms += 1;
        }
    }
    print!("{text}");
}

/// Prints requested and measured rates, on the clock of the machine. Run by tools/dev/pacing.
#[test]
#[ignore = "depends on the machine"]
fn on_the_wall_clock() {
    println!("path,asked,measured,error");
    for path in PATHS {
        for rate in [1_000, 10_000, 100_000, 1_000_000] {
            let world = world(2, path, Clock::system());
            let pair = Pair::new(&world);
            limit(&pair.qa, rate, 0, 0).unwrap();
            let mut load = Load::new(&pair);
            let run = |load: &mut Load<'_, '_>, time: Duration| {
                let start = Instant::now();
                while start.elapsed() < time {
                    load.refill();
                    std::thread::sleep(MILLISECOND / 4);
                }
            };
            run(&mut load, Duration::from_millis(300));
            let (start, before) = (Instant::now(), pair.a.counters().paced_bytes);
            run(&mut load, Duration::from_secs(2));
            let bytes = pair.a.counters().paced_bytes - before;
            let measured = bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1000.0;
            let error = 100.0 * (measured / f64::from(rate) - 1.0);
            println!("{path:?},{rate},{measured:.0},{error:+.2} %");
        }
    }
}

/// After the delay of an RNR NAK, a worker sleeps until the rate limit allows the next packet.
#[test]
fn after_a_pause_the_rate_is_slept_for() {
    for mode in MODES {
        let world = World::in_mode(mode, 2, stepped::config(2), Limits::default());
        world.negotiate(&[Feature::RateLimit]);
        let rests = || (0..1000).any(|_| !(world.runtime.step(0) | world.runtime.step(1)));
        let p = Pair::new(&world);
        p.qa.post(&p.send(1, 4096));
        assert!(rests(), "B has no receive");
        // The burst is shorter than a frame.
        limit(&p.qa, 1_000, 100, 0).unwrap();
        p.qb.post_recv(2, &[sge(&p.mb, 0, 4096)]);
        world.runtime.pass(MILLISECOND);
        assert!(rests(), "a worker that can do nothing");
        while let Some(time) = world.runtime.next_deadline() {
            world.runtime.pass(time);
            assert!(rests());
        }
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_b.expect(2, WcStatus::Success);
    }
}

/// A datagram costs its bytes when they are copied: not while it waits for the rate limit, and not
/// if its receiver drops it.
#[test]
fn a_datagram_on_the_direct_path_costs_a_turn_the_bytes_it_moves() {
    in_both_modes(PathPolicy::Direct, |setup| {
        const LEN: u32 = 4096;
        let world = world(2, setup, Clock::manual());
        let options = Options::of(QpType::Ud);
        let pair = Pair::with(&world, options, options);
        let costliest = || world.runtime.status().longest_turn;
        // The burst covers one datagram, which the peer drops, since it has no receives.
        limit(&pair.qa, 1000, LEN + 1000, 0).unwrap();
        pair.qa.post(&pair.wr(1, WrOpcode::Send, LEN));
        world.runtime.advance(Duration::ZERO);
        pair.cq_a.expect(1, WcStatus::Success);
        assert!(costliest() < LEN.into(), "dropped: {}", costliest());
        pair.qa.post(&pair.wr(2, WrOpcode::Send, LEN));
        world.runtime.advance(Duration::ZERO);
        assert_eq!(pair.cq_a.poll(), None, "the datagram waits");
        assert!(costliest() < LEN.into(), "waiting: {}", costliest());
        let room = LEN + super::GRH as u32;
        pair.qb.post_recv(3, &[sge(&pair.mb, 0, room)]);
        world.runtime.advance(Duration::from_secs(1));
        pair.cq_a.expect(2, WcStatus::Success);
        pair.cq_b.expect(3, WcStatus::Success);
        assert!(costliest() >= LEN.into(), "copied: {}", costliest());
    });
}
