// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Ring layout, arm word and doorbell.

use virtio_rdma_abi::ring::{
    slot_shift_for, ArmKind, ArmWord, Doorbell, DoorbellKind, RingLayout, CACHE_LINE,
    DOORBELL_SHIFT_RANGE, KERNEL_DOORBELL_PAGE, PAGE_SHIFT_RANGE, SLOTS_RANGE, SLOT_SHIFT_RANGE,
};

/// Offsets of one layout: avail, used, avail_event, arm, size.
fn offsets(slots: u32, slot_shift: u8) -> [u32; 5] {
    let layout = RingLayout::new(slots, slot_shift).expect("a valid ring");
    [
        layout.avail(),
        layout.used(),
        layout.avail_event(),
        layout.arm(),
        layout.size(),
    ]
}

#[test]
fn layouts_worked_out_by_hand() {
    assert_eq!(offsets(2, 6), [128, 192, 212, 256, 320]);
    assert_eq!(offsets(2, 12), [8192, 8256, 8276, 8320, 8384]);
    assert_eq!(offsets(16, 7), [2048, 2112, 2244, 2304, 2368]);
    assert_eq!(offsets(256, 6), [16384, 16960, 19012, 19072, 19136]);
    assert_eq!(
        offsets(32768, 6),
        [2097152, 2162752, 2424900, 2424960, 2425024]
    );
    assert_eq!(
        offsets(32768, 12),
        [134217728, 134283328, 134545476, 134545536, 134545600]
    );
}

/// Lays the parts of every ring out one after the other and finds them where the layout says, in order and apart.
#[test]
fn every_layout() {
    for slots in (1..=15).map(|n| 1_u32 << n) {
        for shift in 6..=12_u8 {
            let layout = RingLayout::new(slots, shift).expect("a valid ring");
            assert_eq!((layout.slots(), layout.slot_shift()), (slots, shift));
            assert_eq!(layout.slot_size(), 1 << shift);

            let mut at = 0_u32;
            let last = u16::try_from(slots - 1).expect("slot numbers have 16 bits");
            assert_eq!(layout.slot(0), at);
            assert_eq!(layout.slot(last), at + (slots - 1) * layout.slot_size());
            at += slots * layout.slot_size();

            at = at.next_multiple_of(64);
            assert_eq!(layout.avail(), at);
            assert_eq!(layout.avail_idx(), at + 2);
            assert_eq!(layout.avail_ring(0), at + 4);
            assert_eq!(layout.avail_ring(last), at + 4 + 2 * (slots - 1));
            at += 2 + 2 + 2 * slots;

            at = at.next_multiple_of(64);
            assert_eq!(layout.used(), at);
            assert_eq!(layout.used_idx(), at + 2);
            assert_eq!(layout.used_ring(0), at + 4);
            assert_eq!(layout.used_ring(last), at + 4 + 8 * (slots - 1));
            at += 2 + 2 + 8 * slots;
            assert_eq!(layout.avail_event(), at);
            at += 2;

            at = at.next_multiple_of(64);
            assert_eq!(layout.arm(), at);
            assert_eq!(layout.size(), at + 64);
        }
    }
}

#[test]
fn indices_wrap_at_the_number_of_slots() {
    let layout = RingLayout::new(8, 6).expect("a valid ring");
    for (index, position) in [(8, 0), (9, 1), (u16::MAX, 7), (u16::MAX - 7, 0)] {
        assert_eq!(layout.slot(index), layout.slot(position));
        assert_eq!(layout.avail_ring(index), layout.avail_ring(position));
        assert_eq!(layout.used_ring(index), layout.used_ring(position));
    }
}

/// Slots of up to 4,096 bytes at multiples of their size, so that none crosses a page of any size.
#[test]
fn no_slot_crosses_a_page() {
    for shift in SLOT_SHIFT_RANGE {
        let layout = RingLayout::new(128, shift).expect("a valid ring");
        for index in 0..128 {
            let first = layout.slot(index);
            let last = first + layout.slot_size() - 1;
            assert_eq!(
                first >> PAGE_SHIFT_RANGE.start(),
                last >> PAGE_SHIFT_RANGE.start()
            );
        }
    }
}

#[test]
fn rings_that_do_not_exist() {
    for slots in [0, 1, 3, 32767, 65536, u32::MAX] {
        assert_eq!(RingLayout::new(slots, 6), None, "{slots} slots");
    }
    for shift in [0, 5, 13, 31, 32, u8::MAX] {
        assert_eq!(RingLayout::new(2, shift), None, "slot shift {shift}");
    }
    assert_eq!((*SLOTS_RANGE.start(), *SLOTS_RANGE.end()), (2, 32768));
    assert_eq!(
        (*PAGE_SHIFT_RANGE.start(), *PAGE_SHIFT_RANGE.end()),
        (12, 30)
    );
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

#[test]
fn arm_word() {
    let word = ArmWord {
        sequence: 1,
        kind: ArmKind::Next,
        index: 0x1234,
    };
    // 14 bits of sequence, 2 of kind, 16 of index.
    assert_eq!(word.to_u32(), 0x0005_1234);
    assert_eq!(ArmWord::from_u32(0x0005_1234), word);
    let last = ArmWord {
        sequence: 0x3fff,
        kind: ArmKind::Solicited,
        index: 0xffff,
    };
    assert_eq!(last.to_u32(), 0xfffe_ffff);
    assert_eq!(ArmWord::from_u32(0xfffe_ffff), last);
    assert_eq!(ArmWord::SEQUENCE_MASK, 0x3fff);
    // A sequence beyond its bits spills into nothing else.
    let spill = ArmWord {
        sequence: 0x4001,
        ..word
    };
    assert_eq!(spill.to_u32(), word.to_u32());
    // Fresh memory is not armed, and neither is the kind that does not exist.
    assert_eq!(ArmWord::from_u32(0).kind, ArmKind::None);
    assert_eq!(ArmWord::from_u32(0x0007_0000).kind, ArmKind::None);
}

#[test]
fn doorbell() {
    let cases = [
        (DoorbellKind::Sq, 2, 0x0100_0002),
        (DoorbellKind::Rq, 0x00ab_cdef, 0x02ab_cdef),
        (DoorbellKind::Cq, 0, 0x0300_0000),
        (DoorbellKind::Srq, 0x00ff_ffff, 0x04ff_ffff),
    ];
    for (kind, number, value) in cases {
        let doorbell = Doorbell { kind, number };
        assert_eq!(doorbell.to_u32(), value);
        assert_eq!(Doorbell::from_u32(value), Some(doorbell));
    }
    // A number beyond 24 bits spills into nothing else.
    let spill = Doorbell {
        kind: DoorbellKind::Sq,
        number: 0xff00_0001,
    };
    assert_eq!(spill.to_u32(), 0x0100_0001);
    for value in [0, 0x0000_0001, 0x0500_0000, 0xffff_ffff] {
        assert_eq!(Doorbell::from_u32(value), None, "{value:#x}");
    }
}
