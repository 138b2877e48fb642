// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tests of answers and events: unit tests on the host, and a KUnit suite in the kernel's tree.
//!
//! They need no allocator. The assertions of KUnit take no message, so they compare tuples that
//! name the case.

#[cfg_attr(
    not(test),
    allow(unsafe_code),
    kernel::macros::kunit_tests(virtio_rdma_decode)
)]
mod tests {
    use crate::abi::{
        ctrl::{
            Empty,
            RspQueryPkey,
            RspQueryPort, //
        },
        event::EventKind,
        ib::{
            AccessFlags,
            AsyncEvent,
            PortCaps,
            PortPhysState,
            PortSpeed,
            PortState,
            PortWidth,
            MASK_24, //
        },
        number::Qpn,
        qp::QpAttr, //
    };
    use crate::decode::{
        answer::{
            Answer,
            InvalidResponse, //
        },
        event::{
            Cookie,
            KnownEvent,
            UnusedCookie, //
        },
        port,
        qp, //
    };

    /// The bytes of an event, given as hexadecimal digits.
    fn bytes(hex: &str) -> [u8; 16] {
        let mut digits = hex.chars().filter_map(|digit| digit.to_digit(16));
        // CAST: A digit is less than 16.
        let mut next = || digits.next().unwrap_or(0) as u8;
        core::array::from_fn(|_| (next() << 4) | next())
    }

    fn decode(hex: &str) -> Option<KnownEvent> {
        let event = bytes(hex);
        KnownEvent::decode(&event, event.len())
    }

    // abi
    #[test]
    fn a_completion_event_names_its_cq() {
        let known = KnownEvent {
            kind: EventKind::Completion,
            object: Cookie {
                index: 0x0102,
                generation: 7,
            },
        };
        assert_eq!(decode("00000000 00000000 02010000 07000000"), Some(known));
        // The reserved word is ignored, since later versions may use it.
        assert_eq!(decode("00000000 ffffffff 02010000 07000000"), Some(known));
    }

    // abi: R-544
    #[test]
    fn events_of_device_and_port_go_to_one_object() {
        for event in [
            "09010000 00000000 00000000 00000000",
            "09010000 00000000 01000000 00000000",
            "09010000 00000000 ffffffff 00000000",
        ] {
            let known = KnownEvent {
                kind: EventKind::Async(AsyncEvent::PortActive),
                object: Cookie::DEVICE,
            };
            assert_eq!((event, decode(event)), (event, Some(known)));
        }
    }

    // abi: R-544
    #[test]
    fn every_kind_that_exists() {
        for kind in (0..0x400u32).chain([1 << 16, 1 << 31, u32::MAX]) {
            let expected = match kind {
                0 => Some(EventKind::Completion),
                0x100.. => u8::try_from(kind - 0x100)
                    .ok()
                    .and_then(|event| AsyncEvent::try_from(event).ok())
                    .map(EventKind::Async),
                _ => None,
            };
            let mut event = [0; 16];
            event[..4].copy_from_slice(&kind.to_le_bytes());
            let known = KnownEvent::decode(&event, 16);
            assert_eq!((kind, known.map(|known| known.kind)), (kind, expected));
        }
    }

    /// Bytes after `written` are left over from an earlier event.
    // abi: R-544
    #[test]
    fn half_an_event_is_none() {
        let event = [0; 16];
        for written in 0..16 {
            let known = KnownEvent::decode(&event, written);
            assert_eq!((written, known), (written, None));
        }
        assert!(KnownEvent::decode(&event, 16).is_some());
        for written in [17, usize::MAX] {
            let known = KnownEvent::decode(&event, written);
            assert_eq!((written, known), (written, None));
        }
        assert_eq!(KnownEvent::decode(&event[..15], 15), None);
    }

    /// An event that is late reaches no later object of its entry, and the device's events reach
    /// none.
    // abi: R-550
    #[test]
    fn each_object_has_a_cookie_of_its_own() {
        assert_eq!(Cookie::DEVICE.value(), 0);
        let first = UnusedCookie::first(7).take();
        assert_eq!((first.index, first.generation), (7, 1));
        let second = UnusedCookie::after(first).take();
        assert_eq!((second.index, second.generation), (7, 2));
        let last = Cookie {
            generation: u32::MAX,
            ..first
        };
        assert_eq!(UnusedCookie::after(last).take(), first);
    }

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
            assert_eq!((invalid, read(invalid)), (invalid, Answer::Invalid));
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
            assert_eq!((written, read(written)), (written, Answer::Invalid));
        }
        assert_eq!(read(3), Answer::Success(response));
        assert_eq!(errno(Answer::<Empty>::decode(&[22], 2)), None);
    }

    // abi: R-111, R-1110
    #[test]
    fn an_errno_is_one_of_the_specification() {
        for byte in 1..=u8::MAX {
            let expected = match byte {
                1 | 5 | 11 | 12 | 14 | 16 | 17 | 22 | 28 | 95 | 98 | 110 => byte,
                _ => 5,
            };
            let read = errno(Answer::<Empty>::decode(&[byte], 1));
            assert_eq!((byte, read), (byte, Some(expected)));
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
            let checked = port::check(&port);
            assert_eq!((number, checked), (number, Err(InvalidResponse)));
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
            assert_eq!((entries, checked), (entries, Ok(cut)));
        }
        for (entries, is_good) in [(1, true), (256, true), (257, false), (u32::MAX, false)] {
            let port = RspQueryPort {
                gid_tbl_len: entries,
                ..good_port()
            };
            let checked = port::check(&port).is_ok();
            assert_eq!((entries, checked), (entries, is_good));
        }
    }

    /// Values unknown to this driver are masked, since they might mean something else to the
    /// kernel.
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
            port::check(&port)
                .map(|port| (port.port_cap_flags.0, port.active_width, port.active_speed))
        };
        assert_eq!(with(u32::MAX, 8, 128), Ok((1 << 16, 8, 128)));
        assert_eq!(with(!(1 << 16), 16, 1), Ok((0, 16, 1)));
        for width in [0, 3, 32, u8::MAX] {
            let told = with(0, width, 64);
            assert_eq!((width, told), (width, Ok((0, 1, 64))));
        }
        for speed in [0, 3, 256, u16::MAX] {
            let told = with(0, 2, speed);
            assert_eq!((speed, told), (speed, Ok((0, 2, 1))));
        }
    }

    /// Access flags unknown to this driver are masked, since their bits might mean something else
    /// in the kernel.
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
            assert_eq!((state, checked.ok()), (state, expected));
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
            let checked = qp::check_number(Qpn::new(qpn), is_gsi).is_ok();
            assert_eq!((qpn, is_gsi, checked), (qpn, is_gsi, is_good));
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
            let checked = qp::check(&in_state).is_ok();
            assert_eq!((value, checked), (value, value <= 6));
            let with_mtu = QpAttr {
                path_mtu: value,
                ..QpAttr::default()
            };
            let checked = qp::check(&with_mtu).is_ok();
            assert_eq!((value, checked), (value, value <= 5));
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
}
