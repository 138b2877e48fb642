// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests and attributes, mostly with valid fields.

use testkit::engine::{Mr, Vm};
use virtio_rdma_abi::ib::{
    AccessFlags, AhFlags, FlushTypes, QpAttrMask, QpState, SendFlags, WrOpcode,
};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::{AhAttr, GlobalRoute, QpAttr};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{
    AddressVector, Atomic, AtomicWrite, BindMw, Datagram, Flush, Member, Rdma, Reg, RegPages,
    RqHeader, Sge, SqHeader,
};

use crate::input::Input;

/// Access flags, mostly all of them.
pub fn access(input: &mut Input<'_>) -> AccessFlags {
    match input.below(4) {
        0 => AccessFlags(input.any()),
        1 => AccessFlags(u32::from(input.any::<u8>())),
        _ => AccessFlags(0x1f),
    }
}

fn offset(input: &mut Input<'_>) -> u64 {
    let usual = input.any::<u8>();
    input.edge(usual.into())
}

fn length(input: &mut Input<'_>) -> u32 {
    let usual = input.any::<u16>() % 5000;
    input.edge32(usual.into())
}

fn sges(input: &mut Input<'_>, mr: &Mr) -> Vec<Sge> {
    let piece = |input: &mut Input<'_>| Sge {
        addr: offset(input).wrapping_add(mr.addr),
        length: length(input),
        lkey: input.edge32(mr.key),
    };
    (0..input.below(4)).map(|_| piece(input)).collect()
}

/// Bytes of a send WQE. The first MR is its local memory, the second its remote memory.
pub fn send(input: &mut Input<'_>, mrs: &[Mr; 2], peer: &Vm, qpns: &[Qpn]) -> Vec<u8> {
    let [ours, theirs] = mrs;
    let opcode = input.of(WrOpcode::ALL);
    let mut wr: [u8; 51] = [0; 51];
    let remote = Rdma {
        remote_addr: input.edge(theirs.addr),
        rkey: input.edge32(theirs.key),
    };
    match opcode {
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => Atomic {
            remote_addr: remote.remote_addr,
            compare_add: input.any::<u8>().into(),
            swap: input.any::<u8>().into(),
            rkey: remote.rkey,
        }
        .store(&mut wr),
        WrOpcode::AtomicWrite => AtomicWrite {
            remote_addr: remote.remote_addr,
            data: [7; 8],
            rkey: remote.rkey,
        }
        .store(&mut wr),
        WrOpcode::Flush => Flush {
            remote_addr: remote.remote_addr,
            length: input.edge32(64),
            rkey: remote.rkey,
            types: FlushTypes(input.any::<u8>() & 7),
            level: input.any::<u8>() % 3,
            reserved: [0; 6],
        }
        .store(&mut wr),
        WrOpcode::RegMr => RegPages {
            base: Reg {
                mrn: input.number(ours.mrn),
                key: input.edge32(ours.key),
                access: access(input),
            },
            pages: input.edge(ours.iova),
            npages: input.edge32(2),
            iova: input.edge(ours.addr),
            length: input.edge(8192),
            page_shift: input.of(&[12, 12, 21, 63]),
            reserved: [0; 4],
        }
        .store(&mut wr),
        WrOpcode::BindMw => BindMw {
            addr: input.edge(ours.addr),
            length: input.edge(64),
            mw_rkey: input.edge32(ours.key),
            rkey: input.edge32(ours.key),
            lkey: input.edge32(ours.key),
            access: access(input),
            reserved: [0; 4],
        }
        .store(&mut wr),
        _ if input.once_in(3) => datagram(input, peer, qpns).store(&mut wr),
        _ => remote.store(&mut wr),
    }
    let sges = sges(input, ours);
    let header = SqHeader {
        num_sge: input.edge32(sges.len() as u32),
        send_flags: SendFlags(u32::from(input.any::<u8>() & 0x1f)),
        opcode: input.edge32(opcode.value()),
        wr_id: input.any::<u8>().into(),
        ex: input.edge32(ours.key).to_le_bytes(),
        wr,
    };
    with_sges(header.to_bytes().to_vec(), &sges)
}

fn datagram(input: &mut Input<'_>, peer: &Vm, qpns: &[Qpn]) -> Datagram {
    let qpn = qpns[input.below(qpns.len())];
    Datagram {
        remote_qpn: input.number(qpn),
        remote_qkey: input.edge32(0x1234_5678),
        av: AddressVector {
            port: input.edge32(1),
            pdn: input.number(peer.pdn),
            sl_tclass_flowlabel: input.any::<u8>().into(),
            dgid: peer.gid,
            gid_index: input.of(&[1, 1, 1, 0, 2, 255]),
            static_rate: 0,
            hop_limit: 64,
            dmac: peer.mac,
            reserved: [0; 6],
        },
    }
}

/// Bytes of a receive WQE.
pub fn receive(input: &mut Input<'_>, mrs: &[Mr; 2]) -> Vec<u8> {
    let sges = sges(input, &mrs[0]);
    let header = RqHeader {
        num_sge: input.edge32(sges.len() as u32),
        wr_id: input.any::<u8>().into(),
    };
    with_sges(header.to_bytes().to_vec(), &sges)
}

fn with_sges(mut bytes: Vec<u8>, sges: &[Sge]) -> Vec<u8> {
    for sge in sges {
        bytes.extend(sge.to_bytes());
    }
    bytes
}

/// Attributes of a QP whose peer is QP `qpn` of `peer`.
pub fn attributes(input: &mut Input<'_>, peer: &Vm, qpn: Qpn) -> (QpAttrMask, QpAttr) {
    let state = input.of(QpState::ALL);
    let usual = match state {
        QpState::Init => QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS,
        QpState::Rtr => {
            QpAttrMask::AV
                | QpAttrMask::PATH_MTU
                | QpAttrMask::DEST_QPN
                | QpAttrMask::RQ_PSN
                | QpAttrMask::MAX_DEST_RD_ATOMIC
                | QpAttrMask::MIN_RNR_TIMER
        }
        QpState::Rts => {
            QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC
                | QpAttrMask::SQ_PSN
        }
        _ => QpAttrMask::NONE,
    };
    let changed = match input.below(4) {
        0 => input.any::<u32>(),
        1 => 1 << input.below(32),
        _ => 0,
    };
    let mask = QpAttrMask((usual | QpAttrMask::STATE).0 ^ changed);
    let route = GlobalRoute {
        dgid: peer.gid,
        flow_label: input.edge32(0),
        sgid_index: input.of(&[1, 1, 0, 9]),
        hop_limit: input.any(),
        traffic_class: input.any(),
    };
    let attrs = QpAttr {
        qp_state: state.value(),
        cur_qp_state: input.of(QpState::ALL).value(),
        path_mtu: input.any::<u8>() % 7,
        qkey: input.edge32(0x1234_5678),
        rq_psn: input.edge32(0xff_fff0),
        sq_psn: input.edge32(0xff_fff0),
        dest_qp_num: input.number(qpn),
        qp_access_flags: access(input),
        port_num: input.of(&[1, 1, 1, 0, 2]),
        max_rd_atomic: input.of(&[1, 4, 128, 129, 255]),
        max_dest_rd_atomic: input.of(&[1, 4, 128, 129, 255]),
        min_rnr_timer: input.any::<u8>() % 33,
        timeout: input.any::<u8>() % 33,
        retry_cnt: input.any::<u8>() % 9,
        rnr_retry: input.any::<u8>() % 9,
        rate_limit: input.edge32(1000),
        ah_attr: AhAttr {
            grh: route,
            sl: input.any::<u8>() % 17,
            port_num: 1,
            ah_flags: AhFlags(input.of(&[1, 1, 1, 0])),
            dmac: peer.mac,
            ..AhAttr::ZERO
        },
        ..QpAttr::ZERO
    };
    (mask, attrs)
}
