// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Many QPs of several VMs send to one VM, or one VM reads from them. The network is memory: no
//! frame is lost, whatever the number of QPs.

use tempfile::TempDir;
use testkit::engine::*;
use testkit::wait_until;
use verbs::{Clock, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ib::{Mtu, QpType, WrOpcode};
use virtio_rdma_abi::ring::Doorbell;
use vswitch::{Config, DatagramPath, Uplink};

/// Number of VMs that send to, or are read by, the receiver.
const PEERS: usize = 5;

/// The size of a test.
#[derive(Clone, Copy)]
struct Load {
    /// Number of QPs of each peer.
    qps: usize,
    /// Bytes of the message of each QP.
    bytes: u32,
    mtu: Mtu,
}

/// The numbers that a test compares.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    failed: usize,
    dropped: u64,
    retransmitted: u64,
    timeouts: u64,
}

/// The number of work requests that fail if the peers and the receiver, which are connected by
/// `load.qps` QPs each, exchange messages. Calls `posted` when all are posted.
fn exchange(
    [peers, receiver]: [&[Vm]; 2],
    qp_type: QpType,
    opcode: WrOpcode,
    load: Load,
    posted: impl FnOnce(),
) -> usize {
    let [receiver] = receiver else {
        unreachable!("there is one receiver");
    };
    let memory = receiver.mr(load.bytes.into());
    let cq = Cq::new(receiver, 8192);
    let options = Options {
        mtu: load.mtu,
        rd_atomic: 1,
        slots: 4,
        timeout: 14,
        ..Options::of(qp_type)
    };
    let reads = opcode == WrOpcode::RdmaRead;
    let sides = Vec::from_iter(peers.iter().map(|peer| {
        let peer_cq = Cq::new(peer, 2048);
        let peer_memory = peer.mr(load.bytes.into());
        let pairs = Vec::from_iter((0..load.qps).map(|_| {
            let far = Qp::new(peer, &peer_cq, &peer_cq, options);
            let near = Qp::new(receiver, &cq, &cq, options);
            connect(&far, &near);
            (far, near)
        }));
        (peer_cq, peer_memory, pairs)
    }));
    for (_, peer_memory, pairs) in &sides {
        for (id, (far, near)) in (0..).zip(pairs) {
            let wr = Wr::new(id, opcode);
            match reads {
                true => near.post(&wr.local(&memory, 0, load.bytes).remote(peer_memory, 0)),
                false => far.post(&wr.local(peer_memory, 0, load.bytes).remote(&memory, 0)),
            }
        }
    }
    posted();
    let mut failed = 0;
    for (peer_cq, _, pairs) in &sides {
        let cq = if reads { &cq } else { peer_cq };
        failed += pairs.iter().filter(|_| cq.next().status != 0).count();
    }
    failed
}

/// The sum over devices and switches.
fn outcome(failed: usize, daemons: &[&Daemon]) -> Outcome {
    let mut sum = Outcome {
        failed,
        ..Outcome::default()
    };
    let mut packets = [0; 4];
    for daemon in daemons {
        for vm in &daemon.vms {
            let counters = vm.hca.status().counters;
            sum.retransmitted += counters.retransmitted_packets;
            sum.timeouts += counters.timeouts;
            packets[0] += counters.tx_packets;
            packets[1] += counters.marked_packets;
            packets[2] += counters.probes;
            packets[3] += counters.duplicates;
        }
        let stats = daemon.switch.stats();
        sum.dropped += stats.iter().map(|port| port.dropped).sum::<u64>();
    }
    let [sent, marked, probes, duplicates] = packets;
    println!("{sent} sent, {marked} marked, {probes} probes, {duplicates} duplicates, {sum:?}");
    sum
}

/// The exchange between VMs of one daemon that sends packets.
fn within_a_daemon(opcode: WrOpcode, load: Load, clock: Clock) -> Outcome {
    let config = RuntimeConfig {
        workers: Some(2),
        path: PathPolicy::Wire,
        clock,
        ..RuntimeConfig::default()
    };
    let daemon = Daemon::with_runtime(1..=PEERS + 1, config, Config::default(), |_| {});
    let (peers, receiver) = daemon.vms.split_at(PEERS);
    let failed = exchange([peers, receiver], QpType::Rc, opcode, load, || {});
    outcome(failed, &[&daemon])
}

/// The exchange between the VMs of one daemon and a VM of another one, over a Unix socket.
fn between_daemons(opcode: WrOpcode, load: Load) -> Outcome {
    let dir = TempDir::new().expect("a folder");
    let end = |local: &str, remote: &str| Config {
        uplinks: vec![Uplink::Unix(DatagramPath {
            local: dir.path().join(local),
            remote: dir.path().join(remote),
        })
        .into()],
        ..Config::default()
    };
    let left = Daemon::new(1..=PEERS, 2, PathPolicy::Direct, end("left", "right"));
    let right = Daemon::new(6..=6, 2, PathPolicy::Direct, end("right", "left"));
    let failed = exchange([&left.vms, &right.vms], QpType::Rc, opcode, load, || {});
    outcome(failed, &[&left, &right])
}

/// 300 QPs send 9,600 packets.
const SMALL: Load = Load {
    qps: 60,
    bytes: 32 << 10,
    mtu: Mtu::Mtu1024,
};

/// The time stands still, so no packet is sent again only because it is late.
#[test]
fn messages_of_many_qps_of_one_vm_lose_nothing() {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        let outcome = within_a_daemon(opcode, SMALL, Clock::manual());
        assert_eq!(outcome, Outcome::default(), "{opcode:?}");
    }
}

/// No window limits the packets of unreliable connections. The receiver takes no packet until so
/// many wait that their senders have to wait too.
#[test]
fn packets_of_unreliable_connections_arrive_at_a_slow_vm() {
    /// Number of frames that wait for an engine from which on senders get few buffers.
    const CROWDED: u64 = 2048;
    let load = Load {
        qps: 4,
        bytes: 256 << 10,
        mtu: Mtu::Mtu1024,
    };
    let daemon = Daemon::new(1..=PEERS + 1, 2, PathPolicy::Wire, Config::default());
    let (peers, receiver) = daemon.vms.split_at(PEERS);
    let packets = (PEERS * load.qps) as u64 * u64::from(load.bytes / load.mtu.bytes());
    let waiting = || daemon.switch.stats()[PEERS].engine_queue.frames;
    daemon.set_deaf(PEERS, true);
    let slow = || {
        wait_until("a crowded VM", || waiting() >= CROWDED);
        let sent = peers.iter().map(|vm| vm.hca.status().counters.tx_packets);
        assert!(sent.sum::<u64>() < packets, "the senders wait");
        daemon.set_deaf(PEERS, false);
    };
    let failed = exchange(
        [peers, receiver],
        QpType::Uc,
        WrOpcode::RdmaWrite,
        load,
        slow,
    );
    assert_eq!(failed, 0);
    let taken = || receiver[0].hca.status().counters.rx_packets;
    let lost = || {
        daemon
            .switch
            .stats()
            .iter()
            .map(|port| port.dropped)
            .sum::<u64>()
    };
    wait_until("the packets", || taken() + lost() == packets);
    assert_eq!((taken(), lost()), (packets, 0));
}

#[test]
#[ignore = "takes long in a debug build"]
fn thousands_of_qps_send_to_one_vm() {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        for qps in [60, 200, 600] {
            let load = Load {
                qps,
                bytes: 1_000_000,
                mtu: Mtu::Mtu1024,
            };
            println!("{opcode:?}, {} QPs", PEERS * qps);
            let outcome = within_a_daemon(opcode, load, Clock::default());
            assert_eq!((outcome.failed, outcome.dropped), (0, 0), "{outcome:?}");
        }
    }
}

#[test]
#[ignore = "takes long in a debug build"]
fn thousands_of_qps_send_to_one_vm_of_another_daemon() {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        for qps in [60, 400] {
            let load = Load {
                qps,
                bytes: 1_000_000,
                mtu: Mtu::Mtu4096,
            };
            println!("{opcode:?}, {} QPs", PEERS * qps);
            let outcome = between_daemons(opcode, load);
            assert_eq!((outcome.failed, outcome.dropped), (0, 0), "{outcome:?}");
        }
    }
}

/// The port has room for the responses to 16 requests. The QPs that wait for room come first when
/// responses have arrived.
#[test]
fn qps_of_a_port_read_in_turn() {
    const QPS: usize = 40;
    const MESSAGES: u64 = 6;
    const LEN: u32 = 64 << 10;
    let world = World::stepped(1, PathPolicy::Wire);
    let vms = [&world.vms[0], &world.vms[1]];
    let pair = || Pair::between(vms, Options::default(), Options::default());
    let pairs = Vec::from_iter(std::iter::repeat_with(pair).take(QPS));
    for pair in &pairs {
        let read = |id| {
            let wr = Wr::new(id, WrOpcode::RdmaRead);
            wr.local(&pair.ma, 0, LEN).remote(&pair.mb, 0).bytes()
        };
        pair.qa.post_all(&Vec::from_iter((0..MESSAGES).map(read)));
        pair.qa.ring_doorbell(Doorbell::Sq);
    }
    let mut done = [0; QPS];
    while done.iter().all(|count| *count < MESSAGES) {
        assert!(world.runtime.step(0), "{done:?}");
        for (done, pair) in done.iter_mut().zip(&pairs) {
            while let Some(cqe) = pair.cq_a.poll() {
                assert_eq!(cqe.status, 0);
                *done += 1;
            }
        }
    }
    assert!(done.iter().all(|count| count + 2 >= MESSAGES), "{done:?}");
}
