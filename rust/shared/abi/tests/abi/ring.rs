// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Ring layout, arm word and doorbell.

use virtio_rdma_abi::number::{Cqn, Qpn, Srqn};
use virtio_rdma_abi::ring::{
    slot_shift_for, ArmKind, ArmWord, Doorbell, RingKind, RingLayout, CACHE_LINE, CQ_SLOTS,
    DOORBELL_SHIFT_RANGE, KERNEL_DOORBELL_PAGE, PAGE_SHIFT_RANGE, SLOT_SHIFT_RANGE, WORK_SLOTS,
};

fn layout(kind: RingKind, slots: u32, slot_shift: u8) -> RingLayout {
    RingLayout::new(kind, slots, slot_shift).expect("a valid ring")
}

// abi: R-503
#[test]
fn work_rings_worked_out_by_hand() {
    let cases = [
        // (slots, slot shift, [owner, device, size])
        (2, 6, [128, 192, 256]),
        (2, 12, [8192, 8256, 8320]),
        (16, 7, [2048, 2112, 2176]),
        (256, 6, [16384, 16448, 16512]),
        (32768, 6, [2097152, 2097216, 2097280]),
        (32768, 12, [134217728, 134217792, 134217856]),
    ];
    for (slots, shift, offsets) in cases {
        let ring = layout(RingKind::Work, slots, shift);
        assert_eq!([ring.owner(), ring.device(), ring.size()], offsets);
    }
}

// abi
#[test]
fn shared_rings_worked_out_by_hand() {
    let cases = [
        // (slots, slot shift, [owner, device, order, size])
        (2, 6, [128, 192, 256, 320]),
        (2, 12, [8192, 8256, 8320, 8384]),
        (32, 6, [2048, 2112, 2176, 2240]),
        (64, 7, [8192, 8256, 8320, 8448]),
        (32768, 6, [2097152, 2097216, 2097280, 2162816]),
        (32768, 12, [134217728, 134217792, 134217856, 134283392]),
    ];
    for (slots, shift, offsets) in cases {
        let ring = layout(RingKind::Shared, slots, shift);
        assert_eq!(
            [ring.owner(), ring.device(), ring.order(0), ring.size()],
            offsets
        );
    }
}

// abi: R-503
#[test]
fn completion_rings_worked_out_by_hand() {
    let cases = [
        // (slots, [owner, device, arm, size])
        (2, [128, 192, 256, 320]),
        (1024, [65536, 65600, 65664, 65728]),
        (65536, [4194304, 4194368, 4194432, 4194496]),
        (4194304, [268435456, 268435520, 268435584, 268435648]),
    ];
    for (slots, offsets) in cases {
        let ring = RingLayout::completions(slots).expect("a valid ring");
        assert_eq!(ring, layout(RingKind::Completion, slots, 6));
        assert_eq!(
            [ring.owner(), ring.device(), ring.arm(), ring.size()],
            offsets
        );
    }
}

/// Computes the offsets of the parts of a ring step by step and compares them with the layout.
fn lay_out(kind: RingKind, slots: u32, shift: u8) {
    let ring = layout(kind, slots, shift);
    assert_eq!(
        (ring.kind(), ring.slots(), ring.slot_shift()),
        (kind, slots, shift)
    );
    assert_eq!(ring.slot_size(), 1 << shift);
    let last = slots - 1;

    let mut at = 0_u32;
    assert_eq!(ring.slot(0), at);
    assert_eq!(ring.slot(last), at + last * ring.slot_size());
    at += slots * ring.slot_size();

    at = at.next_multiple_of(64);
    assert_eq!(ring.owner(), at);
    at += 4;

    at = at.next_multiple_of(64);
    assert_eq!(ring.device(), at);
    at += 4;

    at = at.next_multiple_of(64);
    match kind {
        RingKind::Work => {}
        RingKind::Shared => {
            assert_eq!(ring.order(0), at);
            assert_eq!(ring.order(last), at + 2 * last);
            at += 2 * slots;
        }
        RingKind::Completion => {
            assert_eq!(ring.arm(), at);
            at += 8;
        }
    }
    assert_eq!(ring.size(), at.next_multiple_of(64));
}

// abi
#[test]
fn every_layout() {
    for slots in (1..=15).map(|n| 1 << n) {
        for shift in 6..=12 {
            lay_out(RingKind::Work, slots, shift);
            lay_out(RingKind::Shared, slots, shift);
        }
    }
    for slots in (1..=22).map(|n| 1 << n) {
        lay_out(RingKind::Completion, slots, 6);
    }
}

// abi
#[test]
fn positions_take_slots_in_turn() {
    let ring = layout(RingKind::Shared, 8, 6);
    for (position, index) in [
        (0, 0),
        (7, 7),
        (8, 0),
        (9, 1),
        (u32::MAX, 7),
        (u32::MAX - 7, 0),
    ] {
        assert_eq!(ring.slot_index(position), index as usize);
        assert_eq!(ring.slot(position), 64 * index);
        assert_eq!(ring.order(position), 512 + 128 + 2 * index);
    }
    let longest = RingLayout::completions(4_194_304).expect("a valid ring");
    for (position, index) in [
        (4_194_303, 4_194_303),
        (4_194_304, 0),
        (u32::MAX, 4_194_303),
    ] {
        assert_eq!(longest.slot_index(position), index as usize);
        assert_eq!(longest.slot(position), 64 * index);
    }
}

/// Slots have up to 4,096 bytes and are aligned to their size, so no slot crosses a page boundary.
// abi: R-503
#[test]
fn no_slot_crosses_a_page() {
    for shift in SLOT_SHIFT_RANGE {
        let ring = layout(RingKind::Work, 128, shift);
        for position in 0..128 {
            let first = ring.slot(position);
            let last = first + ring.slot_size() - 1;
            assert_eq!(
                first >> PAGE_SHIFT_RANGE.start(),
                last >> PAGE_SHIFT_RANGE.start()
            );
        }
    }
}

// abi: R-500
#[test]
fn rings_that_do_not_exist() {
    for kind in [RingKind::Work, RingKind::Shared] {
        for slots in [0, 1, 3, 32767, 32769, 65536, 4_194_304, u32::MAX] {
            assert_eq!(RingLayout::new(kind, slots, 6), None, "{slots} slots");
        }
        for shift in [0, 5, 13, 31, 32, u8::MAX] {
            assert_eq!(RingLayout::new(kind, 2, shift), None, "slot shift {shift}");
        }
    }
    for slots in [0, 1, 3, 4_194_303, 4_194_305, 8_388_608, 1 << 31, u32::MAX] {
        assert_eq!(RingLayout::completions(slots), None, "{slots} slots");
    }
    for shift in [0, 5, 7, 12, 13, 32, u8::MAX] {
        let ring = RingLayout::new(RingKind::Completion, 2, shift);
        assert_eq!(ring, None, "slot shift {shift}");
    }
}

// abi
#[test]
fn limits() {
    assert_eq!(WORK_SLOTS, 2..=32_768);
    assert_eq!(CQ_SLOTS, 2..=4_194_304);
    assert_eq!(SLOT_SHIFT_RANGE, 6..=12);
    assert_eq!(PAGE_SHIFT_RANGE, 12..=30);
    assert_eq!(
        (*DOORBELL_SHIFT_RANGE.start(), *DOORBELL_SHIFT_RANGE.end()),
        (12, 30)
    );
    assert_eq!((CACHE_LINE, KERNEL_DOORBELL_PAGE), (64, 0));
}

#[test]
fn slot_shift_of_a_size() {
    let cases = [
        (0, Some(6)),
        (64, Some(6)),
        (65, Some(7)),
        (91, Some(7)),
        (2048, Some(11)),
        (2049, Some(12)),
        (4096, Some(12)),
        (4097, None),
        (usize::MAX, None),
    ];
    for (size, shift) in cases {
        assert_eq!(slot_shift_for(size), shift, "{size} bytes");
    }
}

// abi
#[test]
fn arm_word() {
    // 30 bits of sequence, 2 bits of kind, 32 bits of position.
    let cases = [
        (1, ArmKind::Next, 0x1234_5678, 0x0000_0005_1234_5678),
        (
            0x3fff_ffff,
            ArmKind::Solicited,
            u32::MAX,
            0xffff_fffe_ffff_ffff,
        ),
        (
            0x2000_0001,
            ArmKind::None,
            0x8000_0000,
            0x8000_0004_8000_0000,
        ),
        (0, ArmKind::Solicited, 1, 0x0000_0002_0000_0001),
    ];
    for (sequence, kind, position, value) in cases {
        let word = ArmWord {
            sequence,
            kind,
            position,
        };
        assert_eq!(word.to_u64(), value);
        assert_eq!(ArmWord::from_u64(value), word);
        // Excess bits of the sequence do not affect other fields.
        let spill = ArmWord {
            sequence: sequence | 0xc000_0000,
            ..word
        };
        assert_eq!(spill.to_u64(), value);
    }
    assert_eq!(ArmWord::SEQUENCE_MASK, 0x3fff_ffff);
    // A zeroed word is not armed, and neither is a word with the unknown kind.
    assert_eq!(ArmWord::from_u64(0).kind, ArmKind::None);
    assert_eq!(ArmWord::from_u64(0x0000_0007_0000_0000).kind, ArmKind::None);
}

// abi: R-587
#[test]
fn doorbell() {
    let cases = [
        (Doorbell::Sq(Qpn::new(2)), 0x0100_0002),
        (Doorbell::Rq(Qpn::new(0x00ab_cdef)), 0x02ab_cdef),
        (Doorbell::Cq(Cqn::new(0)), 0x0300_0000),
        (Doorbell::Srq(Srqn::new(0x00ff_ffff)), 0x04ff_ffff),
    ];
    for (doorbell, value) in cases {
        assert_eq!(doorbell.to_u32(), value);
        assert_eq!(Doorbell::from_u32(value), Some(doorbell));
    }
    // Excess bits of the number do not affect the kind.
    let spill = Doorbell::Sq(Qpn::new(0xff00_0001));
    assert_eq!(spill.to_u32(), 0x0100_0001);
    for value in [0, 0x0000_0001, 0x0500_0000, 0xffff_ffff] {
        assert_eq!(Doorbell::from_u32(value), None, "{value:#x}");
    }
}
