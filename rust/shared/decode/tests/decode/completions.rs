// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! CQEs that the driver accepts for a posted work request.

use virtio_rdma_abi::cqe::{Cqe, OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use virtio_rdma_abi::ib::{WcFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::DoorbellKind;
use virtio_rdma_decode::completion::*;

use super::bytes;

const POSTED: u32 = 1000;

const SERVICES: [Service; 3] = [Service::Reliable, Service::Unreliable, Service::Datagram];

fn wr(service: Service) -> PostedWr {
    PostedWr {
        kind: DoorbellKind::Rq,
        service,
        is_process: false,
        length: POSTED,
        pkeys: 1,
    }
}

fn receive(byte_len: u32) -> Cqe {
    Cqe {
        opcode: OPCODE_RECV,
        byte_len,
        ..Cqe::default()
    }
}

fn send(opcode: WrOpcode, byte_len: u32) -> Cqe {
    Cqe {
        // CAST: All opcodes are less than 256.
        opcode: opcode.value() as u8,
        byte_len,
        ..Cqe::default()
    }
}

/// Checks a CQE of a queue of the kind that its opcode belongs to.
fn check<'a>(cqe: &'a Cqe, wr: &PostedWr) -> Result<CheckedCqe<'a>, InvalidCqe> {
    let kind = match cqe.is_receive() {
        true => DoorbellKind::Rq,
        false => DoorbellKind::Sq,
    };
    PostedWr { kind, ..*wr }.check(cqe)
}

fn fits(cqe: &Cqe, wr: &PostedWr) -> bool {
    check(cqe, wr).is_ok()
}

// abi: R-664
#[test]
fn ids_name_a_place_and_a_position() {
    let parts = [
        (0, 0, 0),
        (0x1234_5678, 0x9abc_def0, 0x1234_5678_9abc_def0),
        (1, u32::MAX, 0x0000_0001_ffff_ffff),
        (u32::MAX, 0, 0xffff_ffff_0000_0000),
        (u32::MAX, u32::MAX, u64::MAX),
    ];
    for (place, position, id) in parts {
        assert_eq!(wr_id(place, position), id);
        assert_eq!(split_wr_id(id), (place as usize, position));
    }
    assert_eq!(srq_slot(0xffff), Ok(0xffff));
    assert_eq!(srq_slot(0x1_0000), Err(InvalidCqe));
    assert_eq!(srq_slot(u64::MAX), Err(InvalidCqe));
}

// abi
#[test]
fn a_send_completes() {
    let cqe = Cqe::from_bytes(&bytes(
        "07000000 03000000  00 02 00000000 e8030000 00000000
         11000000 00000000 00000000 0000 00 01",
    ));
    assert_eq!(split_wr_id(cqe.wr_id), (3, 7));
    for service in SERVICES {
        let checked = check(&cqe, &wr(service)).unwrap();
        assert_eq!(checked.operation(), Operation::Send);
        assert_eq!((checked.status(), checked.vendor_err()), (0, 0));
        assert_eq!(checked.byte_len(), 1000);
        assert_eq!((checked.immediate(), checked.invalidated()), (None, None));
        assert!(checked.datagram().is_none());
    }
}

// abi
#[test]
fn a_receive_brings_immediate_data_or_a_key() {
    let with = |flags: &str| {
        let cqe = Cqe::from_bytes(&bytes(&format!(
            "0500 0000 0000 0000  00 80 00000000 64000000 01020304
             11000000 00000000 {flags} 0000 00 01"
        )));
        check(&cqe, &wr(Service::Reliable))
            .map(|checked| (checked.immediate(), checked.invalidated()))
    };
    assert_eq!(with("00000000"), Ok((None, None)));
    assert_eq!(with("02000000"), Ok((Some([1, 2, 3, 4]), None)));
    assert_eq!(with("08000000"), Ok((None, None)));
    assert_eq!(with("04000000"), Ok((None, Some(0x0403_0201))));
    assert_eq!(with("06000000"), Err(InvalidCqe));
}

// abi
#[test]
fn a_datagram_names_its_source() {
    let cqe = Cqe::from_bytes(&bytes(
        "0500 0000 0000 0000  00 80 fe0f0000 64000000 00000000
         11000000 56341200 21000000 0100 0f 01",
    ));
    let ports = PostedWr {
        pkeys: 2,
        ..wr(Service::Datagram)
    };
    let source = check(&cqe, &ports).unwrap().datagram().unwrap();
    assert_eq!((source.src_qp, source.pkey_index), (Qpn::new(0x12_3456), 1));
    assert_eq!((source.priority(), source.vlan()), (15, Some(0xffe)));
    // Without WITH_VLAN, `vendor_err` is not a VLAN id.
    let untagged = Cqe {
        wc_flags: WcFlags::NONE,
        ..cqe
    };
    let source = check(&untagged, &ports).unwrap().datagram().unwrap();
    assert_eq!(source.vlan(), None);
    assert!(!fits(&cqe, &wr(Service::Datagram)));
}

// abi: R-710
#[test]
fn every_status_that_exists() {
    for status in 0..=u8::MAX {
        let cqe = Cqe {
            status,
            ..receive(0)
        };
        let read = check(&cqe, &wr(Service::Reliable)).map(|checked| checked.status());
        let expected = WcStatus::try_from(status).map(|_| status);
        assert_eq!(read, expected.map_err(|_| InvalidCqe), "{status}");
    }
}

// abi
#[test]
fn opcodes_belong_to_their_queue() {
    use Operation::*;
    let sent = |opcode: u8| {
        Some(match opcode {
            0 | 1 => RdmaWrite,
            2 | 3 | 9 => Send,
            4 | 11 => RdmaRead,
            5 => CompareAndSwap,
            6 => FetchAndAdd,
            7 => LocalInv,
            0x20 => RegMr,
            _ => return None,
        })
    };
    let received = |opcode: u8| match opcode {
        0x80 => Some(Recv),
        0x81 => Some(RecvRdmaWithImm),
        _ => None,
    };
    for opcode in 0..=u8::MAX {
        let cqe = Cqe {
            status: WcStatus::GeneralErr.value(),
            opcode,
            ..Cqe::default()
        };
        let read = |kind| {
            let wr = PostedWr {
                kind,
                ..wr(Service::Reliable)
            };
            wr.check(&cqe).ok().map(|checked| checked.operation())
        };
        assert_eq!(read(DoorbellKind::Sq), sent(opcode), "{opcode:#x}");
        assert_eq!(read(DoorbellKind::Rq), received(opcode), "{opcode:#x}");
        assert_eq!(read(DoorbellKind::Cq), None, "{opcode:#x}");
    }
}

/// The other fields of a failed CQE are not passed on.
// abi: R-705
#[test]
fn a_failure_shows_nothing_but_its_code() {
    let cqe = Cqe {
        status: WcStatus::LocProtErr.value(),
        vendor_err: 0xdead,
        byte_len: u32::MAX,
        wc_flags: WcFlags::ALL,
        pkey_index: u16::MAX,
        sl: u8::MAX,
        ..receive(0)
    };
    for service in SERVICES {
        let checked = check(&cqe, &wr(service)).expect("a failure");
        assert_eq!(checked.status(), WcStatus::LocProtErr.value());
        assert_eq!(checked.operation(), Operation::Recv);
        assert_eq!(checked.vendor_err(), 0xdead);
        assert_eq!(checked.byte_len(), 0);
        assert_eq!((checked.immediate(), checked.invalidated()), (None, None));
        assert!(checked.datagram().is_none());
    }
}

// abi: R-710
#[test]
fn no_more_bytes_than_were_posted() {
    for service in SERVICES {
        let wr = wr(service);
        for (length, good) in [
            (40, true),
            (POSTED, true),
            (POSTED + 1, false),
            (u32::MAX, false),
        ] {
            assert_eq!(fits(&receive(length), &wr), good, "{service:?} {length}");
            for opcode in [
                WrOpcode::Send,
                WrOpcode::RdmaRead,
                WrOpcode::AtomicFetchAndAdd,
            ] {
                let sent = send(opcode, length);
                assert_eq!(fits(&sent, &wr), good, "{service:?} {opcode:?} {length}");
            }
        }
    }
}

/// The bytes of an RDMA WRITE are not in the receive's memory.
// abi: R-710
#[test]
fn bytes_of_a_write_are_not_those_posted() {
    let write = Cqe {
        opcode: OPCODE_RECV_RDMA_WITH_IMM,
        wc_flags: WcFlags::WITH_IMM,
        byte_len: 1 << 30,
        ..Cqe::default()
    };
    for service in SERVICES {
        let connected = service != Service::Datagram;
        let to_kernel = wr(service);
        let to_process = PostedWr {
            is_process: true,
            ..to_kernel
        };
        for (wr, shown) in [(to_kernel, POSTED), (to_process, 1 << 30)] {
            let byte_len = check(&write, &wr).map(|checked| checked.byte_len());
            assert_eq!(byte_len.ok(), connected.then_some(shown), "{wr:?}");
        }
    }
    let silent = Cqe {
        wc_flags: WcFlags::NONE,
        ..write
    };
    assert!(!fits(&silent, &wr(Service::Reliable)));
}

/// Clients subtract the length of the GRH from the received length without a check.
// abi: R-686
#[test]
fn a_datagram_has_its_header() {
    for (length, good) in [(0, false), (39, false), (40, true)] {
        assert_eq!(
            fits(&receive(length), &wr(Service::Datagram)),
            good,
            "{length}"
        );
    }
    assert!(fits(&receive(0), &wr(Service::Reliable)));
}

// abi: R-710
#[test]
fn indices_of_a_datagram_are_in_their_tables() {
    let wr = wr(Service::Datagram);
    let good = receive(40);
    let with_pkey = |pkey_index| Cqe { pkey_index, ..good };
    let with_sl = |sl| Cqe { sl, ..good };
    let cases = [
        (with_pkey(0), true),
        (with_pkey(1), false),
        (with_pkey(u16::MAX), false),
        (with_sl(15), true),
        (with_sl(16), false),
    ];
    for (cqe, good) in cases {
        assert_eq!(fits(&cqe, &wr), good, "{cqe:?}");
    }
    for (vlan, fitting) in [(4094, true), (4095, false), (u16::MAX, false)] {
        let mut tagged = good;
        tagged.set_vlan(vlan);
        assert_eq!(fits(&tagged, &wr), fitting, "{vlan}");
    }
    let mut long = good;
    long.set_vlan(1);
    long.vendor_err = 0x1_0001;
    assert!(!fits(&long, &wr));
}

// abi: R-709
#[test]
fn the_type_of_the_headers_is_no_service_level() {
    let wr = wr(Service::Datagram);
    let level = |wc_flags| {
        let cqe = Cqe {
            wc_flags,
            sl: 10,
            ..receive(40)
        };
        check(&cqe, &wr).unwrap().datagram().unwrap().priority()
    };
    assert_eq!(level(WcFlags::GRH | WcFlags::WITH_NETWORK_HDR_TYPE), 0);
    assert_eq!(level(WcFlags::GRH), 10);
}

/// Tries each flag with each service, for receives and sends.
// abi: R-710
#[test]
fn flags_fit_the_operation() {
    let (imm, key) = (WcFlags::WITH_IMM, WcFlags::WITH_INVALIDATE);
    for service in SERVICES {
        let wr = wr(service);
        let is_datagram = service == Service::Datagram;
        let is_reliable = service == Service::Reliable;
        let flags = [
            (WcFlags::NONE, true, true),
            (WcFlags::SOLICITED, true, true),
            (WcFlags::GRH, is_datagram, false),
            (WcFlags::WITH_VLAN, is_datagram, false),
            (imm, true, false),
            (key, is_reliable, false),
            (imm | key, false, false),
        ];
        for (wc_flags, received, sent) in flags {
            let with = |cqe: Cqe| Cqe { wc_flags, ..cqe };
            let told = (
                fits(&with(receive(100)), &wr),
                fits(&with(send(WrOpcode::Send, 100)), &wr),
            );
            assert_eq!(told, (received, sent), "{service:?} {wc_flags:?}");
        }
    }
}
