// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completion events: one for each request and none lost, even if positions and sequences wrap.
#![cfg(not(loom))]

mod common;

use common::*;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::ArmWord;
use virtio_rdma_ring::ArmLatch;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::RingMemory;

const KINDS: [ArmKind; 2] = [ArmKind::Next, ArmKind::Solicited];

fn word(sequence: u32, kind: ArmKind, position: u32) -> u64 {
    ArmWord {
        sequence,
        kind,
        position,
    }
    .to_u64()
}

/// A latch that has recorded `recorded` unsolicited completions.
fn latch(slots: u32, start: u32, recorded: u32) -> ArmLatch {
    let mut latch = ArmLatch::starting_at(slots, start);
    for _ in 0..recorded {
        latch.record(false);
    }
    latch
}

// abi
#[test]
fn one_event_for_each_time_it_was_received() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(8, start);
        for _ in 0..1000 {
            assert_eq!(driver.arm(&memory, ArmKind::Next, false), Armed::Waiting);
            assert!(complete(&mut device, &memory, 0, false));
            let again = complete(&mut device, &memory, 0, false);
            assert!(!again, "the event was sent already");
            let _ = driver.arm(&memory, ArmKind::Next, false);
            let again = complete(&mut device, &memory, 0, true);
            assert!(!again, "the event was not received yet");
            driver.event_received(&memory);
            while poll(&mut driver, &memory).is_some() {}
            assert!(!device.publish(&memory), "not armed again");
        }
    }
}

// abi
#[test]
fn the_arm_word_says_sequence_kind_and_known_position() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(8, start);
        let arm = driver.layout().arm();
        let stored = || u64::from_le(memory.load_u64(arm));
        assert_eq!(stored(), 0);
        let _ = driver.arm(&memory, ArmKind::Solicited, false);
        assert_eq!(stored(), word(1, ArmKind::Solicited, start));
        for _ in 0..3 {
            let _ = complete(&mut device, &memory, 0, false);
        }
        poll(&mut driver, &memory).unwrap();
        driver.event_received(&memory);
        let _ = driver.arm(&memory, ArmKind::Next, false);
        // All three completions are known, although only one was polled.
        assert_eq!(stored(), word(2, ArmKind::Next, start.wrapping_add(3)));
    }
}

// abi: R-554
#[test]
fn arming_often_without_an_event_does_not_wear_out() {
    let (memory, mut driver, mut device) = completion_queue(8, u32::MAX);
    for _ in 0..70_000 {
        assert_eq!(driver.arm(&memory, ArmKind::Next, false), Armed::Waiting);
    }
    assert!(complete(&mut device, &memory, 0, false));
}

// abi
#[test]
fn sequences_wrap() {
    let (memory, mut driver, mut device) = completion_queue(8, 0);
    let last = ArmWord::SEQUENCE_MASK;
    let at = |sequence| word(sequence, ArmKind::Next, 0).to_le();
    let arm = driver.layout().arm();
    assert!(!complete(&mut device, &memory, 0, false));
    // A word with the last sequence, then words with the sequences 0 and 1.
    for sequence in [last, 0, 1] {
        memory.store_u64(arm, at(sequence));
        assert!(device.publish(&memory));
        assert!(!device.publish(&memory));
    }
    // The owner's sequence also wraps within its bits.
    for _ in 0..5 {
        driver.event_received(&memory);
    }
    let _ = driver.arm(&memory, ArmKind::Next, false);
    assert_eq!(
        u64::from_le(memory.load_u64(arm)),
        word(6, ArmKind::Next, 1)
    );
}

// abi
#[test]
fn a_solicited_request_outlasts_the_wrap_of_positions() {
    // Going through all 32-bit positions would take too long, so some of the starts wrap early.
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(2, start);
        let armed = driver.arm(&memory, ArmKind::Solicited, false);
        assert_eq!(armed, Armed::Waiting);
        for _ in 0..70_000 {
            assert!(!complete(&mut device, &memory, 0, false));
            poll(&mut driver, &memory).unwrap();
        }
        assert!(complete(&mut device, &memory, 0, true));
    }
}

// abi
#[test]
fn a_request_for_any_completion_is_not_narrowed() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(8, start);
        let _ = driver.arm(&memory, ArmKind::Next, false);
        let _ = driver.arm(&memory, ArmKind::Solicited, false);
        assert!(complete(&mut device, &memory, 0, false));
        driver.event_received(&memory);
        let _ = driver.arm(&memory, ArmKind::Solicited, false);
        assert!(!complete(&mut device, &memory, 0, false));
        let _ = driver.arm(&memory, ArmKind::Next, false);
        assert!(complete(&mut device, &memory, 0, false));
    }
}

/// One consumer sleeps until a completion. Another consumer polls and arms before the device checks
/// the arm word.
// abi
#[test]
fn a_second_request_keeps_the_position_of_the_first() {
    for (start, second) in STARTS
        .iter()
        .flat_map(|start| KINDS.map(|kind| (*start, kind)))
    {
        let (memory, mut driver, mut device) = completion_queue(4, start);
        let layout = *driver.layout();
        assert_eq!(driver.arm(&memory, ArmKind::Next, false), Armed::Waiting);
        device.push(&memory, &[0; 4], false).unwrap();
        device.push(&memory, &[0; 4], false).unwrap();
        // The device has stored its position, and has not checked the arm word yet.
        memory.store_u32(layout.device(), start.wrapping_add(2).to_le());
        assert!(poll(&mut driver, &memory).is_some());
        assert_eq!(driver.arm(&memory, second, false), Armed::Waiting);
        assert!(device.publish(&memory), "the first consumer sleeps");
        driver.event_received(&memory);
        assert_eq!(driver.arm(&memory, ArmKind::Next, false), Armed::Waiting);
        assert!(!device.publish(&memory), "the event made both known");
    }
}

// abi
#[test]
fn a_second_request_rings_for_completions_after_its_last_look_only() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(4, start);
        let arm = |driver: &mut CompletionQueue| driver.arm(&memory, ArmKind::Solicited, false);
        assert_eq!(arm(&mut driver), Armed::Waiting);
        assert!(!complete(&mut device, &memory, 0, false));
        assert!(poll(&mut driver, &memory).is_some());
        assert_eq!(arm(&mut driver), Armed::Waiting);
        assert!(!complete(&mut device, &memory, 0, false));
        assert_eq!(arm(&mut driver), Armed::RingDoorbell);
        assert!(!device.publish(&memory));
        assert!(complete(&mut device, &memory, 0, true));
    }
}

// abi: R-557
#[test]
fn unpolled_completions_are_reported_on_request() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(8, start);
        assert!(!complete(&mut device, &memory, 0, false));
        assert_eq!(driver.arm(&memory, ArmKind::Next, true), Armed::Missed);
        poll(&mut driver, &memory).unwrap();
        assert_eq!(driver.arm(&memory, ArmKind::Next, true), Armed::Waiting);
    }
}

// abi
#[test]
fn completions_after_the_last_look_cause_an_event() {
    for (kind, start) in KINDS
        .iter()
        .flat_map(|kind| STARTS.map(|start| (*kind, start)))
    {
        let (memory, mut driver, mut device) = completion_queue(8, start);
        assert!(poll(&mut driver, &memory).is_none());
        assert!(!complete(&mut device, &memory, 0, true));
        assert_eq!(driver.arm(&memory, kind, false), Armed::RingDoorbell);
        assert!(device.publish(&memory));
        // The event makes the completion known to the consumer.
        assert!(!complete(&mut device, &memory, 0, true));
        driver.event_received(&memory);
        assert_eq!(driver.arm(&memory, kind, false), Armed::Waiting);
        assert!(!device.publish(&memory));
        // Polling makes the completions known as well.
        assert!(complete(&mut device, &memory, 0, true));
        driver.event_received(&memory);
        for _ in 0..3 {
            poll(&mut driver, &memory).unwrap();
        }
        assert!(!complete(&mut device, &memory, 0, true));
        poll(&mut driver, &memory).unwrap();
        assert_eq!(driver.arm(&memory, kind, false), Armed::Waiting);
        assert!(complete(&mut device, &memory, 0, true));
    }
}

// abi
#[test]
fn a_completion_between_position_and_arm_word_is_found_at_the_doorbell() {
    for start in STARTS {
        let (memory, _, mut device) = completion_queue(8, start);
        assert!(!complete(&mut device, &memory, 0, false));
        let armed = word(1, ArmKind::Next, start);
        memory.store_u64(completion_layout(8).arm(), armed.to_le());
        assert!(device.publish(&memory));
        let again = device.publish(&memory);
        assert!(!again, "a second doorbell changes nothing");
    }
}

// abi
#[test]
fn positions_as_far_back_as_the_ring_is_long_are_not_overdue() {
    for start in STARTS {
        for behind in 0..=8 {
            let position = start.wrapping_add(20 - behind);
            let mut latch = latch(8, start, 20);
            let due = latch.event_due(word(1, ArmKind::Solicited, position));
            assert!(!due, "{behind} behind, but none was solicited");
            let due = latch.event_due(word(1, ArmKind::Next, position));
            assert_eq!(due, behind != 0, "{behind} behind");
        }
    }
}

// abi
#[test]
fn a_position_that_no_ring_can_have_is_overdue() {
    for start in STARTS {
        // Positions further back than the ring's length, and ahead of the producer.
        for behind in [9, 10, 1000, 0x8000_0000, u32::MAX - 1, u32::MAX] {
            let position = start.wrapping_add(20).wrapping_sub(behind);
            for kind in KINDS {
                let mut latch = latch(8, start, 20);
                assert!(!latch.event_due(word(1, ArmKind::None, position)));
                assert!(latch.event_due(word(1, kind, position)), "{behind} behind");
                assert!(!latch.event_due(word(1, kind, position)));
                // The sequence was answered, so a word with the same sequence requests nothing.
                assert!(!latch.event_due(word(1, kind, position.wrapping_sub(1))));
                assert!(latch.event_due(word(2, kind, position)));
            }
        }
    }
}

// abi: R-588
#[test]
fn an_unknown_kind_asks_for_nothing() {
    let unknown = |sequence: u64, position: u32| (sequence << 34) | (3 << 32) | u64::from(position);
    for start in STARTS {
        let mut latch = latch(8, start, 3);
        for behind in [0, 1, 9, u32::MAX] {
            let position = start.wrapping_add(3).wrapping_sub(behind);
            assert!(!latch.event_due(unknown(1, position)));
        }
        latch.record(true);
        assert!(!latch.event_due(unknown(2, start)));
        assert!(latch.event_due(word(2, ArmKind::Solicited, start)));
    }
}

// abi: R-559
#[test]
fn a_latched_position_does_not_age() {
    for start in STARTS {
        let mut latch = latch(2, start, 1);
        let asked = word(1, ArmKind::Solicited, start.wrapping_add(1));
        assert!(!latch.event_due(asked));
        // The position in the word is far back by now, but the latch has recorded it.
        for _ in 0..1000 {
            latch.record(false);
            assert!(!latch.event_due(asked));
        }
        latch.record(true);
        assert!(latch.event_due(asked));
    }
}

/// A CQ stays armed when it moves, in any order of completions.
#[test]
fn a_moved_cq_fires_the_event_that_was_asked_for() {
    let cases = KINDS
        .iter()
        .flat_map(|kind| STARTS.map(|start| (*kind, start)));
    for (kind, start) in cases {
        for (pending, after) in (0..9u32).map(|case| (case / 3, case % 3)) {
            let (memory, mut driver, mut device) = completion_queue(8, start);
            assert_eq!(driver.arm(&memory, kind, false), Armed::Waiting);
            // Completions for which the event is not due, so the device sends no event.
            for value in 0..pending {
                device.push(&memory, &value.to_le_bytes(), false).unwrap();
            }
            let mut fired = u32::from(device.publish(&memory));
            let end = device.published();
            let longer = completion_layout(16);
            let target = Memory::new(&longer);
            device.moved(longer);
            for value in 0..after {
                fired += u32::from(complete(&mut device, &target, pending + value, true));
            }
            for value in 0..pending {
                assert_eq!(poll(&mut driver, &memory), Some(value));
            }
            assert_eq!(end, start.wrapping_add(pending));
            // abi: R-583
            assert!(driver.is_at(end));
            let next = CompletionQueue::new(longer);
            // abi
            if driver.moved(next, &target, pending != 0) {
                fired += u32::from(device.publish(&target));
            }
            if pending + after == 0 {
                fired += u32::from(complete(&mut device, &target, 0, true));
            }
            // abi: R-581
            assert_eq!(fired, 1, "{kind:?}, {pending} before, {after} after");
            driver.event_received(&target);
            for value in pending..pending + after {
                // abi: R-580
                assert_eq!(poll(&mut driver, &target), Some(value));
            }
        }
    }
}

/// A consumer arms the old ring after the device last checked it, so the consumer's doorbell
/// arrives too late. Another consumer polls the completion that should have caused the event.
// abi
#[test]
fn a_doorbell_that_comes_after_the_move_is_made_up_for() {
    for (start, kind) in STARTS
        .iter()
        .flat_map(|start| KINDS.map(|kind| (*start, kind)))
    {
        let (memory, mut driver, mut device) = completion_queue(4, start);
        assert!(!complete(&mut device, &memory, 0, true));
        assert_eq!(driver.arm(&memory, kind, false), Armed::RingDoorbell);
        let layout = completion_layout(8);
        let target = Memory::new(&layout);
        device.moved(layout);
        assert!(!device.publish(&target), "the new ring is not armed yet");
        assert!(poll(&mut driver, &memory).is_some());
        assert!(driver.moved(CompletionQueue::new(layout), &target, false));
        assert!(device.publish(&target));
        assert!(!device.publish(&target));
        driver.event_received(&target);
        assert_eq!(driver.arm(&target, kind, false), Armed::Waiting);
        assert!(complete(&mut device, &target, 0, true));
    }
}

// abi
#[test]
fn a_request_that_was_carried_along_is_kept_by_later_ones() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(4, start);
        assert!(!complete(&mut device, &memory, 0, false));
        let _ = driver.arm(&memory, ArmKind::Next, false);
        let layout = completion_layout(8);
        let target = Memory::new(&layout);
        device.moved(layout);
        assert!(driver.moved(CompletionQueue::new(layout), &target, true));
        // The doorbell has not arrived yet when another thread arms.
        let _ = driver.arm(&target, ArmKind::Solicited, false);
        assert!(device.publish(&target));
    }
}

// abi
#[test]
fn a_resumed_device_side_goes_on_where_the_old_one_was() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(8, start);
        let layout = *driver.layout();
        let resume = |device: &DeviceCq| DeviceCq::resumed(layout, &device.state());
        assert!(!complete(&mut device, &memory, 7, true), "not armed");
        let mut device = resume(&device);
        assert!(!device.publish(&memory));
        assert_eq!(device.published(), start.wrapping_add(1));
        assert_eq!(poll(&mut driver, &memory), Some(7));
        assert_eq!(
            driver.arm(&memory, ArmKind::Solicited, false),
            Armed::Waiting
        );
        assert!(!complete(&mut device, &memory, 8, false), "not solicited");
        let mut device = resume(&device);
        assert!(complete(&mut device, &memory, 9, true), "armed before");
        let mut device = resume(&device);
        assert!(!complete(&mut device, &memory, 10, true), "sent already");
        for value in 8..=10 {
            assert_eq!(poll(&mut driver, &memory), Some(value));
        }
        // A CQE that was pushed and not published comes with the event that is requested.
        driver.event_received(&memory);
        let _ = driver.arm(&memory, ArmKind::Next, false);
        assert!(!device.publish(&memory));
        device.push(&memory, &11u64.to_le_bytes(), false).unwrap();
        let mut device = resume(&device);
        assert_eq!(poll(&mut driver, &memory), None);
        assert!(device.publish(&memory));
        assert_eq!(poll(&mut driver, &memory), Some(11));
    }
}

/// A doorbell may have been lost for a request before completions that the device did not check. It
/// stays due until the event, however often the request is repeated or the CQ moves.
// abi: R-557
#[test]
fn a_doorbell_stays_due_until_the_event() {
    // Whether a completion arrives before the first request, before the second one, and in the
    // first new ring.
    for [first, second, moved] in [
        [true, true, false],
        [true, true, true],
        [true, false, false],
        [false, true, true],
        [false, false, true],
        [false, false, false],
    ] {
        let case = format!("{first} {second} {moved}");
        let (memory, mut driver, _) = completion_queue(8, 0);
        let layout = *driver.layout();
        // The device has stored its position, and has not checked the arm word yet.
        let arrive = |memory: &Memory, position: u32| {
            memory.store_u32(layout.device(), position.to_le());
        };
        arrive(&memory, first.into());
        let armed = driver.arm(&memory, ArmKind::Next, false);
        assert_eq!(armed == Armed::RingDoorbell, first, "{case}");
        arrive(&memory, u32::from(first) + u32::from(second));
        let armed = driver.arm(&memory, ArmKind::Next, false);
        assert_eq!(armed == Armed::RingDoorbell, first || second, "{case}");
        let (one, two) = (Memory::new(&layout), Memory::new(&layout));
        arrive(&one, moved.into());
        let rings = driver.moved(CompletionQueue::new(layout), &one, false);
        assert_eq!(rings, first || second || moved, "{case}");
        let rings = driver.moved(CompletionQueue::new(layout), &two, false);
        assert_eq!(rings, first || second || moved, "{case}");
        driver.event_received(&two);
        let armed = driver.arm(&two, ArmKind::Next, false);
        assert_eq!(armed, Armed::Waiting, "{case}");
        let rings = driver.moved(CompletionQueue::new(layout), &one, false);
        assert_eq!(rings, moved, "{case}");
    }
}

// abi: R-584
#[test]
fn a_moved_cq_that_nobody_armed_fires_nothing() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(8, start);
        assert!(!complete(&mut device, &memory, 0, true));
        let shorter = completion_layout(2);
        let target = Memory::new(&shorter);
        device.moved(shorter);
        assert!(!driver.moved(CompletionQueue::new(shorter), &target, true));
        assert_eq!(target.load_u64(shorter.arm()), 0);
        assert!(!complete(&mut device, &target, 0, true));
    }
}

// abi
#[test]
fn a_ring_that_a_cq_moves_to_starts_anew_but_for_the_answered_sequence() {
    for start in STARTS {
        let (memory, _, mut device) = completion_queue(8, start);
        let arm = |memory: &Memory, slots, word: u64| {
            memory.store_u64(completion_layout(slots).arm(), word.to_le());
        };
        arm(&memory, 8, word(1, ArmKind::Next, start));
        assert!(complete(&mut device, &memory, 0, false));
        let shorter = completion_layout(2);
        let target = Memory::new(&shorter);
        device.moved(shorter);
        assert_eq!(device.published(), 0);
        arm(&target, 2, word(1, ArmKind::Next, 0));
        assert!(!complete(&mut device, &target, 0, false), "answered before");
        arm(&target, 2, word(2, ArmKind::Next, 1));
        assert!(!device.publish(&target), "nothing was completed since");
        assert!(complete(&mut device, &target, 0, false));
        // No completion was solicited, but a position three back is overdue in a ring of two slots.
        let behind = 2u32.wrapping_sub(3);
        arm(&target, 2, word(3, ArmKind::Solicited, behind));
        assert!(device.publish(&target));
    }
}

// abi: R-560
#[test]
fn hostile_arm_words_cause_one_event_a_sequence() {
    let layout = completion_layout(4);
    let (memory, _, mut device) = completion_queue(4, u32::MAX - 2);
    let (mut random, mut events, mut answered) = (0x9e37_79b9_7f4a_7c15_u64, 0, 0);
    for round in 0..20_000 {
        if round % 2 == 0 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        }
        // There are only four sequences, so successive words often have the same sequence.
        let hostile = random & !(0x0fff_ffff << 36);
        memory.store_u64(layout.arm(), hostile.to_le());
        memory.store_u32(layout.owner(), device.published().to_le());
        if complete(&mut device, &memory, 0, round % 3 == 0) {
            let sequence = ArmWord::from_u64(hostile).sequence;
            assert_ne!(sequence, answered, "answered twice");
            (events, answered) = (events + 1, sequence);
        }
    }
    assert!(events > 1000);
}
