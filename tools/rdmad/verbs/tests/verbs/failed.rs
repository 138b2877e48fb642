// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A failed device discards received frames at once. Their buffers belong to the senders, which
//! would otherwise run out of buffers.

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::Ordering;
use std::time::Duration;

use roce::headers::{Bth, Headers, RcRequest, SendPart};
use roce::net::{gid_to_ip, multicast_mac};
use roce::work::With;
use roce::Psn;
use tempfile::TempDir;
use testkit::engine::*;
use verbs::{Clock, Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ctrl::CmdAttachMcast;
use virtio_rdma_abi::event::{EventKind, FIRST_EVENT_QUEUE};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AsyncEvent, QpType, WcStatus, WrOpcode, MULTICAST_QPN};
use virtio_rdma_abi::number::Qpn;
use vswitch::{Config, DatagramPath, Uplink};

/// DMA address of memory that the test can take away.
const AT: u64 = 1 << 40;
const LEN: u64 = 0x4000;

fn rx_packets(vm: &Vm) -> u64 {
    vm.hca.status().counters.rx_packets
}

/// Resets the device and sets it up again, without the lost memory.
fn recover(vm: &mut Vm) {
    vm.hca.reset();
    if vm.space.has_lost() {
        vm.space.unmap(AT, LEN).unwrap();
        vm.space.restore().unwrap();
    }
    vm.start();
}

/// Takes memory of a VM away without a report to its device, as in the first moment after a loss.
fn lose_memory(vm: &Vm) {
    let file = File::from(dma::testing::shrinkable_memory(LEN).unwrap());
    let copy = file.try_clone().unwrap();
    vm.space.map(AT, copy.into(), 0, LEN, true).unwrap();
    file.set_len(0).unwrap();
    vm.write(AT, b"lost");
    assert!(vm.space.lost().is_some());
}

/// A RoCE packet from a host behind the uplink to the VM `to`.
fn packet(to: &Vm) -> Vec<u8> {
    let send = RcRequest::from(SendPart::Only(With::Nothing));
    let headers = Headers::new(Bth::new(0xffff, Qpn::new(77), Psn::new(0)), send);
    let mut gid = to.gid;
    gid[15] = 200;
    frame_between((mac(200), gid), (to.mac, to.gid), &headers, &[])
}

/// Frames from an uplink to two failed devices do not block the uplink for other devices.
#[test]
fn an_uplink_goes_on() {
    /// Number of frames for each failed device, more than the uplink has buffers.
    const FLOOD: usize = 6000;
    let fail = |vm: &Vm| vm.hca.fail("planted");
    for fail in [fail, lose_memory] {
        let dir = TempDir::new().unwrap();
        let [near, far] = ["near", "far"].map(|name| dir.path().join(name));
        let socket = UnixDatagram::bind(&far).unwrap();
        let config = Config {
            uplinks: vec![Uplink::Unix(DatagramPath {
                local: near.clone(),
                remote: far,
            })
            .into()],
            ..Config::default()
        };
        let mut daemon = Daemon::new(1..=3, 2, PathPolicy::Direct, config);
        let [first, second, third] = &daemon.vms[..] else {
            panic!("three VMs");
        };
        for vm in [first, second] {
            fail(vm);
            let packet = packet(vm);
            for _ in 0..FLOOD {
                socket.send_to(&packet, &near).unwrap();
            }
        }
        let arrives = |vm: &Vm| {
            let (packet, before) = (packet(vm), rx_packets(vm));
            // The switch may drop a frame while the buffers of earlier frames are in use.
            wait("a packet", || {
                socket.send_to(&packet, &near).unwrap();
                (rx_packets(vm) > before).then_some(())
            });
        };
        arrives(third);
        assert_eq!((rx_packets(first), rx_packets(second)), (0, 0));
        recover(&mut daemon.vms[0]);
        arrives(&daemon.vms[0]);
    }
}

/// A UD QP with its own CQ and MR.
struct Datagrams<'vm> {
    qp: Qp<'vm>,
    cq: Cq<'vm>,
    mr: Mr,
}

impl<'vm> Datagrams<'vm> {
    fn new(vm: &'vm Vm) -> Self {
        let cq = Cq::new(vm, 64);
        let qp = Qp::new(vm, &cq, &cq, Options::of(QpType::Ud));
        connect(&qp, &qp);
        let mr = vm.mr(4096);
        Self { qp, cq, mr }
    }

    fn post_recv(&self, id: u64) {
        self.qp.post_recv(id, &[sge(&self.mr, 0, 4096)]);
    }

    /// Sends a datagram and waits for its completion.
    fn send(&self, wr: &Wr) {
        self.qp.post(wr);
        self.cq.expect(wr.id, WcStatus::Success);
    }

    /// Waits for a datagram in receive `id`.
    fn expect(&self, id: u64) {
        self.cq.expect(id, WcStatus::Success);
    }
}

/// GID of the multicast address 239.1.2.3.
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];

/// Copies of multicast datagrams take buffers of the sender. A failed member of the group releases
/// these buffers.
#[test]
fn a_group_goes_on_without_a_member() {
    /// Number of datagrams, more than a port has buffers for copies.
    const COUNT: u64 = 1500;
    let mut daemon = Daemon::new(1..=3, 2, PathPolicy::Direct, Config::default());
    for vm in &daemon.vms {
        vm.negotiate(&[Feature::Multicast]);
    }
    let attach = |member: &Datagrams<'_>| {
        let qpn = member.qp.qpn;
        let attach = CmdAttachMcast { qpn, mgid: GROUP };
        member.qp.vm.call(attach).unwrap();
    };
    let send = |from: &Datagrams<'_>, id| {
        let mut wr = Wr::new(id, WrOpcode::Send).to(&from.qp);
        let to = wr.to.as_mut().unwrap();
        to.remote_qpn = MULTICAST_QPN;
        (to.av.dgid, to.av.dmac) = (GROUP, multicast_mac(gid_to_ip(GROUP)));
        from.send(&wr);
    };
    {
        let [sender, fails, member] = [0, 1, 2].map(|n| Datagrams::new(&daemon.vms[n]));
        attach(&fails);
        attach(&member);
        fails.qp.vm.hca.fail("planted");
        for id in 0..COUNT {
            member.post_recv(id);
            send(&sender, id);
            member.expect(id);
        }
        assert_eq!(rx_packets(fails.qp.vm), 0);
    }
    recover(&mut daemon.vms[1]);
    daemon.vms[1].negotiate(&[Feature::Multicast]);
    let [sender, member] = [0, 1].map(|n| Datagrams::new(&daemon.vms[n]));
    attach(&member);
    member.post_recv(1);
    send(&sender, 2);
    member.expect(1);
}

/// A failed device releases the frame buffers of its peer.
#[test]
fn a_peer_keeps_its_buffers() {
    /// Number of datagrams, more than a port has buffers.
    const COUNT: u64 = 2500;
    let mut daemon = Daemon::new(1..=3, 2, PathPolicy::Wire, Config::default());
    {
        let [sender, fails, other] = [0, 1, 2].map(|n| Datagrams::new(&daemon.vms[n]));
        fails.qp.vm.hca.fail("planted");
        for id in 0..COUNT {
            sender.send(&Wr::new(id, WrOpcode::Send).to(&fails.qp));
        }
        other.post_recv(1);
        sender.send(&Wr::new(2, WrOpcode::Send).to(&other.qp));
        other.expect(1);
        assert_eq!(rx_packets(fails.qp.vm), 0);
    }
    recover(&mut daemon.vms[1]);
    let [sender, receiver] = [0, 1].map(|n| Datagrams::new(&daemon.vms[n]));
    receiver.post_recv(1);
    sender.send(&Wr::new(2, WrOpcode::Send).to(&receiver.qp));
    receiver.expect(1);
}

/// Notifications of a driver to a failed device are handled after the reset.
#[test]
fn a_queue_that_was_rung_meanwhile_is_served_after_the_reset() {
    let config = RuntimeConfig {
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    let mut world = World::with_config(1, config, Limits::default());
    let vm = &mut world.vms[0];
    vm.hca.fail("planted");
    vm.hca.notified(FIRST_EVENT_QUEUE);
    // Waits until all workers sleep.
    world.runtime.advance(Duration::ZERO);
    recover(vm);
    vm.sink.buffers.store(0, Ordering::SeqCst);
    vm.hca.set_link(false);
    vm.sink.buffers.store(10, Ordering::SeqCst);
    vm.hca.notified(FIRST_EVENT_QUEUE);
    vm.sink.expect(EventKind::Async(AsyncEvent::PortErr), 1);
}
