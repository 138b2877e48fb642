// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Answers to commands, and the values in them.

use virtio_rdma_abi::ctrl::{Empty, RspQueryPkey, RspQueryPort};
use virtio_rdma_abi::ib::{
    AccessFlags, PortCaps, PortPhysState, PortSpeed, PortState, PortWidth, MASK_24,
};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_decode::answer::{Answer, InvalidResponse};
use virtio_rdma_decode::{port, qp};

/// The errno of an answer.
fn errno<T>(answer: Answer<T>) -> Option<u8> {
    match answer {
        Answer::Refused(errno) => Some(errno.value()),
        _ => None,
    }
}

/// Only a complete success or an errno tells whether the device executed the command.
// abi
#[test]
fn answers_are_success_or_an_errno() {
    let read = |bytes: &[u8]| Answer::<RspQueryPkey>::decode(bytes, bytes.len());
    let response = RspQueryPkey { pkey: 0xfffe };
    assert_eq!(read(&[0, 0xfe, 0xff]), Answer::Success(response));
    assert_eq!(errno(read(&[22])), Some(22));
    assert_eq!(errno(read(&[22, 0, 0])), Some(22));
    for invalid in [&[][..], &[0], &[0, 0xff], &[0, 0xff, 0xff, 0]] {
        assert_eq!(read(invalid), Answer::Invalid, "{invalid:?}");
    }
    assert_eq!(Answer::<Empty>::decode(&[0], 1), Answer::Success(Empty {}));
    assert_eq!(Answer::<Empty>::decode(&[0, 0], 2), Answer::Invalid);
}

/// Bytes after `written` are left over from an earlier answer.
// abi
#[test]
fn answers_end_where_the_device_stopped() {
    let buffer = [0, 0xfe, 0xff, 7];
    let read = |written| Answer::<RspQueryPkey>::decode(&buffer, written);
    let response = RspQueryPkey { pkey: 0xfffe };
    for written in [0, 1, 2, 4, 5, usize::MAX] {
        assert_eq!(read(written), Answer::Invalid, "{written}");
    }
    assert_eq!(read(3), Answer::Success(response));
    assert_eq!(errno(Answer::<Empty>::decode(&[22], 2)), None);
}

// abi: R-111, R-1110
#[test]
fn an_errno_is_one_of_the_specification() {
    for byte in 1..=u8::MAX {
        let expected = match byte {
            1 | 5 | 12 | 14 | 16 | 17 | 22 | 95 | 98 => byte,
            _ => 5,
        };
        assert_eq!(errno(Answer::<Empty>::decode(&[byte], 1)), Some(expected));
    }
}

fn good_port() -> RspQueryPort {
    RspQueryPort {
        state: PortState::Active.value(),
        phys_state: PortPhysState::LinkUp.value(),
        max_mtu: 5,
        active_mtu: 3,
        gid_tbl_len: 256,
        pkey_tbl_len: 128,
        max_msg_sz: u32::MAX,
        port_cap_flags: PortCaps::CM_SUP,
        active_width: PortWidth::X12.value(),
        active_speed: PortSpeed::Ndr.value(),
        ..RspQueryPort::default()
    }
}

// abi: R-152
#[test]
fn a_port_has_values_of_the_verbs() {
    let good = good_port();
    assert_eq!(port::check(&good), Ok(good));
    let bad: [fn(&mut RspQueryPort); 10] = [
        |port| port.state = 6,
        |port| port.state = 255,
        |port| port.phys_state = 0,
        |port| port.phys_state = 8,
        |port| port.max_mtu = 0,
        |port| port.max_mtu = 6,
        |port| port.active_mtu = 0,
        |port| port.active_mtu = 6,
        |port| port.gid_tbl_len = 0,
        |port| port.pkey_tbl_len = 0,
    ];
    for (number, spoil) in bad.into_iter().enumerate() {
        let mut port = good;
        spoil(&mut port);
        assert_eq!(port::check(&port), Err(InvalidResponse), "{number}");
    }
}

/// ib_core reads each entry of the P_Key table, and the index into the GID table is a byte.
#[test]
fn tables_of_a_port_are_bounded() {
    for (entries, cut) in [(1, 1), (127, 127), (128, 128), (129, 128), (u16::MAX, 128)] {
        let port = RspQueryPort {
            pkey_tbl_len: entries,
            ..good_port()
        };
        let checked = port::check(&port).map(|port| port.pkey_tbl_len);
        assert_eq!(checked, Ok(cut), "{entries}");
    }
    for (entries, is_good) in [(1, true), (256, true), (257, false), (u32::MAX, false)] {
        let port = RspQueryPort {
            gid_tbl_len: entries,
            ..good_port()
        };
        assert_eq!(port::check(&port).is_ok(), is_good, "{entries}");
    }
}

/// Values unknown to this driver are masked, since they might mean something else to the kernel.
// abi: R-1111, R-1113
#[test]
fn a_port_tells_nothing_unknown() {
    let with = |port_cap_flags, active_width, active_speed| {
        let port = RspQueryPort {
            port_cap_flags: PortCaps(port_cap_flags),
            active_width,
            active_speed,
            ..good_port()
        };
        let port = port::check(&port).expect("a good port");
        (port.port_cap_flags.0, port.active_width, port.active_speed)
    };
    assert_eq!(with(u32::MAX, 8, 128), (1 << 16, 8, 128));
    assert_eq!(with(!(1 << 16), 16, 1), (0, 16, 1));
    for width in [0, 3, 32, u8::MAX] {
        assert_eq!(with(0, width, 64), (0, 1, 64), "{width}");
    }
    for speed in [0, 3, 256, u16::MAX] {
        assert_eq!(with(0, 2, speed), (0, 2, 1), "{speed}");
    }
}

/// Access flags unknown to this driver are masked, since their bits might mean something else in
/// the kernel.
// abi: R-1112, R-1113
#[test]
fn a_qp_tells_nothing_unknown() {
    for state in 0..=u8::MAX {
        let attr = QpAttr {
            path_mig_state: state,
            qp_access_flags: AccessFlags(u32::MAX),
            ..QpAttr::default()
        };
        let checked = qp::check(&attr).map(|attr| attr.qp_access_flags);
        let expected = (state <= 2).then_some(AccessFlags(0x10_03ff));
        assert_eq!(checked.ok(), expected, "{state}");
    }
}

// abi
#[test]
fn the_gsi_qp_alone_has_its_number() {
    let cases = [
        (0, false, false),
        (0, true, false),
        (1, false, false),
        (1, true, true),
        (2, false, true),
        (2, true, false),
        (MASK_24, false, true),
        (MASK_24 + 1, false, false),
        (u32::MAX, false, false),
    ];
    for (qpn, is_gsi, is_good) in cases {
        let checked = qp::check_number(Qpn::new(qpn), is_gsi);
        assert_eq!(checked.is_ok(), is_good, "{qpn} {is_gsi}");
    }
}

// abi: R-267
#[test]
fn a_qp_has_a_state_and_maybe_an_mtu() {
    for value in 0..=u8::MAX {
        let in_state = QpAttr {
            qp_state: value,
            ..QpAttr::default()
        };
        assert_eq!(qp::check(&in_state).is_ok(), value <= 6, "state {value}");
        let with_mtu = QpAttr {
            path_mtu: value,
            ..QpAttr::default()
        };
        assert_eq!(qp::check(&with_mtu).is_ok(), value <= 5, "MTU {value}");
    }
}

// abi
#[test]
fn sequence_numbers_of_a_qp_have_24_bits() {
    let attr = QpAttr {
        rq_psn: 0x1234_5678,
        sq_psn: u32::MAX,
        dest_qp_num: Qpn::new(0xff00_0011),
        qkey: u32::MAX,
        ..QpAttr::default()
    };
    let expected = QpAttr {
        rq_psn: 0x34_5678,
        sq_psn: 0xff_ffff,
        dest_qp_num: Qpn::new(0x11),
        ..attr
    };
    assert_eq!(qp::check(&attr), Ok(expected));
}
