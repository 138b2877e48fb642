// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A panic in the work for one port stops that port until its reset. Other ports continue.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use roce::frame::{Frames, Lane};
use roce::net::Mac;
use roce::FramePort;
use testkit::engine::*;
use verbs::{Limits, PathPolicy, Runtime, RuntimeConfig};
use virtio_rdma_abi::ctrl::{CmdAttachMcast, CmdCreatePd, CmdDeregMr};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::wire::Wire;

const EIO: u8 = 5;

/// A frame port whose functions panic on request.
struct Fragile {
    port: Arc<dyn FramePort>,
    /// Number of calls that take frame buffers, of which the last one panics; 0 for none.
    takes: AtomicUsize,
    receives: AtomicBool,
    joins: AtomicBool,
}

impl Fragile {
    fn new(port: Arc<dyn FramePort>) -> Self {
        Self {
            port,
            takes: AtomicUsize::new(0),
            receives: AtomicBool::new(false),
            joins: AtomicBool::new(false),
        }
    }
}

impl Fragile {
    fn panic_if_last(&self) {
        let less = |left: usize| left.checked_sub(1);
        let left = self
            .takes
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if left == Ok(1) {
            panic!("planted");
        }
    }
}

fn panic_if(planted: &AtomicBool) {
    if planted.swap(false, Ordering::SeqCst) {
        panic!("planted");
    }
}

impl FramePort for Fragile {
    fn reserve(&self, to: &Mac, len: usize, count: usize, frames: &mut Frames) -> Lane {
        self.panic_if_last();
        self.port.reserve(to, len, count, frames)
    }

    fn lanes(&self) -> usize {
        self.port.lanes()
    }

    fn is_waiting(&self, to: &Mac) -> bool {
        self.port.is_waiting(to)
    }

    fn ticket(&self, to: &Mac) -> u64 {
        self.port.ticket(to)
    }

    fn has(&self, to: &Mac, ticket: u64) -> bool {
        self.port.has(to, ticket)
    }

    fn is_crowded(&self) -> bool {
        self.port.is_crowded()
    }

    fn room(&self, lane: Lane) -> usize {
        self.port.room(lane)
    }

    fn send(&self, frames: &mut Frames) {
        self.port.send(frames);
    }

    fn receive(&self, most: usize, into: &mut Frames) {
        panic_if(&self.receives);
        self.port.receive(most, into);
    }

    fn join(&self, mac: [u8; 6]) {
        self.port.join(mac);
        panic_if(&self.joins);
    }

    fn leave(&self, mac: [u8; 6]) {
        self.port.leave(mac);
    }

    fn memory(&self) -> usize {
        self.port.memory()
    }
}

/// Three VMs. The first has a fragile port.
struct Setting {
    world: World,
    fragile: Arc<Fragile>,
}

impl Setting {
    fn new(config: RuntimeConfig) -> Self {
        let net = Arc::new(Net::default());
        let runtime = Runtime::new(config).unwrap();
        let ports = [1, 2, 3].map(|n| net.port(mac(n)));
        let fragile = Arc::new(Fragile::new(ports[0].clone()));
        let limits = Limits::default();
        let vms = ports.iter().enumerate().map(|(index, port)| {
            let frames: Arc<dyn FramePort> = match index {
                0 => fragile.clone(),
                _ => port.clone(),
            };
            let vm = Vm::new(index + 1, &runtime, frames, &limits);
            port.attach(&vm.hca);
            vm
        });
        let vms = Vec::from_iter(vms);
        Self {
            world: World { vms, net, runtime },
            fragile,
        }
    }

    fn wire(workers: usize) -> Self {
        Self::new(RuntimeConfig {
            workers: Some(workers),
            path: PathPolicy::Wire,
            ..RuntimeConfig::default()
        })
    }

    /// Checks that the first device needs a reset and fails commands, and that the other VMs work.
    fn first_failed(&self) {
        let [first, second, third] = &self.world.vms[..] else {
            panic!("three VMs");
        };
        first.sink.expect_failure();
        assert_eq!(first.call(CmdCreatePd::ZERO).err(), Some(EIO));
        let pair = Pair::between([second, third], Options::default(), Options::default());
        for id in 0..10 {
            pair.write_and_wait(id);
        }
        let mr = second.mr(4096);
        second.call(CmdDeregMr { mrn: mr.mrn }).unwrap();
        assert!(second.sink.failure().is_none() && third.sink.failure().is_none());
    }

    /// Resets the first device and checks that it works again.
    fn first_recovers(mut self) {
        let first = &mut self.world.vms[0];
        first.hca.reset();
        first.start();
        let [first, second, _] = &self.world.vms[..] else {
            panic!("three VMs");
        };
        let pair = Pair::between([first, second], Options::default(), Options::default());
        for id in 0..10 {
            pair.write_and_wait(id);
        }
        assert!(first.sink.failure().is_none());
    }
}

#[test]
fn in_a_turn_of_a_qp() {
    for workers in [1, 2] {
        let setting = Setting::wire(workers);
        let [first, second] = [0, 1].map(|n| &setting.world.vms[n]);
        let pair = Pair::between([first, second], Options::default(), Options::default());
        pair.write_and_wait(1);
        setting.fragile.takes.store(1, Ordering::SeqCst);
        pair.write(2);
        setting.first_failed();
        // Until the reset, work requests of the driver have no effect.
        pair.write(3);
        assert_eq!(pair.cq_a.poll(), None);
        setting.first_recovers();
    }
}

/// Packets that were built before the panic are not sent.
#[test]
fn in_the_middle_of_a_message() {
    let setting = Setting::wire(1);
    let [first, second] = [0, 1].map(|n| &setting.world.vms[n]);
    let pair = Pair::between([first, second], Options::default(), Options::default());
    pair.write_and_wait(1);
    let sent = || setting.world.net.sent.load(Ordering::SeqCst);
    let before = sent();
    setting.fragile.takes.store(2, Ordering::SeqCst);
    pair.qa.post(&pair.wr(2, WrOpcode::RdmaWrite, 20_000));
    first.sink.expect_failure();
    assert_eq!(sent(), before);
    setting.first_failed();
    setting.first_recovers();
}

#[test]
fn in_a_turn_at_frames() {
    let setting = Setting::wire(1);
    let [first, second] = [0, 1].map(|n| &setting.world.vms[n]);
    let pair = Pair::between([second, first], Options::default(), Options::default());
    pair.write_and_wait(1);
    setting.fragile.receives.store(true, Ordering::SeqCst);
    pair.write(2);
    // A failed port sends no responses to its peer.
    pair.cq_a.expect(2, WcStatus::RetryExcErr);
    setting.first_failed();
    setting.first_recovers();
}

/// Frames that wait at a port that panicked are discarded: their buffers belong to the senders.
#[test]
fn frames_do_not_wait_for_a_device_that_panicked() {
    let setting = Setting::wire(1);
    let [first, second] = [0, 1].map(|n| &setting.world.vms[n]);
    setting.fragile.receives.store(true, Ordering::SeqCst);
    // More frames than one turn handles.
    let frames = [const { [0; 64] }; 200];
    setting.world.net.inject_all(first.mac, &frames);
    first.sink.expect_failure();
    let all_gone = || (setting.world.net.waiting(first.mac) == 0).then_some(());
    wait("the end of the frames", all_gone);
    setting.world.net.inject_all(first.mac, &frames);
    wait("the end of later frames", all_gone);
    assert!(second.sink.failure().is_none());
    setting.first_failed();
    setting.first_recovers();
}

#[test]
fn in_a_turn_of_the_thread_that_rings() {
    let setting = Setting::new(RuntimeConfig {
        workers: Some(1),
        path: PathPolicy::Wire,
        at_once: true,
        ..RuntimeConfig::default()
    });
    let [first, second] = [0, 1].map(|n| &setting.world.vms[n]);
    let pair = Pair::between([first, second], Options::default(), Options::default());
    setting.fragile.takes.store(1, Ordering::SeqCst);
    pair.write(1);
    setting.first_failed();
    setting.first_recovers();
}

#[test]
fn in_a_control_command() {
    let setting = Setting::wire(1);
    let first = &setting.world.vms[0];
    first.negotiate(&[Feature::Multicast]);
    let cq = Cq::new(first, 64);
    let qp = Qp::new(first, &cq, &cq, Options::of(QpType::Ud));
    setting.fragile.joins.store(true, Ordering::SeqCst);
    let mut mgid = [0; 16];
    mgid[..2].copy_from_slice(&[0xff, 0x0e]);
    let attach = CmdAttachMcast { qpn: qp.qpn, mgid };
    assert_eq!(first.call(attach).err(), Some(EIO));
    setting.first_failed();
    setting.first_recovers();
}

/// On the direct path, a worker has QPs of two ports locked when it panics. The QP of the other
/// port goes to ERR and its remaining receive is flushed.
#[test]
fn with_the_qp_of_a_peer_at_hand() {
    let setting = Setting::new(RuntimeConfig {
        workers: Some(1),
        path: PathPolicy::Direct,
        ..RuntimeConfig::default()
    });
    let [first, second] = [0, 1].map(|n| &setting.world.vms[n]);
    let pair = Pair::between([first, second], Options::default(), Options::default());
    let other = Pair::between([second, second], Options::default(), Options::default());
    pair.qb.post_recv(1, &[sge(&pair.mb, 0, 64)]);
    pair.qb.post_recv(2, &[sge(&pair.mb, 0, 64)]);
    pair.cq_b.arm(ArmKind::Next);
    second.sink.panics.store(true, Ordering::SeqCst);
    pair.qa.post(&pair.send(7, 8));
    first.sink.expect_failure();
    pair.cq_b.expect(1, WcStatus::Success);
    pair.cq_b.expect(2, WcStatus::WrFlushErr);
    pair.qb.wait_for(QpState::Err);
    other.qa.post(&other.wr(1, WrOpcode::RdmaWrite, 8));
    other.cq_a.expect(1, WcStatus::Success);
    drop((pair, other));
    setting.first_failed();
    setting.first_recovers();
}
