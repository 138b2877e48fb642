// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The wire path over the real switch: with faults, with a capture, with many VMs, and between two
//! processes.

use std::ops::RangeInclusive;
use std::path::Path;

use roce::headers::{Body, Part, RcRequest, RcResponse};
use roce::Packet;
use tempfile::TempDir;
use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ib::{Mtu, WcStatus, WrOpcode};
use vswitch::{Config, DatagramPath, Uplink};

/// A daemon with two workers that uses the wire path.
fn daemon(vms: RangeInclusive<usize>, config: Config) -> Daemon {
    Daemon::new(vms, 2, PathPolicy::Wire, config)
}

/// Options for a network without losses: the requester has no timeout.
fn lossless() -> Options {
    Options {
        mtu: Mtu::Mtu4096,
        timeout: 0,
        ..Options::default()
    }
}

/// Executes each operation once in each direction for each of `sizes`, in bytes. Checks all data
/// and completions.
fn exchange(a: &Vm, b: &Vm, options: Options, sizes: &[u32]) {
    let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
    let qa = Qp::new(a, &cq_a, &cq_a, options);
    let qb = Qp::new(b, &cq_b, &cq_b, options);
    connect(&qa, &qb);
    let largest = u64::from(sizes.iter().copied().max().unwrap_or(0));
    let (mr_a, mr_b) = (a.mr(2 * largest), b.mr(2 * largest));
    let ends = [(&qa, &cq_a, mr_a), (&qb, &cq_b, mr_b)];
    for (round, &size) in sizes.iter().enumerate() {
        for [(qp, cq, mr), (peer, peer_cq, peer_mr)] in [[ends[0], ends[1]], [ends[1], ends[0]]] {
            let (len, half) = (size as usize, largest);
            for (op, opcode) in [
                WrOpcode::Send,
                WrOpcode::RdmaWrite,
                WrOpcode::RdmaWriteWithImm,
                WrOpcode::RdmaRead,
            ]
            .into_iter()
            .enumerate()
            {
                let data = pattern(len, (round * 10 + op) as u64 + 1);
                let reads = opcode == WrOpcode::RdmaRead;
                let (from, to) = if reads { (peer, qp) } else { (qp, peer) };
                let (from_mr, to_mr) = if reads { (peer_mr, mr) } else { (mr, peer_mr) };
                from.vm.write(from_mr.iova, &data);
                to.vm.write(to_mr.iova + half, &vec![0; len]);
                let wr = match opcode {
                    WrOpcode::Send => {
                        peer.post_recv(7, &[sge(&peer_mr, half, size)]);
                        Wr::new(8, opcode).local(&mr, 0, size)
                    }
                    WrOpcode::RdmaRead => Wr::new(8, opcode)
                        .local(&mr, half, size)
                        .remote(&peer_mr, 0),
                    _ => Wr::new(8, opcode)
                        .local(&mr, 0, size)
                        .remote(&peer_mr, half),
                };
                if opcode == WrOpcode::RdmaWriteWithImm {
                    peer.post_recv(7, &[]);
                }
                qp.post(&wr);
                cq.expect(8, WcStatus::Success);
                if matches!(opcode, WrOpcode::Send | WrOpcode::RdmaWriteWithImm) {
                    assert_eq!(peer_cq.expect(7, WcStatus::Success).byte_len, size);
                }
                assert!(
                    to.vm.read(to_mr.iova + half, len) == data,
                    "{opcode:?} of {size} bytes"
                );
            }
        }
    }
    assert_eq!((cq_a.poll(), cq_b.poll()), (None, None));
    assert!(a.sink.is_empty() && b.sink.is_empty());
}

/// The packets of a capture file. Checks that all are valid.
fn captured(path: &Path) -> Vec<(u8, u32, Body)> {
    let file = std::fs::read(path).unwrap();
    let (mut packets, mut at) = (Vec::new(), 24);
    while at < file.len() {
        let len = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        let packet = Packet::parse(&file[at + 16..at + 16 + len]).unwrap();
        let headers = packet.headers;
        packets.push((
            packet.path.src_mac[5],
            headers.bth.psn.value(),
            headers.body,
        ));
        at += 16 + len;
    }
    packets
}

#[test]
fn data_survives_every_fault() {
    for seed in 1..=3 {
        let dir = TempDir::new().unwrap();
        let pcap = dir.path().join("out.pcap");
        let plan = "drop=0.02,duplicate=0.02,reorder=0.03,corrupt=0.02,delay=0.01";
        let daemon = daemon(
            1..=2,
            Config {
                pcap: Some(pcap.clone()),
                faults: Some(format!("{plan},seed={seed}").parse().unwrap()),
                ..Config::default()
            },
        );
        exchange(
            &daemon.vms[0],
            &daemon.vms[1],
            Options {
                // The code of 67 ms.
                timeout: 14,
                ..Options::default()
            },
            &[0, 1, 1023, 4097, 200_001],
        );
        drop(daemon);
        let packets = captured(&pcap);
        let mut requests: Vec<_> = packets
            .iter()
            .filter(|(.., body)| matches!(body, Body::Request(RcRequest::Part(_))))
            .collect();
        let sent = requests.len();
        requests.sort_by_key(|(from, psn, _)| (*from, *psn));
        requests.dedup();
        assert!(requests.len() < sent, "something was repeated");
    }
}

#[test]
fn a_perfect_network_carries_each_packet_once() {
    let dir = TempDir::new().unwrap();
    let pcap = dir.path().join("out.pcap");
    let config = Config {
        pcap: Some(pcap.clone()),
        ..Config::default()
    };
    let daemon = daemon(1..=2, config);
    exchange(&daemon.vms[0], &daemon.vms[1], lossless(), &[300_000]);
    drop(daemon);
    let packets = captured(&pcap);
    let count =
        |wanted: fn(&Body) -> bool| packets.iter().filter(|(.., body)| wanted(body)).count();
    let sends = |body: &Body| matches!(body, Body::Request(RcRequest::Part(Part::Send(_))));
    let writes = |body: &Body| matches!(body, Body::Request(RcRequest::Part(Part::Write(_))));
    let data = |body: &Body| matches!(body, Body::Response(RcResponse::Read(_)));
    let acks = |body: &Body| matches!(body, Body::Response(RcResponse::Ack(_)));
    let each = 300_000_usize.div_ceil(4096);
    // Both sides executed all operations.
    assert_eq!(count(sends), 2 * each);
    assert_eq!(count(writes), 4 * each);
    assert_eq!(count(data), 2 * each);
    assert!(count(acks) < packets.len() / 4);
}

#[test]
fn more_connections_than_the_switch_holds_frames_for() {
    const QPS: usize = 48;
    const SIZE: u32 = 200_000;
    let daemon = daemon(1..=2, Config::default());
    let [a, b] = [&daemon.vms[0], &daemon.vms[1]];
    let (cq_a, cq_b) = (Cq::new(a, 256), Cq::new(b, 256));
    let (from, to) = (a.mr(u64::from(SIZE)), b.mr(QPS as u64 * u64::from(SIZE)));
    let data = pattern(SIZE as usize, 9);
    a.write(from.iova, &data);
    let pairs: Vec<_> = (0..QPS)
        .map(|_| {
            let pair = (
                Qp::new(a, &cq_a, &cq_a, lossless()),
                Qp::new(b, &cq_b, &cq_b, lossless()),
            );
            connect(&pair.0, &pair.1);
            pair
        })
        .collect();
    for (n, (qa, _)) in pairs.iter().enumerate() {
        let at = n as u64 * u64::from(SIZE);
        qa.post(
            &Wr::new(n as u64, WrOpcode::RdmaWrite)
                .local(&from, 0, SIZE)
                .remote(&to, at),
        );
    }
    let mut ended: Vec<_> = (0..QPS)
        .map(|_| cq_a.next())
        .map(|cqe| (cqe.wr_id, cqe.status))
        .collect();
    ended.sort();
    let all: Vec<_> = (0..QPS as u64).map(|n| (n, 0)).collect();
    assert_eq!(ended, all);
    for n in 0..QPS as u64 {
        let at = to.iova + n * u64::from(SIZE);
        assert!(b.read(at, SIZE as usize) == data, "QP {n}");
    }
}

#[test]
fn daemons_are_joined_by_an_uplink() {
    let dir = TempDir::new().unwrap();
    let end = |local: &str, remote: &str| Config {
        uplinks: vec![Uplink::Unix(DatagramPath {
            local: dir.path().join(local),
            remote: dir.path().join(remote),
        })
        .into()],
        ..Config::default()
    };
    let left = daemon(1..=1, end("left", "right"));
    let right = daemon(2..=2, end("right", "left"));
    exchange(
        &left.vms[0],
        &right.vms[0],
        Options {
            // The code of about half a second. The timeout is this long because the sockets between
            // the daemons hold few frames.
            timeout: 17,
            ..lossless()
        },
        &[0, 5, 4096, 1 << 20],
    );
}
