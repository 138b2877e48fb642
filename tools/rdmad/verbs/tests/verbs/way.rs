// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ways through the engine that `tools/dev/way` traces. A test prepares a way, and a function of
//! its own goes it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tempfile::TempDir;
use testkit::engine::*;
use verbs::{Limits, PathPolicy, Runtime, RuntimeConfig};
use virtio_rdma_abi::ctrl::{CmdCreateQpRings, RspCreateQp};
use virtio_rdma_abi::ib::{WcStatus, WrOpcode};
use virtio_rdma_abi::ring::Doorbell;
use vswitch::{Config, DatagramPath, PortConfig, SteppedSwitch, Uplink};

use crate::commands::create_qp;

/// From the doorbell of a SEND to both completions, on the direct path.
#[inline(never)]
fn ring_doorbell(world: &World, qp: &Qp<'_>) {
    qp.ring_doorbell(Doorbell::Sq);
    world.rest(&[0]);
}

#[test]
fn a_doorbell_is_rung() {
    let world = World::stepped(1, PathPolicy::Direct);
    let pair = Pair::new(&world);
    world.rest(&[0]);
    let wr = Wr::new(2, WrOpcode::Send).local(&pair.ma, 0, 64);
    pair.qb.post_recv(1, &[sge(&pair.mb, 0, 64)]);
    assert!(pair.qa.post_all(&[wr.bytes()]), "a doorbell is requested");
    ring_doorbell(&world, &pair.qa);
    pair.cq_a.expect(2, WcStatus::Success);
    pair.cq_b.expect(1, WcStatus::Success);
}

/// From the datagram of an uplink to the completion of a receive.
#[inline(never)]
fn receive_frame(switch: &mut SteppedSwitch, runtime: &Runtime, now: Instant) {
    switch.round(now);
    stepped::rest(runtime, &[0]);
}

/// A daemon with one VM, whose switch has an uplink from `local` to `remote`.
fn daemon(n: usize, local: &Path, remote: &Path, now: Instant) -> (Vm, Runtime, SteppedSwitch) {
    let runtime = Runtime::new(RuntimeConfig {
        path: PathPolicy::Wire,
        ..stepped::config(1)
    });
    let runtime = runtime.expect("a runtime without threads");
    let uplink = Uplink::Unix(DatagramPath {
        local: local.to_owned(),
        remote: remote.to_owned(),
    });
    let config = Config {
        ports: vec![PortConfig {
            mac: mac(n),
            ..PortConfig::default()
        }],
        uplinks: vec![uplink.into()],
        ..Config::default()
    };
    let (switch, engines) = SteppedSwitch::new(config, now).expect("a switch");
    let vm = Vm::new(
        n,
        &runtime,
        Arc::new(engines[0].clone()),
        &Limits::default(),
    );
    let hca = Arc::downgrade(&vm.hca);
    engines[0].on_ready(move |caller| notify(&hca, caller));
    (vm, runtime, switch)
}

#[test]
fn a_frame_is_received() {
    let dir = TempDir::new().unwrap();
    let now = Instant::now();
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    let [path_a, path_b] = &paths;
    let (a, runtime_a, mut switch_a) = daemon(1, path_a, path_b, now);
    let (b, runtime_b, mut switch_b) = daemon(2, path_b, path_a, now);
    let pair = Pair::between([&a, &b], Options::default(), Options::default());
    let mut settle = || {
        for runtime in [&runtime_a, &runtime_b] {
            stepped::rest(runtime, &[0]);
        }
        while switch_a.is_awake(now) {
            switch_a.round(now);
        }
    };
    settle();
    switch_b.round(now);
    let wr = Wr::new(2, WrOpcode::Send).local(&pair.ma, 0, 64);
    pair.qb.post_recv(1, &[sge(&pair.mb, 0, 64)]);
    pair.qa.post(&wr);
    settle();
    receive_frame(&mut switch_b, &runtime_b, now);
    pair.cq_b.expect(1, WcStatus::Success);
    for vm in [&a, &b] {
        vm.hca.detach();
    }
}

/// The command CREATE_QP.
#[inline(never)]
fn send_command(vm: &Vm, command: CmdCreateQpRings) -> Result<RspCreateQp, u8> {
    vm.call(command)
}

#[test]
fn a_qp_is_created() {
    let world = World::stepped(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let command = create_qp(vm, &cq);
    send_command(vm, command).expect("a QP");
}
