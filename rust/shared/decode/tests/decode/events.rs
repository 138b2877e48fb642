// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Events and the cookies in them.

use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::AsyncEvent;
use virtio_rdma_decode::event::{Cookie, KnownEvent, UnusedCookie};

use super::bytes;

fn decode(hex: &str) -> Option<KnownEvent> {
    let event: [u8; 16] = bytes(hex);
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
    for cookie in ["00000000", "01000000", "ffffffff"] {
        let event = format!("09010000 00000000 {cookie} 00000000");
        let known = KnownEvent {
            kind: EventKind::Async(AsyncEvent::PortActive),
            object: Cookie::DEVICE,
        };
        assert_eq!(decode(&event), Some(known), "{cookie}");
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
        assert_eq!(known.map(|known| known.kind), expected, "{kind:#x}");
    }
}

/// Bytes after `written` are left over from an earlier event.
// abi: R-544
#[test]
fn half_an_event_is_none() {
    let event = [0; 16];
    for written in 0..16 {
        assert_eq!(KnownEvent::decode(&event, written), None, "{written}");
    }
    assert!(KnownEvent::decode(&event, 16).is_some());
    for written in [17, usize::MAX] {
        assert_eq!(KnownEvent::decode(&event, written), None, "{written}");
    }
    assert_eq!(KnownEvent::decode(&event[..15], 15), None);
}

/// An event that is late reaches no later object of its entry, and the device's events reach none.
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
