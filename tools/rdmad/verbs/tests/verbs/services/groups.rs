// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Isolation groups: the direct path is used only within a group. The switch decides whether
//! packets reach another group.

use std::sync::Arc;

use testkit::engine::*;
use verbs::{DataPath, HcaConfig, Runtime, RuntimeConfig};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{QpType, WcStatus, WrOpcode};

/// Creates one VM for each element of `groups`, which is the VM's isolation group. VMs are numbered
/// from 1.
fn world<const N: usize>(mode: Mode, groups: [u32; N]) -> World {
    let net = Arc::new(Net::default());
    let runtime = Runtime::new(RuntimeConfig {
        workers: Some(2),
        ..RuntimeConfig::default()
    })
    .unwrap();
    let vms = (1..).zip(groups).map(|(n, group)| {
        let port = net.port(mac(n));
        let config = HcaConfig {
            group,
            ..HcaConfig::new(mac(n))
        };
        let vm = Vm::in_mode(mode, n, &runtime, port.clone(), config);
        port.attach(&vm.hca);
        vm
    });
    let vms = vms.collect();
    let world = World { vms, net, runtime };
    world.negotiate(&[Feature::Counters]);
    world
}

/// Executes a WRITE from VM `a` to VM `b`. Returns the data path of the connection.
fn written(a: &Vm, b: &Vm) -> DataPath {
    let pair = Pair::between([a, b], Options::default(), Options::default());
    pair.qa.post(&pair.wr(1, WrOpcode::RdmaWrite, 100));
    assert_eq!(pair.cq_a.next().status, WcStatus::Success.value());
    let qps = a.hca.qp_status();
    let qp = qps.iter().find(|qp| qp.qpn == pair.qa.qpn);
    qp.and_then(|qp| qp.peer).unwrap().path
}

#[test]
fn data_goes_directly_within_a_group_alone() {
    for mode in MODES {
        let world = world(mode, [0, 1, 1, 2]);
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| &world.vms[at]);
        for (from, to, path) in [
            (b, c, DataPath::Direct),
            (a, b, DataPath::Wire),
            (b, a, DataPath::Wire),
            (c, d, DataPath::Wire),
        ] {
            assert_eq!(written(from, to), path);
        }
    }
}

#[test]
fn datagrams_go_directly_within_a_group_alone() {
    for mode in MODES {
        let world = world(mode, [1, 1, 2]);
        let [a, b, c] = [0, 1, 2].map(|at| &world.vms[at]);
        let options = Options::of(QpType::Ud);
        for (to, direct) in [(b, 1), (c, 0)] {
            let pair = Pair::between([a, to], options, options);
            let before = a.counters().direct_tx_messages;
            pair.qa.post(&pair.send(1, 100));
            assert_eq!(pair.cq_a.next().status, WcStatus::Success.value());
            assert_eq!(a.counters().direct_tx_messages - before, direct);
        }
    }
}
