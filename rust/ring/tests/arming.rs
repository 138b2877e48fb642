// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completion events: one for each request, none lost, however indices and sequences wrap.
#![cfg(not(loom))]

mod common;

use common::*;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::ArmWord;
use virtio_rdma_ring::ArmLatch;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::RingMemory;

fn complete(device: &mut DeviceCq, memory: &Memory, solicited: bool) -> bool {
    device.push(memory, &[0; 4], solicited).unwrap();
    device.publish(memory)
}

#[test]
fn one_event_for_each_time_it_was_received() {
    let (memory, mut driver, mut device) = completion_queue(8);
    // More rounds than the sequence has values.
    for _ in 0..40_000 {
        assert_eq!(driver.arm(&memory, ArmKind::Next, false), Armed::Waiting);
        assert!(complete(&mut device, &memory, false));
        assert!(!complete(&mut device, &memory, false), "fired already");
        let _ = driver.arm(&memory, ArmKind::Next, false);
        assert!(
            !complete(&mut device, &memory, true),
            "the event was not received"
        );
        driver.event_received(&memory);
        while poll(&mut driver, &memory).is_some() {}
        assert!(!device.publish(&memory), "not armed again");
    }
}

#[test]
fn arming_often_without_an_event_does_not_wear_out() {
    let (memory, mut driver, mut device) = completion_queue(8);
    for _ in 0..70_000 {
        assert_eq!(driver.arm(&memory, ArmKind::Next, false), Armed::Waiting);
    }
    assert!(complete(&mut device, &memory, false));
}

#[test]
fn a_solicited_request_outlasts_the_index() {
    let (memory, mut driver, mut device) = completion_queue(2);
    assert_eq!(
        driver.arm(&memory, ArmKind::Solicited, false),
        Armed::Waiting
    );
    for _ in 0..70_000 {
        assert!(!complete(&mut device, &memory, false));
        poll(&mut driver, &memory).unwrap();
    }
    assert!(complete(&mut device, &memory, true));
}

#[test]
fn a_request_for_any_completion_is_not_narrowed() {
    let (memory, mut driver, mut device) = completion_queue(8);
    let _ = driver.arm(&memory, ArmKind::Next, false);
    let _ = driver.arm(&memory, ArmKind::Solicited, false);
    assert!(complete(&mut device, &memory, false));
    driver.event_received(&memory);
    let _ = driver.arm(&memory, ArmKind::Solicited, false);
    assert!(!complete(&mut device, &memory, false));
    let _ = driver.arm(&memory, ArmKind::Next, false);
    assert!(complete(&mut device, &memory, false));
}

#[test]
fn unpolled_completions_are_reported_on_request() {
    let (memory, mut driver, mut device) = completion_queue(8);
    assert!(!complete(&mut device, &memory, false));
    assert_eq!(driver.arm(&memory, ArmKind::Next, true), Armed::Missed);
    poll(&mut driver, &memory).unwrap();
    assert_eq!(driver.arm(&memory, ArmKind::Next, true), Armed::Waiting);
}

#[test]
fn what_came_after_the_last_look_causes_an_event() {
    for kind in [ArmKind::Next, ArmKind::Solicited] {
        let (memory, mut driver, mut device) = completion_queue(8);
        assert!(poll(&mut driver, &memory).is_none());
        assert!(!complete(&mut device, &memory, true));
        assert_eq!(driver.arm(&memory, kind, false), Armed::RingDoorbell);
        assert!(device.publish(&memory));
        // Of the next one its consumer knows by the event.
        assert!(!complete(&mut device, &memory, true));
        driver.event_received(&memory);
        assert_eq!(driver.arm(&memory, kind, false), Armed::Waiting);
        assert!(!device.publish(&memory));
        // And of this one by polling those before it.
        assert!(complete(&mut device, &memory, true));
        driver.event_received(&memory);
        for _ in 0..3 {
            poll(&mut driver, &memory).unwrap();
        }
        assert!(!complete(&mut device, &memory, true));
        poll(&mut driver, &memory).unwrap();
        assert_eq!(driver.arm(&memory, kind, false), Armed::Waiting);
        assert!(complete(&mut device, &memory, true));
    }
}

#[test]
fn a_completion_between_index_and_arm_word_is_found_at_the_doorbell() {
    let (memory, _, mut device) = completion_queue(8);
    assert!(!complete(&mut device, &memory, false));
    let word = ArmWord {
        sequence: 1,
        kind: ArmKind::Next,
        index: 0,
    };
    memory.store_u32(layout(8).arm(), word.to_u32().to_le());
    assert!(device.publish(&memory));
    assert!(
        !device.publish(&memory),
        "a second doorbell changes nothing"
    );
}

#[test]
fn an_index_that_no_ring_can_have_fires_at_once() {
    let mut latch = ArmLatch::new(8);
    let word = |sequence, kind, index| {
        ArmWord {
            sequence,
            kind,
            index,
        }
        .to_u32()
    };
    assert!(latch.event_due(word(1, ArmKind::Solicited, 1000)));
    assert!(!latch.event_due(word(2, ArmKind::None, 1000)));
    assert!(!latch.event_due(word(2, ArmKind::Next, 0)));
    latch.record(false);
    assert!(latch.event_due(word(2, ArmKind::Next, 0)));
    assert!(
        !latch.event_due((3 << 18) | (3 << 16)),
        "an unknown kind asks for nothing"
    );
}

#[test]
fn a_ring_that_a_queue_moves_to_starts_anew_but_for_the_answered_sequence() {
    let word = |sequence, kind, index| {
        ArmWord {
            sequence,
            kind,
            index,
        }
        .to_u32()
    };
    let mut latch = ArmLatch::new(8);
    for _ in 0..5 {
        latch.record(false);
    }
    assert!(latch.event_due(word(1, ArmKind::Next, 0)));
    latch.moved(2);
    assert!(
        !latch.event_due(word(1, ArmKind::Next, 0)),
        "answered in the old ring"
    );
    assert!(
        !latch.event_due(word(2, ArmKind::Next, 0)),
        "nothing was completed in the new ring"
    );
    latch.record(false);
    assert!(latch.event_due(word(2, ArmKind::Next, 0)));
    // No completion was solicited, but an index three behind is overdue in a ring of two slots.
    let behind = 1u16.wrapping_sub(3);
    assert!(latch.event_due(word(3, ArmKind::Solicited, behind)));
}
