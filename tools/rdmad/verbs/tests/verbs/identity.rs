// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packets from somebody else than the peer that they name.

use std::os::unix::net::UnixDatagram;

use roce::headers::{Bth, Deth, Transport};
use roce::opcode::{Extra, Op, Opcode, Position, Service};
use roce::ud::{GSI_QKEY, GSI_QPN};
use roce::Psn;
use tempfile::TempDir;
use verbs::PathPolicy;
use virtio_rdma_abi::ib::{QpType, WcStatus};
use vswitch::{Config, DatagramPath};

use crate::harness::*;

/// A management datagram, as a process can send it to UDP port 4791.
fn management(from: &Vm, to: &Vm) -> Vec<u8> {
    let send = Opcode {
        service: Service::Ud,
        op: Op::Send(Position::Only, Extra::None),
    };
    let mut transport = Transport::new(Bth::new(send, 0xffff, GSI_QPN, Psn::new(0)));
    transport.deth = Some(Deth {
        qkey: GSI_QKEY,
        src_qpn: GSI_QPN,
    });
    frame(from, to, &transport, &[0x5a; 256])
}

/// The GSI QP belongs to the guest's kernel. A process of another guest must not reach it by UDP.
#[test]
fn the_gsi_qp_takes_nothing_from_a_network_interface() {
    let dir = TempDir::new().unwrap();
    let (local, remote) = (dir.path().join("switch"), dir.path().join("qemu"));
    let net = DatagramPath {
        local: local.clone(),
        remote: remote.clone(),
    };
    let daemon = Daemon::with_ports(1..=2, 1, PathPolicy::Wire, Config::default(), |port| {
        if port.mac == mac(2) {
            port.net = Some(net.clone());
        }
    });
    let [a, b] = [&daemon.vms[0], &daemon.vms[1]];
    let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
    let options = Options {
        qkey: GSI_QKEY,
        ..Options::of(QpType::Gsi)
    };
    let gsi = Qp::new(a, &cq_a, &cq_a, options);
    let theirs = Qp::new(b, &cq_b, &cq_b, options);
    connect(&gsi, &theirs);
    let mr = a.mr(4096);
    gsi.post_recv(9, &[sge(&mr, 0, 400)]);
    let qemu = UnixDatagram::bind(&remote).unwrap();
    qemu.send_to(&management(b, a), &local).unwrap();
    wait("a frame to be refused", || {
        (daemon.switch.stats()[1].refused == 1).then_some(())
    });
    // The engine of that VM is heard, and its datagram is the first.
    let data = b.mr(64);
    theirs.post(
        &Wr::new(1, virtio_rdma_abi::ib::WrOpcode::Send)
            .local(&data, 0, 64)
            .to(&gsi),
    );
    let cqe = cq_a.expect(9, WcStatus::Success);
    assert_eq!((cqe.byte_len, cqe.src_qp), (40 + 64, GSI_QPN));
}
