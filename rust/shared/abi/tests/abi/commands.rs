// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Configuration space, control commands and QP attributes.

use virtio_rdma_abi::config::{
    eui64_from_mac, mac_from_eui64, Config, CounterSetConfig, CqModerationConfig, DeviceCaps,
    OwnRingsConfig, QpTypes, RateLimitConfig, SrqConfig, CONFIG_SIZE, COUNTER_SET_CONFIG_OFFSET,
    CQ_MODERATION_CONFIG_OFFSET, DOORBELL_SHM_ID, OWN_RINGS_CONFIG_OFFSET, QUEUE_COUNT_RANGE,
    RATE_LIMIT_CONFIG_OFFSET, SRQ_CONFIG_OFFSET,
};
use virtio_rdma_abi::ctrl::{
    CmdAddGid, CmdAddGidVlan, CmdAllocMw, CmdAttachMcast, CmdBindCounterSet, CmdCreateCounterSet,
    CmdCreateCq, CmdCreateCqRing, CmdCreateMr, CmdCreatePd, CmdCreateQp, CmdCreateQpRings,
    CmdCreateSrq, CmdDeallocMw, CmdDelGid, CmdDeregMr, CmdDestroyCounterSet, CmdDestroyCq,
    CmdDestroyPd, CmdDestroyQp, CmdDestroySrq, CmdDetachMcast, CmdGetDmaMr, CmdMapMrSg,
    CmdModifyCq, CmdModifyQp, CmdModifySrq, CmdQueryCounterSet, CmdQueryCounters, CmdQueryPkey,
    CmdQueryPort, CmdQueryQp, CmdQuerySrq, CmdRegUserMr, CmdRegUserMrPages, CmdReqNotify,
    CmdReregMr, CmdResizeCq, CmdRevokeMr, CmdSetPort, CmdSetRateLimit, Command, ControlCommand,
    CreateFlags, Empty, NotifyFlags, PageListDepth, ReregFlags, RspAllocMw, RspCreateCounterSet,
    RspCreateCq, RspCreatePd, RspCreateQp, RspCreateSrq, RspMapMrSg, RspMr, RspQueryCounters,
    RspQueryPkey, RspQueryPort, RspQueryQp, RspQuerySrq, RspResizeCq, SrqAttrMask, CONTROL_QUEUE,
    MAX_REQUEST, MAX_RESPONSE, RESPONSE_OK,
};
use virtio_rdma_abi::ib::{
    AccessFlags, AhFlags, GidType, Mtu, PortCaps, QpAttrMask, QpState, QpType, SigType, MAX_VLAN,
    NO_VLAN,
};
use virtio_rdma_abi::number::{CounterSetNumber, Cqn, MrNumber, MwNumber, Pdn, Qpn, Srqn};
use virtio_rdma_abi::qp::{AhAttr, GlobalRoute, QpAttr, QpCap};
use virtio_rdma_abi::ring::RingAddr;
use virtio_rdma_abi::wire::Wire;

use super::check;

const DGID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 2];

#[test]
fn configuration() {
    // abi
    check(
        Config {
            phys_port_cnt: 1,
            // abi: R-3
            sys_image_guid: [0x50, 0x54, 0, 0xff, 0xfe, 9, 0, 1],
            vendor_id: 0x1af4,
            vendor_part_id: 42,
            // abi: R-1
            hw_ver: 0x0102_0304,
            max_mr_size: 0x1122_3344_5566_7788,
            page_size_cap: 0x1000,
            max_qp: 0x0101,
            max_qp_wr: 0x0202,
            // abi: R-39
            device_cap_flags: DeviceCaps::RC_RNR_NAK_GEN | DeviceCaps::SG_GAPS_REG,
            max_send_sge: 3,
            max_recv_sge: 4,
            max_sge_rd: 5,
            max_cq: 6,
            max_cqe: 7,
            max_mr: 8,
            max_pd: 9,
            max_qp_rd_atom: 10,
            max_res_rd_atom: 11,
            max_qp_init_rd_atom: 12,
            atomic_cap: 2,
            max_mw: 13,
            max_mcast_grp: 14,
            max_mcast_qp_attach: 15,
            max_total_mcast_qp_attach: 16,
            max_ah: 17,
            max_fast_reg_page_list_len: 18,
            max_pi_fast_reg_page_list_len: 19,
            max_pkeys: 0x2122,
            local_ca_ack_delay: 23,
        },
        "01000000 505400fffe090001 f41a0000 2a000000 04030201
         8877665544332211 0010000000000000 01010000 02020000 0010000001000000
         03000000 04000000 05000000 06000000 07000000 08000000 09000000
         0a000000 0b000000 0c000000 02 0d000000 0e000000 0f000000 10000000
         11000000 12000000 13000000 2221 17",
    );
    // abi: R-62
    check(
        OwnRingsConfig {
            num_event_queues: 1,
            max_qp: 0x4001,
            max_qp_wr: 0x8000,
            max_cq: 4,
            max_cqe: 5,
            max_inline_data: 6,
            doorbell_pages: 0x1000,
            doorbell_shift: 16,
            reserved: [0; 3],
        },
        "01000000 01400000 00800000 04000000 05000000 06000000 00100000 10 000000",
    );
    assert_eq!(OWN_RINGS_CONFIG_OFFSET, 128);
    // 128 defined bytes and the RFC's 64 reserved le64.
    assert_eq!(CONFIG_SIZE, 128 + 64 * 8);
    assert_eq!(DOORBELL_SHM_ID, 1);
    assert_eq!(
        (*QUEUE_COUNT_RANGE.start(), *QUEUE_COUNT_RANGE.end()),
        (1, 16384)
    );
}

// abi
#[test]
fn guid_of_a_mac_address() {
    let mac = [0x52, 0x54, 0, 9, 0, 1];
    let guid = [0x50, 0x54, 0, 0xff, 0xfe, 9, 0, 1];
    assert_eq!(eui64_from_mac(mac), guid);
    assert_eq!(mac_from_eui64(guid), Some(mac));
    assert_eq!(mac_from_eui64([0x50, 0x54, 0, 0xff, 0xff, 9, 0, 1]), None);
}

#[test]
fn port_and_tables() {
    // abi: R-125
    check(CmdQueryPort { port: 1 }, "01");
    let reserved = "00".repeat(128);
    // abi
    check(
        RspQueryPort {
            state: 4,
            max_mtu: Mtu::Mtu4096.value(),
            active_mtu: Mtu::Mtu1024.value(),
            phys_mtu: 1500,
            gid_tbl_len: 0x0100,
            port_cap_flags: PortCaps::CM_SUP,
            max_msg_sz: 0x8000_0000,
            bad_pkey_cntr: 1,
            qkey_viol_cntr: 2,
            pkey_tbl_len: 3,
            active_width: 2,
            active_speed: 0x0120,
            phys_state: 5,
            reserved: [0; 128],
        },
        &format!("04 05 03 dc050000 00010000 00000100 00000080 01000000 02000000 0300 02 2001 05 {reserved}"),
    );
    // abi: R-983
    check(
        CmdSetPort {
            // abi: R-984
            port: 1,
            // abi: R-985
            state: 4,
            // abi: R-986
            mtu: 1500,
        },
        "01 04 dc050000",
    );
    // abi: R-147
    check(
        CmdQueryPkey {
            port: 1,
            index: 0x0203,
        },
        "01000000 0302",
    );
    // abi: R-148
    check(RspQueryPkey { pkey: 0xff7f }, "7fff");
    // abi: R-153
    check(
        CmdAddGid {
            // abi: R-3
            gid: DGID,
            gid_type: GidType::RoceV2.value(),
            index: 0x0304,
            port_num: 1,
        },
        "00000000000000000000ffff0a090002 02000000 0403 01000000",
    );
    // abi: R-792
    check(
        CmdAddGidVlan {
            base: CmdAddGid {
                gid: DGID,
                gid_type: GidType::RoceV2.value(),
                index: 0x0304,
                port_num: 1,
            },
            vlan: 0x0ffe,
        },
        "00000000000000000000ffff0a090002 02000000 0403 01000000 fe0f",
    );
    assert_eq!((NO_VLAN, MAX_VLAN), (0xffff, 0x0ffe));
    // abi: R-155
    check(
        CmdDelGid {
            index: 0x0304,
            port: 1,
        },
        "0403 01000000",
    );
}

// abi: R-321
#[test]
fn registration_again() {
    let memory = CmdRegUserMrPages {
        base: CmdRegUserMr {
            pdn: Pdn::new(1),
            access_flags: AccessFlags::LOCAL_WRITE,
            start: 2,
            length: 3,
            virt_addr: 4,
            pages: 5,
            npages: 6,
        },
        page_shift: 12,
        depth: 1,
        reserved: [0; 6],
    };
    check(
        CmdReregMr {
            mrn: MrNumber::new(0x0102_0304),
            flags: ReregFlags::TRANSLATION | ReregFlags::ACCESS,
            memory,
        },
        "04030201 05000000 01000000 01000000 0200000000000000 0300000000000000
         0400000000000000 0500000000000000 06000000 0c 01 000000000000",
    );
}

// abi
#[test]
fn memory_windows() {
    check(
        CmdAllocMw {
            pdn: Pdn::new(0x0102_0304),
            mw_type: 2,
            reserved: [0; 3],
        },
        "04030201 02 000000",
    );
    check(
        RspAllocMw {
            mwn: MwNumber::new(0x0001_0001),
            rkey: 0x0100_01fe,
        },
        "01000100 fe010001",
    );
    check(
        CmdDeallocMw {
            mwn: MwNumber::new(0x0001_0001),
        },
        "01000100",
    );
}

#[test]
fn completion_queues() {
    // abi: R-165
    check(CmdCreateCq { cqe: 0x0102_0304 }, "04030201");
    // abi: R-166
    check(RspCreateCq { cqn: Cqn::new(5) }, "05000000");
    // abi: R-167
    check(CmdDestroyCq { cqn: Cqn::new(5) }, "05000000");
    // abi: R-905
    check(
        CmdReqNotify {
            cqn: Cqn::new(5),
            flags: NotifyFlags::NEXT_COMPLETION,
        },
        "05000000 02000000",
    );
    // abi: R-506
    check(RING, RING_HEX);
    // abi: R-507
    check(
        CmdCreateCqRing {
            base: CmdCreateCq { cqe: 100 },
            flags: CreateFlags::USER,
            ring: RING,
            doorbell_page: 0x0fff,
            event_queue: 2,
            cookie: 0x8182_8384_8586_8788,
            reserved: [0; 8],
        },
        "64000000 01000000 0070665544332211 34120000 00800000 0c 06 01 0000000000
         ff0f0000 02000000 8887868584838281 0000000000000000",
    );
}

#[test]
fn protection_domains_and_memory_regions() {
    // abi: R-163
    check(CmdCreatePd {}, "");
    check(Empty {}, "");
    check(RspCreatePd { pdn: Pdn::new(6) }, "06000000");
    // abi: R-164
    check(CmdDestroyPd { pdn: Pdn::new(6) }, "06000000");
    let access_flags =
        AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::RELAXED_ORDERING;
    // abi: R-270
    check(
        CmdGetDmaMr {
            pdn: Pdn::new(6),
            access_flags,
        },
        "06000000 05001000",
    );
    // abi: R-272
    check(
        CmdCreateMr {
            pdn: Pdn::new(6),
            access_flags,
            max_num_sg: 257,
        },
        "06000000 05001000 01010000",
    );
    // abi: R-273
    check(
        RspMr {
            // abi: R-274
            mrn: MrNumber::new(1),
            // abi: R-275
            lkey: 0x0203_0405,
            // abi: R-276
            rkey: 0x0607_0809,
        },
        "01000000 05040302 09080706",
    );
    // abi: R-339
    check(
        CmdMapMrSg {
            mrn: MrNumber::new(1),
            npages: 2,
            start: 0x0102_0304_0506_0708,
            length: 0x2000,
            pages: 0x1122_3344_5566_7000,
        },
        "01000000 02000000 0807060504030201 0020000000000000 0070665544332211",
    );
    // abi: R-340
    check(RspMapMrSg { npages: 2 }, "02000000");
    // abi: R-271
    check(
        CmdRegUserMr {
            pdn: Pdn::new(6),
            access_flags,
            start: 0x7f00_0000_0123,
            length: 0x2000,
            virt_addr: 0x0102_0304_0506_0708,
            pages: 0x1122_3344_5566_7000,
            npages: 3,
        },
        "06000000 05001000 23010000007f0000 0020000000000000 0807060504030201 0070665544332211 03000000",
    );
    // abi: R-305
    check(
        CmdRegUserMrPages {
            base: CmdRegUserMr {
                pdn: Pdn::new(6),
                access_flags,
                start: 0x7f00_0000_0123,
                length: 0x2000,
                virt_addr: 0x0102_0304_0506_0708,
                pages: 0x1122_3344_5566_7000,
                npages: 3,
            },
            page_shift: 21,
            depth: PageListDepth::TwoLevels.value(),
            reserved: [0; 6],
        },
        "06000000 05001000 23010000007f0000 0020000000000000 0807060504030201 0070665544332211 03000000 \
         15 01 000000000000",
    );
    // abi: R-277
    check(
        CmdDeregMr {
            mrn: MrNumber::new(1),
        },
        "01000000",
    );
    // abi: R-365
    check(
        CmdRevokeMr {
            mrn: MrNumber::new(2),
        },
        "02000000",
    );
}

/// A CREATE_QP with a different value in every field. Its bytes follow.
const CREATE_QP: CmdCreateQp = CmdCreateQp {
    pdn: Pdn::new(1),
    qp_type: QpType::Rc.value(),
    sq_sig_type: SigType::Requested.value(),
    max_send_wr: 3,
    max_send_sge: 4,
    send_cqn: Cqn::new(5),
    max_recv_wr: 6,
    max_recv_sge: 7,
    recv_cqn: Cqn::new(8),
    max_inline_data: 9,
    flags: CreateFlags::USER,
    srqn: Srqn::NONE,
    reserved: [0; 24],
};
const CREATE_QP_HEX: &str =
    "01000000 02 01 03000000 04000000 05000000 06000000 07000000 08000000 09000000
    01000000 00000000000000000000000000000000000000000000000000000000";

#[test]
fn queue_pairs() {
    // abi: R-170
    check(CREATE_QP, CREATE_QP_HEX);
    // abi: R-171
    check(
        RspCreateQp {
            qpn: Qpn::new(0x00ab_cdef),
        },
        "efcdab00",
    );
    // abi: R-172
    check(
        CmdDestroyQp {
            qpn: Qpn::new(0x00ab_cdef),
        },
        "efcdab00",
    );
    // abi: R-506
    let sq = RingAddr {
        pages: 0x1000,
        npages: 1,
        slots: 16,
        page_shift: 12,
        slot_shift: 7,
        depth: 1,
        reserved: [0; 5],
    };
    // abi: R-508
    check(
        CmdCreateQpRings {
            base: CREATE_QP,
            sq,
            rq: RingAddr {
                pages: 0x2000,
                npages: 2,
                slots: 32,
                page_shift: 21,
                slot_shift: 8,
                depth: 0,
                reserved: [0; 5],
            },
            doorbell_page: 10,
            cookie: 0x8182_8384_8586_8788,
        },
        &format!(
            "{CREATE_QP_HEX} 0010000000000000 01000000 10000000 0c 07 01 0000000000
             0020000000000000 02000000 20000000 15 08 00 0000000000 0a000000 8887868584838281"
        ),
    );
}

const ROUTE: GlobalRoute = GlobalRoute {
    dgid: DGID,
    flow_label: 0x000a_bcde,
    sgid_index: 1,
    hop_limit: 64,
    traffic_class: 0x68,
};
const PATH: AhAttr = AhAttr {
    grh: ROUTE,
    sl: 3,
    static_rate: 4,
    port_num: 1,
    ah_flags: AhFlags::GRH,
    dmac: [0x52, 0x54, 0, 9, 0, 2],
};
const CAP: QpCap = QpCap {
    max_send_wr: 1,
    max_recv_wr: 2,
    max_send_sge: 3,
    max_recv_sge: 4,
    max_inline_data: 5,
};
const ROUTE_HEX: &str = "00000000000000000000ffff0a090002 debc0a00 01 40 68";
const CAP_HEX: &str = "01000000 02000000 03000000 04000000 05000000";

#[test]
fn queue_pair_attributes() {
    let path_hex = format!("{ROUTE_HEX} 03 04 01 01 525400090002");
    // abi: R-252
    check(ROUTE, ROUTE_HEX);
    // abi: R-245
    check(PATH, &path_hex);
    // abi: R-244
    check(CAP, CAP_HEX);
    let attr = QpAttr {
        qp_state: QpState::Rts.value(),
        cur_qp_state: QpState::Rtr.value(),
        path_mtu: Mtu::Mtu4096.value(),
        path_mig_state: 1,
        qkey: 0x1122_3344,
        rq_psn: 0x00ab_cdef,
        sq_psn: 0x0012_3456,
        dest_qp_num: Qpn::new(0x0065_4321),
        qp_access_flags: AccessFlags::REMOTE_WRITE,
        pkey_index: 0x0102,
        alt_pkey_index: 0x0304,
        en_sqd_async_notify: 1,
        sq_draining: 0,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 17,
        min_rnr_timer: 18,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 6,
        alt_port_num: 2,
        alt_timeout: 15,
        rate_limit: 0x0a0b_0c0d,
        cap: CAP,
        ah_attr: PATH,
        alt_ah_attr: AhAttr { sl: 9, ..PATH },
    };
    let attr_hex = format!(
        "03 02 05 01 44332211 efcdab00 56341200 21436500 02000000 0201 0403
         01 00 10 11 12 01 0e 07 06 02 0f 0d0c0b0a {CAP_HEX} {path_hex} {ROUTE_HEX}
         09 04 01 01 525400090002"
    );
    // abi: R-217
    check(attr, &attr_hex);
    // abi: R-214
    check(
        CmdModifyQp {
            qpn: Qpn::new(2),
            attr_mask: QpAttrMask::STATE | QpAttrMask::RATE_LIMIT,
            attrs: attr,
        },
        &format!("02000000 01000002 {attr_hex}"),
    );
    // abi: R-215
    check(
        CmdQueryQp {
            qpn: Qpn::new(2),
            attr_mask: QpAttrMask::CAP,
        },
        "02000000 00000800",
    );
    // abi: R-216
    check(RspQueryQp { attr }, &attr_hex);
}

const RING: RingAddr = RingAddr {
    pages: 0x1122_3344_5566_7000,
    npages: 0x1234,
    slots: 0x8000,
    page_shift: 12,
    slot_shift: 6,
    depth: 1,
    reserved: [0; 5],
};
const RING_HEX: &str = "0070665544332211 34120000 00800000 0c 06 01 0000000000";

#[test]
fn shared_receive_queues_and_resize() {
    assert_eq!(SRQ_CONFIG_OFFSET, 160);
    // abi: R-70
    check(
        SrqConfig {
            max_srq: 0x0102,
            max_srq_wr: 0x8000,
            max_srq_sge: 32,
        },
        "02010000 00800000 20000000",
    );
    // abi: R-561
    check(
        CmdCreateSrq {
            pdn: Pdn::new(3),
            max_wr: 0x0100,
            max_sge: 2,
            flags: CreateFlags::USER,
            // abi: R-506
            ring: RING,
            doorbell_page: 7,
            cookie: 0x1122_3344_5566_7788,
        },
        &format!("03000000 00010000 02000000 01000000 {RING_HEX} 07000000 8877665544332211"),
    );
    check(RspCreateSrq { srqn: Srqn::new(9) }, "09000000");
    // abi: R-562
    check(
        CmdModifySrq {
            srqn: Srqn::new(9),
            // abi: R-590
            attr_mask: SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT,
            max_wr: 0x0200,
            limit: 5,
            ring: RING,
        },
        &format!("09000000 03000000 00020000 05000000 {RING_HEX}"),
    );
    check(CmdQuerySrq { srqn: Srqn::new(9) }, "09000000");
    // abi: R-563
    check(
        RspQuerySrq {
            max_wr: 0x0200,
            max_sge: 2,
            limit: 5,
        },
        "00020000 02000000 05000000",
    );
    check(CmdDestroySrq { srqn: Srqn::new(9) }, "09000000");
    // abi: R-578
    check(
        CmdResizeCq {
            cqn: Cqn::new(4),
            cqe: 0x7ffe,
            ring: RING,
        },
        &format!("04000000 fe7f0000 {RING_HEX}"),
    );
    // abi: R-579
    check(RspResizeCq { end: 0x0102_0304 }, "04030201");
    assert_eq!(CreateFlags::SRQ, CreateFlags(4));
}

// abi
#[test]
fn multicast_groups() {
    let hex = "efcdab00 00000000000000000000ffff0a090002";
    check(
        CmdAttachMcast {
            qpn: Qpn::new(0x00ab_cdef),
            mgid: DGID,
        },
        hex,
    );
    check(
        CmdDetachMcast {
            qpn: Qpn::new(0x00ab_cdef),
            mgid: DGID,
        },
        hex,
    );
}

// abi
#[test]
fn rate_limits() {
    check(
        RateLimitConfig {
            min_rate: 1,
            max_rate: 0x0102_0304,
            max_burst_size: 5,
            qp_types: QpTypes::RC | QpTypes::UD,
        },
        "01000000 04030201 05000000 14000000",
    );
    assert_eq!(RATE_LIMIT_CONFIG_OFFSET, 176);
    check(
        CmdSetRateLimit {
            qpn: Qpn::new(2),
            rate_limit: 0x0010_0000,
            max_burst_size: 0x2000,
            typical_packet_size: 0x0400,
            reserved: [0; 2],
        },
        "02000000 00001000 00200000 0004 0000",
    );
}

// abi
#[test]
fn counters() {
    check(CmdQueryCounters { port: 1 }, "01");
    let hex: Vec<_> = (1..=28).map(|n| format!("{n:02x}00000000000000")).collect();
    check(
        RspQueryCounters {
            tx_packets: 1,
            tx_bytes: 2,
            rx_packets: 3,
            rx_bytes: 4,
            direct_tx_messages: 5,
            direct_tx_bytes: 6,
            direct_rx_messages: 7,
            direct_rx_bytes: 8,
            retransmitted_packets: 9,
            timeouts: 10,
            naks_sent: 11,
            naks_received: 12,
            rnr_naks_sent: 13,
            rnr_naks_received: 14,
            out_of_sequence: 15,
            duplicates: 16,
            bad_packets: 17,
            pkey_violations: 18,
            qkey_violations: 19,
            rkey_violations: 20,
            lkey_violations: 21,
            paced_bytes: 22,
            doorbells: 23,
            completion_events: 24,
            marked_packets: 25,
            notifications_sent: 26,
            notifications_received: 27,
            probes: 28,
        },
        &hex.join(" "),
    );
}

#[test]
fn counters_have_names_in_their_order() {
    let bytes: Vec<u8> = (1..=28u64).flat_map(u64::to_le_bytes).collect();
    let counters = RspQueryCounters::get(&bytes);
    assert!(counters.values().into_iter().eq(1..=28));
    let names = RspQueryCounters::NAMES;
    assert_eq!(
        (names[0], names[9], names[27]),
        (c"tx_packets", c"timeouts", c"probes")
    );
}

// abi: R-1220, R-1221, R-1222, R-1223
#[test]
fn cq_moderation() {
    assert_eq!(CQ_MODERATION_CONFIG_OFFSET, 192);
    let (max_count, max_period) = (0x1234, 0x5678);
    check(
        CqModerationConfig {
            max_count,
            max_period,
        },
        "34120000 78560000",
    );
    let cqn = Cqn::new(0x0102);
    let (count, period) = (16, 0x0300);
    check(
        CmdModifyCq { cqn, count, period },
        "02010000 10000000 00030000",
    );
}

#[test]
fn counter_sets() {
    // abi: R-1200
    assert_eq!(COUNTER_SET_CONFIG_OFFSET, 208);
    let max_counter_sets = 0x1000;
    // abi: R-1201
    check(CounterSetConfig { max_counter_sets }, "00100000");
    let csn = CounterSetNumber::new(0x0102);
    // abi: R-1202
    check(CmdCreateCounterSet { port: 1 }, "01");
    check(RspCreateCounterSet { csn }, "02010000");
    // abi: R-1203
    check(CmdDestroyCounterSet { csn }, "02010000");
    let qpn = Qpn::new(7);
    // abi: R-1204
    check(CmdBindCounterSet { qpn, csn }, "07000000 02010000");
    // abi: R-1205
    check(CmdQueryCounterSet { csn }, "02010000");
    assert_eq!(CounterSetNumber::NONE.get(), 0);
}

// abi: R-100
#[test]
fn requests_name_their_command_and_response() {
    fn pair<R: ControlCommand>() -> (u8, usize) {
        (R::COMMAND.value(), <R::Response as Wire>::SIZE)
    }
    assert_eq!(pair::<CmdQueryPort>(), (1, 161));
    assert_eq!(pair::<CmdCreateCq>(), (2, 4));
    assert_eq!(pair::<CmdCreateCqRing>(), (2, 4));
    assert_eq!(pair::<CmdDestroyCq>(), (3, 0));
    assert_eq!(pair::<CmdCreatePd>(), (4, 4));
    assert_eq!(pair::<CmdDestroyPd>(), (5, 0));
    assert_eq!(pair::<CmdGetDmaMr>(), (6, 12));
    assert_eq!(pair::<CmdCreateMr>(), (7, 12));
    assert_eq!(pair::<CmdMapMrSg>(), (8, 4));
    assert_eq!(pair::<CmdRegUserMr>(), (9, 12));
    assert_eq!(pair::<CmdDeregMr>(), (10, 0));
    assert_eq!(pair::<CmdCreateQp>(), (11, 4));
    assert_eq!(pair::<CmdCreateQpRings>(), (11, 4));
    assert_eq!(pair::<CmdModifyQp>(), (12, 0));
    assert_eq!(pair::<CmdQueryQp>(), (13, 129));
    assert_eq!(pair::<CmdDestroyQp>(), (14, 0));
    assert_eq!(pair::<CmdQueryPkey>(), (15, 2));
    assert_eq!(pair::<CmdAddGid>(), (16, 0));
    assert_eq!(pair::<CmdAddGidVlan>(), (16, 0));
    assert_eq!(pair::<CmdDelGid>(), (17, 0));
    assert_eq!(pair::<CmdReqNotify>(), (18, 0));
    assert_eq!(pair::<CmdAllocMw>(), (19, 8));
    assert_eq!(pair::<CmdDeallocMw>(), (20, 0));
    assert_eq!(pair::<CmdCreateSrq>(), (21, 4));
    assert_eq!(pair::<CmdModifySrq>(), (22, 0));
    assert_eq!(pair::<CmdQuerySrq>(), (23, 12));
    assert_eq!(pair::<CmdDestroySrq>(), (24, 0));
    assert_eq!(pair::<CmdResizeCq>(), (25, 4));
    assert_eq!(pair::<CmdSetRateLimit>(), (26, 0));
    assert_eq!(pair::<CmdAttachMcast>(), (27, 0));
    assert_eq!(pair::<CmdDetachMcast>(), (28, 0));
    assert_eq!(pair::<CmdQueryCounters>(), (29, 224));
    assert_eq!(pair::<CmdReregMr>(), (30, 0));
    assert_eq!(pair::<CmdRevokeMr>(), (31, 0));
    assert_eq!(pair::<CmdModifyCq>(), (32, 0));
    assert_eq!(pair::<CmdCreateCounterSet>(), (33, 4));
    assert_eq!(pair::<CmdDestroyCounterSet>(), (34, 0));
    assert_eq!(pair::<CmdBindCounterSet>(), (35, 0));
    assert_eq!(pair::<CmdQueryCounterSet>(), (36, 224));
    assert_eq!(pair::<CmdSetPort>(), (37, 0));
    assert_eq!(Command::ALL.len(), 37);
    // Modify QP has the longest request, Query Counters the longest response. Each is preceded by
    // one byte.
    assert_eq!((MAX_REQUEST, MAX_RESPONSE), (138, 225));
    assert_eq!((CONTROL_QUEUE, RESPONSE_OK), (0, 0));
}

/// Traces name the object of a command: that of the request, or the new one of the response.
#[test]
fn commands_tell_their_object() {
    let qpn = Qpn::new(7);
    assert_eq!(CmdDestroyQp { qpn }.number(), Some(7));
    assert_eq!(CmdCreateQp::default().number(), None);
    assert_eq!(CmdCreateQp::new_number(&RspCreateQp { qpn }), Some(7));
    assert_eq!(CmdDestroyQp::new_number(&Empty {}), None);
    let mut add = CmdAddGidVlan::default();
    add.base.index = 3;
    assert_eq!(add.number(), Some(3));
}

#[test]
fn short_input_does_not_decode() {
    assert_eq!(CmdDelGid::decode(&[4, 3, 1, 0, 0]), None);
    let delete = CmdDelGid {
        index: 0x0304,
        port: 1,
    };
    assert_eq!(CmdDelGid::decode(&[4, 3, 1, 0, 0, 0]), Some(delete));
    assert_eq!(CmdDelGid::decode(&[4, 3, 1, 0, 0, 0, 9, 9]), Some(delete));
    assert_eq!(CmdDelGid::from_bytes(&delete.to_bytes()), delete);
    assert_eq!(Config::decode(&[0; 127]), None);
    assert_eq!(Config::decode(&[0; CONFIG_SIZE]), Some(Config::default()));
}
