// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Datagrams, to one QP and to a multicast group.

use crate::apart;
use crate::endpoint::Endpoint;
use crate::endpoint::Options;
use crate::endpoint::PLAIN;
use crate::only;
use crate::pattern;
use crate::port::GID_INDEX;
use crate::region::OFFSET;
use crate::wire::*;

const QKEY: u32 = 0x1122_3344;
const OPTIONS: Options = Options {
    features: MULTICAST | GID_VLAN,
    qp_type: UD,
    ..PLAIN
};

/// The datagram member of a WQE's union. Unused fields are not 0.
fn to(qpn: u32, qkey: u32, gid: &[u8; 16], mac: &[u8; 6]) -> Fields {
    // abi
    Fields::default()
        // abi: R-771
        .le32(qpn)
        .le32(qkey)
        // abi: R-785
        .le32(99) // port
        .le32(99) // pdn
        // abi: R-777
        .le32((3 << 28) | (0x21 << 20) | 0x5_4321)
        // abi: R-778
        .raw(gid)
        // abi: R-779
        .u8(GID_INDEX as u8)
        .u8(99) // static_rate
        // abi: R-781
        .u8(55) // hop_limit
        // abi: R-782
        .raw(mac)
        .raw(&[99; 6])
}

/// Asserts that a datagram of `a` arrives in the MR of `b`, and returns its completion.
fn arrives(a: &Endpoint, b: &mut Endpoint, dgid: &[u8; 16], payload: &[u8]) -> Cqe {
    let cqe = only(&mut b.recv_cq);
    let header = b.region.extent.read(OFFSET, 40);
    // The first 4 bytes are version, traffic class and flow label.
    // abi: R-784
    assert_eq!(header[..4], [0x62, 0x15, 0x43, 0x21]);
    assert_eq!(header[7], 55);
    assert_eq!(header[8..24], a.gid);
    assert_eq!(header[24..], *dgid);
    // abi: R-679
    b.region.expect(&[(0, &header), (40, payload)]);
    cqe
}

/// The receive buffer begins with the network header, and the CQE has the sender's QPN.
#[test]
fn a_datagram_names_its_sender() {
    apart(OPTIONS, OPTIONS, |mut a, mut b| {
        a.open(1);
        b.open(QKEY);
        let payload = pattern(700);
        b.post_receive(&receive(1, &[b.region.sge(0, 1000)]));
        a.region.write(0, &payload);
        let from = [a.region.sge(0, 700)];
        // The first datagram has a wrong Q_Key, so it is not delivered to b.
        // abi: R-772
        for (wr_id, qkey) in [(2, QKEY + 1), (3, QKEY)] {
            let send = Send::new(opcode::SEND_WITH_IMM, wr_id)
                .member(to(b.qpn(), qkey, &b.gid, &b.mac))
                .ex([1, 2, 3, 4]);
            a.post_send(&send.with(&from));
            let sent = Cqe::sent(a.qpn(), wr_id, opcode::SEND_WITH_IMM, 700);
            assert_eq!(only(&mut a.send_cq), sent);
        }
        let dgid = b.gid;
        let received = Cqe {
            ex: [1, 2, 3, 4],
            // abi: R-689
            src_qp: a.qpn(),
            // abi
            wc_flags: GRH | WITH_IMM | WITH_NETWORK_HDR_TYPE,
            // abi: R-704
            sl: 9,
            // abi: R-686
            ..Cqe::received(b.qpn(), 1, 740)
        };
        assert_eq!(arrives(&a, &mut b, &dgid, &payload), received);
        a.end();
        b.end();
    });
}

/// Each member of a group, including the sender, receives its datagrams until it leaves.
#[test]
fn a_group_receives() {
    apart(OPTIONS, OPTIONS, |mut a, mut b| {
        let group = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
        // abi: R-804
        let mac = [0x33, 0x33, 1, 2, 3, 4];
        let member = |side: &mut Endpoint, command| {
            // abi: R-800
            let request = Fields::default().le32(side.qpn()).raw(&group);
            side.driver.command(command, &request.0, 0).unwrap();
        };
        for side in [&mut a, &mut b] {
            side.open(QKEY);
            member(side, command::ATTACH_MCAST);
            side.post_receive(&receive(1, &[side.region.sge(0, 100)]));
        }
        // abi: R-802
        let send = Send::new(opcode::SEND, 2).member(to(0xff_ffff, QKEY, &group, &mac));
        a.post_send(&send.clone().inline(&[7; 20]));
        assert_eq!(only(&mut a.send_cq).status, SUCCESS);
        // abi: R-811
        let cqe = arrives(&a, &mut b, &group, &[7; 20]);
        // abi: R-812
        assert_eq!((cqe.wr_id, cqe.src_qp, cqe.byte_len), (1, a.qpn(), 60));
        // abi: R-813
        assert_eq!(only(&mut a.recv_cq).src_qp, a.qpn());

        // abi: R-801
        member(&mut b, command::DETACH_MCAST);
        for side in [&mut a, &mut b] {
            side.post_receive(&receive(3, &[side.region.sge(0, 100)]));
        }
        a.post_send(&send.inline(&[8; 20]));
        assert_eq!(only(&mut a.recv_cq).wr_id, 3);
        // The datagram to the group is not delivered to b: b receives `direct` next.
        let direct = Send::new(opcode::SEND, 4).member(to(b.qpn(), QKEY, &b.gid, &b.mac));
        a.post_send(&direct.inline(&[9; 20]));
        let dgid = b.gid;
        assert_eq!(arrives(&a, &mut b, &dgid, &[9; 20]).wr_id, 3);
        a.end();
        b.end();
    });
}
