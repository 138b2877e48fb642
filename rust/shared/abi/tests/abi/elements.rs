// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Work queue elements, completion queue elements and events.

use virtio_rdma_abi::cqe::{Cqe, CQ_SLOT_SHIFT, OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use virtio_rdma_abi::event::{Event, EventKind, FIRST_EVENT_QUEUE};
use virtio_rdma_abi::ib::{
    AccessFlags, AsyncEvent, FlushLevel, FlushTypes, SendFlags, WcFlags, WcStatus, WrOpcode,
};
use virtio_rdma_abi::number::{MrNumber, Pdn, Qpn};
use virtio_rdma_abi::wire::UnknownValue;
use virtio_rdma_abi::wqe::{
    rq_wqe_size, sq_wqe_size, AddressVector, Atomic, AtomicWrite, BindMw, Datagram, Flush, Member,
    Rdma, Reg, RegPages, RqHeader, Sge, SqHeader, INLINE_OFFSET,
};

use super::{bytes, check};

const SGE: Sge = Sge {
    addr: 0x1122_3344_5566_7788,
    length: 0x0102_0304,
    lkey: 0x0a0b_0c0d,
};

fn header<M: Member>(opcode: WrOpcode, member: &M) -> SqHeader {
    let mut header = SqHeader {
        num_sge: 1,
        send_flags: SendFlags::SIGNALED,
        opcode: opcode.value(),
        wr_id: 0x8877_6655_4433_2211,
        ex: [1, 2, 3, 4],
        wr: [0; 51],
    };
    member.store(&mut header.wr);
    header
}

/// The bytes of the header before the union.
fn prefix(opcode: &str) -> String {
    format!("01000000 02000000 {opcode} 1122334455667788 01020304")
}

// abi
#[test]
fn rdma() {
    let rdma = Rdma {
        remote_addr: 0x0102_0304_0506_0708,
        rkey: 0x1112_1314,
    };
    let hex = "0807060504030201 14131211";
    check(rdma, hex);
    let header = header(WrOpcode::RdmaRead, &rdma);
    check(
        header,
        &format!("{} {hex} {}", prefix("04000000"), "00".repeat(39)),
    );
    assert_eq!(Rdma::load(&header.wr), rdma);
}

// abi
#[test]
fn atomic() {
    let atomic = Atomic {
        remote_addr: 0x0102_0304_0506_0708,
        compare_add: 0x1112_1314_1516_1718,
        swap: 0x2122_2324_2526_2728,
        rkey: 0x3132_3334,
    };
    let hex = "0807060504030201 1817161514131211 2827262524232221 34333231";
    check(atomic, hex);
    let header = header(WrOpcode::AtomicCmpAndSwp, &atomic);
    check(
        header,
        &format!("{} {hex} {}", prefix("05000000"), "00".repeat(23)),
    );
    assert_eq!(Atomic::load(&header.wr), atomic);
}

// abi
#[test]
fn datagram() {
    let av = AddressVector {
        port: 1,
        pdn: Pdn::new(2),
        sl_tclass_flowlabel: (3 << 28) | (0x68 << 20) | 0x000a_bcde,
        dgid: [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 9, 0, 2,
        ],
        gid_index: 4,
        static_rate: 5,
        hop_limit: 64,
        dmac: [0x52, 0x54, 0, 9, 0, 2],
        reserved: [0; 6],
    };
    let av_hex = "01000000 02000000 debc8a36 fe80000000000000505400fffe090002 04 05 40 525400090002 000000000000";
    check(av, av_hex);
    assert_eq!(
        AddressVector::pack(3, 0x68, 0x000a_bcde),
        Some(av.sl_tclass_flowlabel)
    );
    assert_eq!(
        (av.sl(), av.traffic_class(), av.flow_label()),
        (3, 0x68, 0x000a_bcde)
    );
    assert_eq!(AddressVector::pack(15, 255, 0x000f_ffff), Some(u32::MAX));
    assert_eq!(AddressVector::pack(16, 0, 0), None);
    assert_eq!(AddressVector::pack(0, 0, 0x0010_0000), None);
    let datagram = Datagram {
        remote_qpn: Qpn::new(0x00ab_cdef),
        remote_qkey: 0x8001_0000,
        av,
    };
    let hex = format!("efcdab00 00000180 {av_hex}");
    check(datagram, &hex);
    let header = header(WrOpcode::Send, &datagram);
    check(header, &format!("{} {hex}", prefix("02000000")));
    assert_eq!(Datagram::load(&header.wr), datagram);
}

// abi
#[test]
fn fast_registration() {
    let reg = Reg {
        mrn: MrNumber::new(1),
        key: 0x0203_0405,
        access: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC,
    };
    let hex = "01000000 05040302 09000000";
    check(reg, hex);
    let header = header(WrOpcode::RegMr, &reg);
    check(
        header,
        &format!("{} {hex} {}", prefix("20000000"), "00".repeat(39)),
    );
    assert_eq!(Reg::load(&header.wr), reg);
    let pages = RegPages {
        base: reg,
        pages: 0x1122_3344_5566_7000,
        npages: 3,
        iova: 0x0102_0304_0506_0708,
        length: 0x2001,
        page_shift: 12,
        reserved: [0; 4],
    };
    check(
        pages,
        &format!("{hex} 0070665544332211 03000000 0807060504030201 0120000000000000 0c 00000000"),
    );
}

// abi
#[test]
fn bind_mw() {
    let bind = BindMw {
        addr: 0x0102_0304_0506_0708,
        length: 0x2001,
        mw_rkey: 0x1112_1314,
        rkey: 0x1112_1315,
        lkey: 0x2122_2324,
        access: AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED,
        reserved: [0; 4],
    };
    let hex = "0807060504030201 0120000000000000 14131211 15131211 24232221 22000000 00000000";
    check(bind, hex);
    let header = header(WrOpcode::BindMw, &bind);
    check(
        header,
        &format!("{} {hex} {}", prefix("08000000"), "00".repeat(15)),
    );
    assert_eq!(BindMw::load(&header.wr), bind);
}

// abi
#[test]
fn atomic_write_and_flush() {
    let write = AtomicWrite {
        remote_addr: 0x0102_0304_0506_0708,
        data: [1, 2, 3, 4, 5, 6, 7, 8],
        rkey: 0x1112_1314,
    };
    let hex = "0807060504030201 0102030405060708 14131211";
    check(write, hex);
    let wqe = header(WrOpcode::AtomicWrite, &write);
    check(
        wqe,
        &format!("{} {hex} {}", prefix("0f000000"), "00".repeat(31)),
    );
    assert_eq!(AtomicWrite::load(&wqe.wr), write);
    let flush = Flush {
        remote_addr: 0x0102_0304_0506_0708,
        length: 0x2122_2324,
        rkey: 0x1112_1314,
        types: FlushTypes::GLOBAL | FlushTypes::PERSISTENT,
        level: FlushLevel::Mr.value(),
        reserved: [0; 6],
    };
    let hex = "0807060504030201 24232221 14131211 03 01 000000000000";
    check(flush, hex);
    let wqe = header(WrOpcode::Flush, &flush);
    check(
        wqe,
        &format!("{} {hex} {}", prefix("0e000000"), "00".repeat(27)),
    );
    assert_eq!(Flush::load(&wqe.wr), flush);
}

// abi: R-607
#[test]
fn a_smaller_member_leaves_the_rest_of_the_union() {
    let mut union = [0xee; 51];
    Rdma {
        remote_addr: 0,
        rkey: 0,
    }
    .store(&mut union);
    assert_eq!(union[..12], [0; 12]);
    assert_eq!(union[12..], [0xee; 39]);
}

// abi
#[test]
fn scatter_gather_and_receive() {
    check(SGE, "8877665544332211 04030201 0d0c0b0a");
    check(
        RqHeader {
            num_sge: 2,
            wr_id: 0x8877_6655_4433_2211,
        },
        "02000000 1122334455667788",
    );
    assert_eq!(
        (sq_wqe_size(0), sq_wqe_size(1), sq_wqe_size(30)),
        (75, 91, 555)
    );
    assert_eq!(
        (rq_wqe_size(0), rq_wqe_size(1), rq_wqe_size(30)),
        (12, 28, 492)
    );
    assert_eq!(INLINE_OFFSET, 91);
}

// abi
#[test]
fn completion() {
    check(
        Cqe {
            wr_id: 0x8877_6655_4433_2211,
            status: WcStatus::RnrRetryExcErr.value(),
            opcode: OPCODE_RECV_RDMA_WITH_IMM,
            vendor_err: 0x0102_0304,
            byte_len: 0x1112_1314,
            ex: [0xde, 0xad, 0xbe, 0xef],
            qp_num: Qpn::new(0x00ab_cdef),
            src_qp: Qpn::new(0x0012_3456),
            wc_flags: WcFlags::GRH | WcFlags::WITH_IMM,
            pkey_index: 0x0708,
            sl: 3,
            port_num: 1,
        },
        "1122334455667788 0d 81 04030201 14131211 deadbeef efcdab00 56341200 03000000 0807 03 01",
    );
    let mut tagged = Cqe {
        wc_flags: WcFlags::GRH,
        ..Cqe::default()
    };
    assert_eq!(tagged.vlan(), None);
    tagged.set_vlan(0x0ffe);
    assert_eq!(tagged.vlan(), Some(0x0ffe));
    check(
        tagged,
        &format!(
            "{} fe0f0000 {} 21000000 00000000",
            "00".repeat(10),
            "00".repeat(16)
        ),
    );
    tagged.vendor_err = 0x0fff;
    assert_eq!(tagged.vlan(), None);
    assert_eq!(OPCODE_RECV, 0x80);
    // The opcodes of sends and receives are distinct.
    assert!(WrOpcode::ALL.iter().all(|opcode| opcode.value() < 0x80));
    assert_eq!((Cqe::SIZE, CQ_SLOT_SHIFT), (38, 6));
}

// abi: R-544
#[test]
fn events() {
    check(
        Event::new(EventKind::Completion, 0x1122_3344_5566_7788),
        "00000000 00000000 8877665544332211",
    );
    check(
        Event::new(EventKind::Async(AsyncEvent::QpFatal), 7),
        "01010000 00000000 0700000000000000",
    );
    for &event in AsyncEvent::ALL {
        let kind = EventKind::Async(event);
        assert_eq!(Event::new(kind, 0).kind(), Ok(kind));
    }
    assert_eq!(
        Event::new(EventKind::Completion, 0).kind(),
        Ok(EventKind::Completion)
    );
    // Unknown kinds: next to the completion kind; before and after the asynchronous kinds; and a
    // kind whose low byte alone would be valid.
    for raw_kind in [1, 0xff, 0x100 + 19, 0x200, u32::MAX] {
        let event = Event {
            raw_kind,
            ..Event::default()
        };
        assert_eq!(event.kind(), Err(UnknownValue(raw_kind)));
    }
    assert_eq!(FIRST_EVENT_QUEUE, 1);
}

#[test]
fn the_test_helper_reads_hexadecimal() {
    assert_eq!(bytes("00 ff\n 1A2b"), [0, 0xff, 0x1a, 0x2b]);
}
