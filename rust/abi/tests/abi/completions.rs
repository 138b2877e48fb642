// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Which CQEs a driver believes of a work request that it posted, and which answers of a command.

use virtio_rdma_abi::cqe::{Completed, Cqe, Service, OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use virtio_rdma_abi::ib::{WcFlags, WrOpcode};

const POSTED: u32 = 1000;

const SERVICES: [Service; 3] = [Service::Reliable, Service::Unreliable, Service::Datagram];

fn request(service: Service) -> Completed {
    Completed {
        service,
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
        // There are no more than a byte counts.
        opcode: opcode.value() as u8,
        byte_len,
        ..Cqe::default()
    }
}

#[test]
fn no_more_bytes_than_were_posted() {
    for service in SERVICES {
        let request = request(service);
        for (length, fits) in [
            (40, true),
            (POSTED, true),
            (POSTED + 1, false),
            (u32::MAX, false),
        ] {
            assert_eq!(receive(length).fits(&request), fits, "{service:?} {length}");
            for opcode in [
                WrOpcode::Send,
                WrOpcode::RdmaRead,
                WrOpcode::AtomicFetchAndAdd,
            ] {
                let sent = send(opcode, length);
                assert_eq!(sent.fits(&request), fits, "{service:?} {opcode:?} {length}");
            }
        }
    }
}

/// Those of an RDMA WRITE are elsewhere.
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
        assert_eq!(write.fits(&request(service)), connected, "{service:?}");
    }
    let silent = Cqe {
        wc_flags: WcFlags::NONE,
        ..write
    };
    assert!(!silent.fits(&request(Service::Reliable)));
}

/// Clients take the header's length off without a look.
#[test]
fn a_datagram_has_its_header() {
    for (length, fits) in [(0, false), (39, false), (40, true)] {
        assert_eq!(
            receive(length).fits(&request(Service::Datagram)),
            fits,
            "{length}"
        );
    }
    assert!(receive(0).fits(&request(Service::Reliable)));
}

#[test]
fn indices_of_a_datagram_are_in_their_tables() {
    let request = request(Service::Datagram);
    let good = receive(40);
    let cases = [
        (
            Cqe {
                pkey_index: 1,
                ..good
            },
            false,
        ),
        (
            Cqe {
                pkey_index: u16::MAX,
                ..good
            },
            false,
        ),
        (Cqe { sl: 15, ..good }, true),
        (Cqe { sl: 16, ..good }, false),
    ];
    for (cqe, fits) in cases {
        assert_eq!(cqe.fits(&request), fits, "{cqe:?}");
    }
    for (vlan, fits) in [(4094, true), (4095, false), (u16::MAX, false)] {
        let mut tagged = good;
        tagged.set_vlan(vlan);
        assert_eq!(tagged.fits(&request), fits, "{vlan}");
    }
    let mut long = good;
    long.set_vlan(1);
    long.vendor_err = 0x1_0001;
    assert!(!long.fits(&request));
}

/// Each flag, with each service, on what was received and on what was sent.
#[test]
fn flags_fit_the_operation() {
    let (imm, key) = (WcFlags::WITH_IMM, WcFlags::WITH_INVALIDATE);
    for service in SERVICES {
        let request = request(service);
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
                with(receive(100)).fits(&request),
                with(send(WrOpcode::Send, 100)).fits(&request),
            );
            assert_eq!(told, (received, sent), "{service:?} {wc_flags:?}");
        }
    }
}
