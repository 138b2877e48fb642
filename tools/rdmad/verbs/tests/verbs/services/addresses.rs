// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packets have the addresses and header fields of their address vector.

use std::net::Ipv6Addr;

use roce::frame::Frames;
use roce::net::{Addresses, Ecn};
use roce::{FramePort, Packet, Path};
use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::{CmdAddGid, CmdAddGidVlan};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AhFlags, QpAttrMask, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::{AhAttr, GlobalRoute, QpAttr};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{AddressVector, Datagram};

use super::USER_TYPES;

const SGID_INDEX: u8 = 3;
const VLAN: u16 = 0x123;
const SL: u8 = 5;
const TRAFFIC_CLASS: u8 = 0xb8;
const FLOW_LABEL: u32 = 0x9_1234;
const HOP_LIMIT: u8 = 17;
const PEER_QPN: Qpn = Qpn::new(0x4_5678);

fn address(last: u16) -> Ipv6Addr {
    [0xfd09, 0, 0, 0, 0, 0, 0, last].into()
}

/// The address vector of a connection.
fn connected(dmac: [u8; 6]) -> AhAttr {
    AhAttr {
        // abi
        grh: GlobalRoute {
            // abi: R-253
            dgid: address(9).octets(),
            // abi: R-254
            flow_label: FLOW_LABEL,
            // abi: R-255
            sgid_index: SGID_INDEX,
            // abi: R-256
            hop_limit: HOP_LIMIT,
            // abi: R-257
            traffic_class: TRAFFIC_CLASS,
        },
        // abi: R-247
        sl: SL,
        port_num: 1,
        ah_flags: AhFlags::GRH,
        // abi: R-251
        dmac,
        ..AhAttr::ZERO
    }
}

/// The address vector of a datagram, in its WQE.
fn datagram(vm: &Vm, dmac: [u8; 6]) -> Datagram {
    Datagram {
        // abi: R-771
        remote_qpn: PEER_QPN,
        remote_qkey: 1,
        // abi: R-774
        av: AddressVector {
            port: 1,
            pdn: vm.pdn,
            // abi: R-777
            sl_tclass_flowlabel: AddressVector::pack(SL, TRAFFIC_CLASS, FLOW_LABEL).unwrap(),
            // abi: R-778
            dgid: address(9).octets(),
            // abi: R-779
            gid_index: SGID_INDEX,
            // abi: R-781
            hop_limit: HOP_LIMIT,
            // abi: R-782
            dmac,
            ..AddressVector::ZERO
        },
    }
}

#[test]
fn packets_leave_as_their_address_vector_says() {
    in_both_modes(PathPolicy::Wire, |setup| {
        for qp_type in USER_TYPES {
            let world = World::new(1, setup);
            world.negotiate(&[Feature::GidVlan]);
            let vm = &world.vms[0];
            vm.call(CmdAddGidVlan {
                base: CmdAddGid {
                    gid: address(1).octets(),
                    gid_type: 2,
                    index: SGID_INDEX.into(),
                    port_num: 1,
                },
                vlan: VLAN,
            })
            .unwrap();
            // The packets are received by a port without a device.
            let peer = world.net.port(mac(9));
            let cq = Cq::new(vm, 64);
            let qp = Qp::new(vm, &cq, &cq, Options::of(qp_type));
            qp.to_init().unwrap();
            let mut mask = QpAttrMask::NONE;
            if qp_type != QpType::Ud {
                mask = QpAttrMask::AV
                    | QpAttrMask::PATH_MTU
                    | QpAttrMask::DEST_QPN
                    | QpAttrMask::RQ_PSN;
            }
            if qp_type == QpType::Rc {
                mask = mask | QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
            }
            let attr = QpAttr {
                path_mtu: Options::default().mtu.value(),
                dest_qp_num: PEER_QPN,
                ah_attr: connected(mac(9)),
                ..QpAttr::ZERO
            };
            qp.modify(QpState::Rtr, mask, attr).unwrap();
            qp.to_rts().unwrap();
            let mut wr = Wr::new(1, WrOpcode::Send);
            wr.to = (qp_type == QpType::Ud).then(|| datagram(vm, mac(9)));
            qp.post(&wr);
            let frame = wait("a packet", || {
                let mut frames = Frames::new();
                peer.receive(1, &mut frames);
                frames.pop()
            });
            let packet = Packet::parse(&frame).unwrap();
            let expected = Path {
                // Priority 5 in the upper 3 bits, VLAN id 0x123 in the lower 12 bits.
                // abi: R-795
                vlan: Some(0xa123),
                traffic_class: match qp_type {
                    QpType::Rc => Ecn::Capable.within(TRAFFIC_CLASS),
                    _ => TRAFFIC_CLASS,
                },
                flow_label: FLOW_LABEL,
                hop_limit: HOP_LIMIT,
                // Derived from the flow label 0x91234: 0xc000 | (0x1234 ^ (0x91234 >> 14)).
                src_port: 0xd210,
                ..Path::new(vm.mac, mac(9), Addresses::V6(address(1), address(9)))
            };
            // abi: R-784
            assert_eq!(packet.path, expected, "{qp_type:?}");
            assert_eq!(packet.headers.bth.dest_qpn, PEER_QPN);
            if qp_type != QpType::Rc {
                cq.expect(1, WcStatus::Success);
            }
        }
    });
}
