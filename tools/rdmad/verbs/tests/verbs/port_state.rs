// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! State and MTU of the guest's network device, as the driver tells them.

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::{CmdQueryPort, CmdSetPort, RspQueryPort};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{
    AsyncEvent, Mtu, PortPhysState, PortState, QpState, QpType, WcStatus, WrOpcode,
};
use virtio_rdma_abi::number::Qpn;

use crate::commands::{EINVAL, EOPNOTSUPP};

/// Ethernet MTUs with path MTUs of 1,024 and 4,096 bytes.
const ETHERNET: u32 = 1500;
const JUMBO: u32 = 9000;

fn set_port(vm: &Vm, state: PortState, mtu: u32) {
    vm.call(CmdSetPort {
        port: 1,
        state: state.value(),
        mtu,
    })
    .unwrap();
}

fn query_port(vm: &Vm) -> RspQueryPort {
    vm.call(CmdQueryPort { port: 1 }).unwrap()
}

fn world(path: PathPolicy) -> World {
    let world = World::new(2, path);
    world.negotiate(&[Feature::PortState]);
    world
}

/// Options of a QP that gives up soon.
fn impatient(qp_type: QpType) -> Options {
    Options {
        retry_cnt: 1,
        timeout: 8,
        ..Options::of(qp_type)
    }
}

/// While the network device of either side is down, nothing is sent and no receive is used.
// abi: R-988
#[test]
fn a_port_that_is_down_sends_and_takes_nothing() {
    type Cut = fn(&Pair<'_>);
    let cuts: [(&str, Cut); 3] = [
        ("network device of the sender", |p| {
            set_port(p.a, PortState::Down, JUMBO)
        }),
        ("network device of the receiver", |p| {
            set_port(p.b, PortState::Down, JUMBO)
        }),
        ("link of the receiver", |p| p.b.hca.set_link(false)),
    ];
    for (name, cut) in cuts {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            on_both_paths(|path| {
                let world = world(path);
                let p = Pair::with(&world, impatient(qp_type), impatient(qp_type));
                let before = p.b.read(p.mb.iova, 4096);
                p.a.write(p.ma.iova, &[7; 100]);
                p.qb.post_recv(3, &[sge(&p.mb, 0, 4096)]);
                cut(&p);
                let wr = p.send(1, 100);
                match qp_type {
                    QpType::Rc => p.fails(&wr, WcStatus::RetryExcErr),
                    _ => {
                        p.qa.post(&wr);
                        p.cq_a.expect(1, WcStatus::Success);
                    }
                }
                assert_eq!(p.cq_b.poll(), None, "{name}, {qp_type:?}");
                p.qb.to(QpState::Err);
                p.cq_b.expect(3, WcStatus::WrFlushErr);
                assert!(p.b.read(p.mb.iova, 4096) == before, "{name}, {qp_type:?}");
            });
        }
    }
}

/// READs and WRITEs do not touch the memory of a port that is down either.
// abi: R-988
#[test]
fn a_port_that_is_down_opens_no_memory() {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        on_both_paths(|path| {
            let world = world(path);
            let options = impatient(QpType::Rc);
            let p = Pair::with(&world, options, options);
            p.a.write(p.ma.iova, &[7; 100]);
            p.b.write(p.mb.iova, &[8; 100]);
            set_port(p.b, PortState::Down, JUMBO);
            p.fails(&p.wr(1, opcode, 100), WcStatus::RetryExcErr);
            assert_eq!(p.a.read(p.ma.iova, 100), [7; 100]);
            assert_eq!(p.b.read(p.mb.iova, 100), [8; 100]);
        });
    }
}

/// QPs that failed since a port was down work again once they are reset.
// abi: R-988
#[test]
fn a_port_that_is_up_again_works() {
    on_both_paths(|path| {
        let world = world(path);
        let options = impatient(QpType::Rc);
        let mut p = Pair::with(&world, options, options);
        let reconnect = |p: &mut Pair<'_>, options| {
            for qp in [&mut p.qa, &mut p.qb] {
                qp.to(QpState::Reset);
                qp.options = options;
            }
            connect(&p.qa, &p.qb);
        };
        for round in 0..20 {
            set_port([p.a, p.b][round % 2], PortState::Down, JUMBO);
            p.fails(&p.send(1, 100), WcStatus::RetryExcErr);
            set_port([p.a, p.b][round % 2], PortState::Active, JUMBO);
            // Work that must succeed has no timeout: on a busy machine, a worker may be late.
            reconnect(
                &mut p,
                Options {
                    timeout: 0,
                    ..options
                },
            );
            p.qb.post_recv(4, &[sge(&p.mb, 0, 4096)]);
            p.qa.post(&p.send(5, 100));
            p.cq_a.expect(5, WcStatus::Success);
            p.cq_b.expect(4, WcStatus::Success);
            reconnect(&mut p, options);
        }
    });
}

#[test]
fn the_driver_tells_state_and_mtu() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let request = |port, state: PortState, mtu| CmdSetPort {
        port,
        state: state.value(),
        mtu,
    };
    let down = request(1, PortState::Down, 0);
    // abi: R-15
    assert_eq!(vm.call(down).err(), Some(EOPNOTSUPP));
    vm.negotiate(&[Feature::PortState]);
    for port in [0, 2] {
        let request = request(port, PortState::Active, JUMBO);
        // abi: R-987
        assert_eq!(vm.call(request).err(), Some(EINVAL));
    }
    for state in PortState::ALL.iter().copied() {
        let refused = !matches!(state, PortState::Down | PortState::Active);
        let answer = vm.call(request(1, state, JUMBO));
        // abi: R-987
        assert_eq!(answer.err(), refused.then_some(EINVAL), "{state:?}");
    }
    let state = || {
        let port = query_port(vm);
        (port.state, port.phys_state)
    };
    let is_up = (PortState::Active.value(), PortPhysState::LinkUp.value());
    let is_down = (PortState::Down.value(), PortPhysState::Disabled.value());
    assert_eq!(state(), is_up);
    vm.call(down).unwrap();
    // abi: R-989
    assert_eq!(state(), is_down);
    // A link that comes and goes changes nothing while the network device is down.
    vm.hca.set_link(false);
    vm.hca.set_link(true);
    // abi: R-989
    assert_eq!(state(), is_down);
    vm.call(request(1, PortState::Active, JUMBO)).unwrap();
    assert_eq!(state(), is_up);
    // abi: R-990
    assert!(vm.sink.is_empty(), "the driver knows what it told");
    vm.hca.set_link(false);
    vm.sink.expect(EventKind::Async(AsyncEvent::PortErr), 1);
    vm.call(down).unwrap();
    vm.hca.set_link(true);
    // abi: R-990
    assert!(vm.sink.is_empty());
    vm.hca.reset();
    vm.negotiate(&[Feature::PortState]);
    // abi: R-993
    assert_eq!(state(), is_up);
}

// abi
#[test]
fn the_path_mtu_is_the_lesser_of_both() {
    on_both_paths(|path| {
        let world = world(path);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let active = || query_port(a).active_mtu;
        assert_eq!(active(), Mtu::Mtu4096.value());
        for (ethernet, mtu) in [
            (65_535, Mtu::Mtu4096),
            (4192, Mtu::Mtu4096),
            (4191, Mtu::Mtu2048),
            (ETHERNET, Mtu::Mtu1024),
            (68, Mtu::Mtu256),
            (0, Mtu::Mtu256),
        ] {
            set_port(a, PortState::Active, ethernet);
            assert_eq!(active(), mtu.value(), "{ethernet}");
        }
        let cq = Cq::new(a, 64);
        let wide = Options {
            mtu: Mtu::Mtu4096,
            ..Options::default()
        };
        let qp = Qp::new(a, &cq, &cq, wide);
        qp.to_init().unwrap();
        set_port(a, PortState::Active, 4191);
        assert_eq!(qp.to_rtr(b, Qpn::new(5)), Err(EINVAL));
        set_port(a, PortState::Active, 4192);
        assert_eq!(qp.to_rtr(b, Qpn::new(5)), Ok(()));
        a.hca.reset();
        assert_eq!(active(), Mtu::Mtu4096.value());
    });
}

// abi
#[test]
fn datagrams_follow_the_mtu() {
    on_both_paths(|path| {
        let world = world(path);
        let options = Options::of(QpType::Ud);
        let p = Pair::with(&world, options, options);
        set_port(p.a, PortState::Active, ETHERNET);
        for (mtu, most) in [(ETHERNET, 1024), (JUMBO, 4096), (700, 512)] {
            set_port(p.a, PortState::Active, mtu);
            p.qb.post_recv(1, &[sge(&p.mb, 0, 1 << 16)]);
            p.qa.post(&p.send(2, most));
            p.cq_a.expect(2, WcStatus::Success);
            assert_eq!(p.cq_b.expect(1, WcStatus::Success).byte_len, 40 + most);
        }
        p.qa.post(&p.send(3, 513));
        p.cq_a.expect(3, WcStatus::LocLenErr);
        assert_eq!(p.qa.state(), QpState::Sqe);
    });
}

// abi: R-992
#[test]
fn a_connection_keeps_its_path_mtu() {
    on_both_paths(|path| {
        let world = world(path);
        let wide = Options {
            mtu: Mtu::Mtu4096,
            ..Options::default()
        };
        let p = Pair::with(&world, wide, wide);
        set_port(p.a, PortState::Active, ETHERNET);
        set_port(p.b, PortState::Active, ETHERNET);
        p.qb.post_recv(1, &[sge(&p.mb, 0, 1 << 16)]);
        p.qa.post(&p.send(2, 20_000));
        p.cq_a.expect(2, WcStatus::Success);
        assert_eq!(p.cq_b.expect(1, WcStatus::Success).byte_len, 20_000);
        assert_eq!(p.qa.query().path_mtu, Mtu::Mtu4096.value());
    });
}
