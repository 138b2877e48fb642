// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a device: its format, and state that is damaged or false.

use std::env;
use std::fs;
use std::panic;

use rand::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;
use testkit::engine::*;
use verbs::{Hca, Limits, PathPolicy, RestoreError};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{MwType, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_ring::RingMemory;

/// The state of a device with an object of each kind. With the environment variable `NEW_FORMAT`
/// the test writes it.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verbs/saved.golden");

const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];

/// Two devices whose objects always have the same numbers and keys.
fn world() -> World {
    let limits = Limits {
        max_qp: 8,
        max_cq: 8,
        max_srq: 4,
        max_mr: 8,
        max_mw: 4,
        max_pd: 4,
        ..Limits::default()
    };
    let world = World::with_config(2, stepped::config(1), limits);
    world.negotiate(&[
        Feature::MemWindows,
        Feature::RegPages,
        Feature::RateLimit,
        Feature::CqModeration,
        Feature::Multicast,
        Feature::Counters,
        Feature::CounterSets,
    ]);
    world
}

/// The state in hexadecimal digits, after a line with the licence.
fn text(state: &[u8]) -> String {
    let mut text = "SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause\n".to_owned();
    for line in state.chunks(48) {
        text.extend(line.iter().map(|byte| format!("{byte:02x}")));
        text.push('\n');
    }
    text
}

/// Calls `look` with the first device, which has an object of each kind.
fn with_device(look: impl FnOnce(&Vm, &World)) {
    let world = world();
    let [vm, peer] = [0, 1].map(|at| &world.vms[at]);
    let mr = vm.register(vm.pdn, vm.alloc(8192), 8192, FULL);
    vm.call(CmdCreateMr {
        pdn: vm.pdn,
        max_num_sg: 4,
        ..CmdCreateMr::ZERO
    })
    .unwrap();
    vm.call(CmdAllocMw {
        pdn: vm.pdn,
        mw_type: MwType::Two.value(),
        ..CmdAllocMw::ZERO
    })
    .unwrap();
    let cq = Cq::new(vm, 16);
    cq.arm(ArmKind::Next);
    let moderated = Cq::new(vm, 8);
    vm.call(CmdModifyCq {
        cqn: moderated.cqn,
        count: 3,
        period: 50,
    })
    .unwrap();
    let srq = Srq::new(vm, 4);
    srq.post(1, &[]);
    let a = Qp::new(vm, &cq, &cq, Options::default());
    let others = Cq::new(peer, 16);
    let b = Qp::new(peer, &others, &others, Options::default());
    connect(&a, &b);
    a.post_recv(5, &[sge(&mr, 0, 100)]);
    let shared = Qp::with_srq(vm, &moderated, srq.srqn, Options::default()).unwrap();
    let csn = vm.call(CmdCreateCounterSet { port: 1 }).unwrap().csn;
    vm.call(CmdBindCounterSet {
        qpn: shared.qpn,
        csn,
    })
    .unwrap();
    let datagrams = Qp::new(vm, &cq, &cq, Options::of(QpType::Ud));
    vm.call(CmdAttachMcast {
        qpn: datagrams.qpn,
        mgid: GROUP,
    })
    .unwrap();
    look(vm, &world);
}

fn restore(hca: &Hca, state: &[u8]) -> Result<(), RestoreError> {
    hca.reset();
    hca.restore(state)
}

/// A change of the format must change its number too.
#[test]
fn the_state_has_the_format_of_its_number() {
    with_device(|vm, _| {
        let state = vm.hca.save().unwrap();
        if env::var_os("NEW_FORMAT").is_some() {
            fs::write(GOLDEN, text(&state)).unwrap();
        }
        assert_eq!(Hca::FORMAT, 4);
        let golden = fs::read_to_string(GOLDEN).unwrap();
        assert_eq!(text(&state), golden, "FORMAT must be increased");
        restore(&vm.hca, &state).unwrap();
        assert_eq!(vm.hca.save(), Ok(state));
    });
}

/// Bytes of a message that takes many turns.
const LONG: u32 = 4 << 20;

/// A driver that changes a WQE that it has given away harms its QP alone.
#[test]
fn a_wqe_that_changes_meanwhile_fails() {
    for path in [PathPolicy::Wire, PathPolicy::Direct] {
        for qp_type in [QpType::Rc, QpType::Uc] {
            let world = world();
            world.runtime.set_path(path);
            let pair = Pair::with(&world, Options::of(qp_type), Options::of(qp_type));
            let (ours, theirs) = (pair.a.mr(LONG.into()), pair.b.mr(LONG.into()));
            let write = |len| {
                let wr = Wr::new(1, WrOpcode::RdmaWrite).local(&ours, 0, len);
                wr.remote(&theirs, 0)
            };
            pair.qa.post(&write(LONG));
            for _ in 0..4 {
                world.runtime.step(0);
            }
            let state = pair.a.hca.save().unwrap();
            let sq = &pair.qa.sq;
            sq.write(sq.layout.slot(0), &write(8).bytes());
            restore(&pair.a.hca, &state).unwrap();
            pair.a.hca.resume();
            world.rest(&[0]);
            assert_eq!(pair.a.hca.failure(), None, "{path:?}, {qp_type:?}");
            pair.cq_a.expect(1, WcStatus::LocQpOpErr);
        }
    }
}

/// Damaged and false state is refused, or harms nothing but its own device.
#[test]
fn a_false_state_is_refused() {
    with_device(|vm, world| {
        let state = vm.hca.save().unwrap();
        let peer = world.vms[1].hca.save().unwrap();
        let mut random = XorShiftRng::seed_from_u64(1);
        // Panics are contained.
        let print = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        for len in 0..state.len() {
            assert!(restore(&vm.hca, &state[..len]).is_err(), "{len} bytes");
        }
        let mut refused = 0;
        for at in 0..state.len() {
            let mut false_state = state.clone();
            false_state[at] ^= random.random_range(1..=u8::MAX);
            match restore(&vm.hca, &false_state) {
                Ok(()) => {
                    vm.hca.resume();
                    world.rest(&[0]);
                }
                Err(_) => refused += 1,
            }
        }
        panic::set_hook(print);
        assert!(refused > state.len() / 4, "{refused} of {}", state.len());
        restore(&vm.hca, &state).unwrap();
        assert_eq!(vm.hca.save(), Ok(state.clone()));
        // Its peer is connected, but not to what those devices were.
        assert!(world.vms[1].hca.failure().is_none());
        assert_eq!(world.vms[1].hca.save().unwrap().len(), peer.len());
        assert!(vm.hca.restore(&state).is_err(), "there are objects");
        restore(&vm.hca, &[]).unwrap_err();
        vm.hca.restore(&state).unwrap();
    });
}
