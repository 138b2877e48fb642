// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of memory windows: single rules, and random sequences of operations, compared with a
//! model.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use virtio_rdma_abi::ctrl::Errno;
use virtio_rdma_abi::number::{MrNumber, MwNumber, Pdn, Qpn};

use super::*;
use crate::error::errno;
use crate::memory::{unlimited, Keys, MrTable, PageMap};

const PDN: Pdn = Pdn::new(7);
/// Address of the first byte of each MR, in work requests.
const BASE: u64 = 0x10_0000;
const MR_ACCESS: AccessFlags = AccessFlags(AccessFlags::LOCAL_WRITE.0 | AccessFlags::MW_BIND.0);
const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const READ: AccessFlags = AccessFlags::REMOTE_READ;

/// The result of a check that fails for `reason`.
fn fault<T>(reason: WcReason) -> KeyResult<T> {
    Err(KeyFault(reason))
}

fn pd(pdn: Pdn) -> PdUse {
    PdUse::alone(pdn)
}

fn at(qpn: u32) -> KeyUser {
    KeyUser {
        pdn: PDN,
        qpn: Qpn::new(qpn),
    }
}

fn table() -> MrTable {
    MrTable::new(&Secret::new(None), &unlimited(), 4, 4, 100)
}

fn mr(table: &MrTable, access: AccessFlags) -> (MrNumber, u32) {
    let charge = table.charge(0).unwrap();
    table
        .insert(pd(PDN), access, BASE, PageMap::everything(), charge)
        .unwrap()
}

fn window(table: &MrTable, mw_type: MwType) -> (MwNumber, u32) {
    table.windows().insert(pd(PDN), mw_type).unwrap()
}

fn binding(key: u32) -> MwBind {
    MwBind {
        old_key: key,
        new_key: next(key),
        access: WRITE,
        addr: BASE + 0x1000,
        len: 0x100,
    }
}

/// `key` with the next variant.
fn next(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

fn opens(table: &MrTable, key: u32, by: KeyUser, addr: u64, len: u64) -> bool {
    Keys::new(table)
        .check_remote(key, by, addr, len, WRITE)
        .is_ok()
}

// abi
#[test]
fn type_1_is_bound_again_and_again() {
    let table = table();
    let (_, lkey) = mr(&table, MR_ACCESS);
    let (_, key) = window(&table, MwType::One);
    let start = BASE + 0x1000;
    assert!(!opens(&table, key, at(1), start, 1), "not bound");
    let first = binding(key);
    assert_eq!(table.bind(at(1), lkey, &first), Ok(None));
    assert!(!opens(&table, key, at(1), start, 1), "old key");
    for qpn in [1, 2] {
        assert!(
            opens(&table, first.new_key, at(qpn), start, 0x100),
            "any QP"
        );
    }
    let other_pd = KeyUser {
        pdn: Pdn::new(8),
        qpn: Qpn::new(1),
    };
    assert!(!opens(&table, first.new_key, other_pd, start, 1), "PD");
    assert!(!opens(&table, first.new_key, at(1), start - 1, 1), "before");
    assert!(
        !opens(&table, first.new_key, at(1), start, 0x101),
        "past the end"
    );
    let read = Keys::new(&table).check_remote(first.new_key, at(1), start, 1, READ);
    assert_eq!(read, fault(WcReason::AccessNotGranted), "access flag");
    let local = Keys::new(&table).check(first.new_key, at(1), start, 1, AccessFlags::NONE);
    assert_eq!(local, fault(WcReason::NoSuchKey), "no L_Key");

    let second = MwBind {
        addr: BASE,
        ..binding(first.new_key)
    };
    assert_eq!(table.bind(at(2), lkey, &second), Ok(None));
    assert!(!opens(&table, first.new_key, at(1), start, 1));
    assert!(opens(&table, second.new_key, at(1), BASE, 0x100));
    let none = MwBind {
        len: 0,
        ..binding(second.new_key)
    };
    assert_eq!(table.bind(at(1), 0, &none), Ok(None));
    assert!(!opens(&table, second.new_key, at(1), BASE, 1));
    assert!(!opens(&table, none.new_key, at(1), BASE, 1));
    assert!(
        !opens(&table, none.new_key, at(1), BASE, 0),
        "nothing is in it"
    );
    assert_eq!(
        table.invalidate(none.new_key, at(1)),
        fault(WcReason::KeyRevoked)
    );
}

#[test]
fn type_2_belongs_to_the_qp_that_bound_it() {
    let table = table();
    let (_, lkey) = mr(&table, MR_ACCESS);
    let (number, key) = window(&table, MwType::Two);
    assert_eq!(
        table.invalidate(key, at(1)),
        fault(WcReason::KeyRevoked),
        "not bound"
    );
    let first = binding(key);
    assert_eq!(table.bind(at(1), lkey, &first), Ok(Some(number)));
    let key = first.new_key;
    let start = first.addr;
    assert!(opens(&table, key, at(1), start, 0x100));
    // abi: R-406
    assert!(!opens(&table, key, at(2), start, 0x100), "QP");
    // abi
    assert_eq!(
        table.bind(at(1), lkey, &binding(key)),
        fault(WcReason::KeyInUse),
        "bound"
    );
    // abi: R-409
    assert_eq!(table.invalidate(key, at(2)), fault(WcReason::OtherQp), "QP");
    assert_eq!(
        table.invalidate(next(key), at(1)),
        fault(WcReason::NoSuchKey),
        "key"
    );
    assert!(opens(&table, key, at(1), start, 0x100));
    // abi: R-408
    assert_eq!(table.invalidate(key, at(1)), Ok(()));
    assert!(!opens(&table, key, at(1), start, 1));
    // Another QP may bind the window to the same new key, even if its BIND_MW does not have the
    // window's current key.
    let again = MwBind {
        new_key: key,
        ..binding(key ^ 0x80)
    };
    assert_eq!(table.bind(at(2), lkey, &again), Ok(Some(number)));
    table.windows().unbind_for(number, Qpn::new(1));
    assert!(opens(&table, key, at(2), start, 1), "another QP's");
    table.windows().unbind_for(number, Qpn::new(2));
    assert!(!opens(&table, key, at(2), start, 1));
}

// abi: R-390
#[test]
fn zero_based_windows_count_from_their_start() {
    for mw_type in [MwType::One, MwType::Two] {
        let table = table();
        let (_, lkey) = mr(&table, MR_ACCESS);
        let (_, key) = window(&table, mw_type);
        let zero = MwBind {
            access: WRITE | AccessFlags::ZERO_BASED,
            ..binding(key)
        };
        table.bind(at(1), lkey, &zero).unwrap();
        let opened = Keys::new(&table)
            .region_remote(zero.new_key, at(1), 0x10, 0xf0, WRITE)
            .unwrap();
        // The MR's pages are all of DMA space, so the MR's first byte is at DMA address 0.
        let region = opened.region().unwrap();
        assert_eq!(region.find(0x10, &mut Default::default()).0, 0x1010);
        assert_eq!(region.rest(0x10), 0xf0);
        assert!(!opens(&table, zero.new_key, at(1), 0, 0x101));
        assert!(!opens(&table, zero.new_key, at(1), zero.addr, 1));
    }
}

// abi
#[test]
fn bindings_that_are_refused() {
    type Change = fn(&mut MwBind);
    let changes: [(&str, Change, WcReason); 9] = [
        (
            "no window",
            |b| b.old_key = 0xff_ffff00,
            WcReason::NoSuchKey,
        ),
        ("an MR's key", |b| b.old_key = 0x100, WcReason::NoSuchKey),
        ("new key", |b| b.new_key ^= 0x100, WcReason::KeyMismatch),
        (
            "before the MR",
            |b| b.addr = BASE - 1,
            WcReason::OutOfBounds,
        ),
        (
            "past the MR",
            |b| b.len = u64::MAX - 0x1000 + 1,
            WcReason::OutOfBounds,
        ),
        (
            "wraps",
            |b| (b.addr, b.len) = (u64::MAX, BASE + 2),
            WcReason::OutOfBounds,
        ),
        (
            "MW_BIND",
            |b| b.access = AccessFlags::MW_BIND,
            WcReason::BadAccessFlags,
        ),
        (
            "unknown access flag",
            |b| b.access = AccessFlags(1 << 30),
            WcReason::BadAccessFlags,
        ),
        (
            "paging",
            |b| b.access = AccessFlags::ON_DEMAND,
            WcReason::BadAccessFlags,
        ),
    ];
    for mw_type in [MwType::One, MwType::Two] {
        let table = table();
        let (_, lkey) = mr(&table, MR_ACCESS);
        let (_, key) = window(&table, mw_type);
        for (name, change, reason) in changes {
            let mut wanted = binding(key);
            change(&mut wanted);
            assert_eq!(table.bind(at(1), lkey, &wanted), fault(reason), "{name}");
        }
        let wanted = binding(key);
        if mw_type == MwType::One {
            let stale = MwBind {
                old_key: key ^ 1,
                ..wanted
            };
            assert_eq!(
                table.bind(at(1), lkey, &stale),
                fault(WcReason::NoSuchKey),
                "old key"
            );
        }
        let other_pd = KeyUser {
            pdn: Pdn::new(8),
            qpn: Qpn::new(1),
        };
        assert_eq!(
            table.bind(other_pd, lkey, &wanted),
            fault(WcReason::OtherPd),
            "PD"
        );
        for lkey in [lkey ^ 1, 0, !0, key] {
            assert_eq!(
                table.bind(at(1), lkey, &wanted),
                fault(WcReason::NoSuchKey),
                "MR's key"
            );
        }
        assert!(table.bind(at(1), lkey, &wanted).is_ok(), "nothing changed");
    }
    // A binding of length 0 does not unbind a type 2 window.
    let table = table();
    let (_, key) = window(&table, MwType::Two);
    let none = MwBind {
        len: 0,
        ..binding(key)
    };
    assert_eq!(table.bind(at(1), 0, &none), fault(WcReason::UnsuitableKey));
}

// abi
#[test]
fn access_flags_of_the_mr() {
    let atomic = AccessFlags::REMOTE_ATOMIC;
    let bind = AccessFlags::MW_BIND;
    for (mr_access, access, admitted) in [
        (AccessFlags::LOCAL_WRITE, WRITE, false),
        (bind, WRITE, false),
        (bind, atomic, false),
        // A window may grant peers what the MR's own key does not.
        (bind, READ, true),
        (bind, AccessFlags::NONE, true),
        (MR_ACCESS, WRITE | READ | atomic, true),
        // Local flags in a binding are ignored.
        (MR_ACCESS, WRITE | AccessFlags::LOCAL_WRITE, true),
        (MR_ACCESS | AccessFlags::ZERO_BASED, READ, false),
    ] {
        let table = table();
        let (_, lkey) = mr(&table, mr_access);
        let (_, key) = window(&table, MwType::One);
        let wanted = MwBind {
            access,
            ..binding(key)
        };
        let bound = table.bind(at(1), lkey, &wanted).is_ok();
        assert_eq!(bound, admitted, "{access:?} of {mr_access:?}");
    }
}

// abi: R-412
#[test]
fn an_mr_with_windows_stays() {
    let table = table();
    let (number, lkey) = mr(&table, MR_ACCESS);
    let (mwn, key) = window(&table, MwType::Two);
    table.bind(at(1), lkey, &binding(key)).unwrap();
    assert_eq!(errno(table.remove(number)).err(), Some(Errno::Ebusy));
    assert!(opens(&table, next(key), at(1), BASE + 0x1000, 1));
    table.invalidate(next(key), at(1)).unwrap();
    let mr = table.remove(number).unwrap();
    let again = table.bind(at(1), lkey, &binding(next(key)));
    assert_eq!(again, fault(WcReason::NoSuchKey), "the MR is gone");
    table.release(number, mr);
    assert_eq!(errno(table.remove(number)).err(), Some(Errno::Einval));
    let window = table.windows().remove(mwn).unwrap();
    assert_eq!(table.windows().release(&window), None);
}

// abi
#[test]
fn a_window_that_is_gone_is_unbound_and_its_key_does_not_return() {
    let table = MrTable::new(&Secret::new(None), &unlimited(), 4, 1, 100);
    let (number, lkey) = mr(&table, MR_ACCESS);
    let (mwn, key) = window(&table, MwType::Two);
    assert_eq!(
        errno(table.windows().insert(pd(PDN), MwType::One)).err(),
        Some(Errno::Enomem)
    );
    // The guest chooses the variant of the window's new key.
    let chosen = MwBind {
        new_key: key ^ 0x80,
        ..binding(key)
    };
    table.bind(at(3), lkey, &chosen).unwrap();
    let gone = table.windows().remove(mwn).unwrap();
    assert!(!opens(&table, chosen.new_key, at(3), chosen.addr, 1));
    assert_eq!(table.windows().release(&gone), Some(Qpn::new(3)));
    assert!(table.windows().remove(mwn).is_none());
    let (again, other) = window(&table, MwType::Two);
    assert_eq!(again, mwn);
    assert_ne!(other, chosen.new_key);
    assert!(table.remove(number).is_ok(), "nothing is bound to it");
}

// abi: R-404
#[test]
fn unbinding_waits_for_who_uses_the_memory() {
    let table = table();
    let (_, lkey) = mr(&table, MR_ACCESS);
    let (_, key) = window(&table, MwType::One);
    let first = binding(key);
    table.bind(at(1), lkey, &first).unwrap();
    let open = |key| Keys::new(&table).region_remote(key, at(1), first.addr, 1, WRITE);
    let region = open(first.new_key).unwrap();
    let released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while open(first.new_key).is_ok() {
                std::thread::yield_now();
            }
            released.store(true, Ordering::SeqCst);
            drop(region);
        });
        let second = binding(first.new_key);
        table.bind(at(1), lkey, &second).unwrap();
        assert!(released.load(Ordering::SeqCst));
    });
}

/// Operations on windows.
#[derive(Clone, Debug)]
enum Step {
    Alloc(bool),
    Dealloc(usize),
    Bind {
        window: usize,
        mr: usize,
        qpn: u32,
        len: u64,
    },
    Invalidate {
        window: usize,
        qpn: u32,
    },
    Dereg(usize),
    DestroyQp(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<bool>().prop_map(Step::Alloc),
        (0..4usize).prop_map(Step::Dealloc),
        (0..4usize, 0..2usize, 1..3u32, 0..3u64).prop_map(|(window, mr, qpn, len)| Step::Bind {
            window,
            mr,
            qpn,
            len
        }),
        (0..4usize, 1..3u32).prop_map(|(window, qpn)| Step::Invalidate { window, qpn }),
        (0..2usize).prop_map(Step::Dereg),
        (1..3u32).prop_map(Step::DestroyQp),
    ]
}

/// The expected state of a window.
#[derive(Clone, Debug)]
struct Model {
    key: u32,
    is_two: bool,
    /// Number of the MR, and the QP that bound the window.
    bound: Option<(MrNumber, u32)>,
}

proptest! {
    #[test]
    fn any_order_keeps_the_rules(steps in prop::collection::vec(step(), 1..60)) {
        let table = table();
        let mut mrs = [mr(&table, MR_ACCESS), mr(&table, MR_ACCESS)];
        let mut windows: BTreeMap<MwNumber, Model> = BTreeMap::new();
        let nth = |windows: &BTreeMap<MwNumber, Model>, n| windows.keys().nth(n).copied();
        for step in steps {
            match step {
                Step::Alloc(is_two) => {
                    let mw_type = if is_two { MwType::Two } else { MwType::One };
                    let new = table.windows().insert(pd(PDN), mw_type);
                    prop_assert_eq!(new.is_ok(), windows.len() < 4);
                    if let Ok((number, key)) = new {
                        windows.insert(number, Model { key, is_two, bound: None });
                    }
                }
                Step::Dealloc(n) => if let Some(number) = nth(&windows, n) {
                    let model = windows.remove(&number).unwrap();
                    let gone = table.windows().remove(number).unwrap();
                    let qpn = model.bound.filter(|_| model.is_two).map(|(_, qpn)| qpn);
                    // abi: R-411
                    prop_assert_eq!(table.windows().release(&gone), qpn.map(Qpn::new));
                },
                Step::Bind { window, mr, qpn, len } => if let Some(number) = nth(&windows, window) {
                    let model = windows.get_mut(&number).unwrap();
                    let wanted = MwBind { len, ..binding(model.key) };
                    let admitted = !model.is_two || model.bound.is_none() && len > 0;
                    let bound = table.bind(at(qpn), mrs[mr].1, &wanted);
                    // abi
                    prop_assert_eq!(bound.is_ok(), admitted);
                    if admitted {
                        model.key = wanted.new_key;
                        model.bound = (len > 0).then_some((mrs[mr].0, qpn));
                    }
                },
                Step::Invalidate { window, qpn } => if let Some(number) = nth(&windows, window) {
                    let model = windows.get_mut(&number).unwrap();
                    let admitted = model.is_two && model.bound.is_some_and(|(_, at)| at == qpn);
                    // abi: R-409
                    prop_assert_eq!(table.invalidate(model.key, at(qpn)).is_ok(), admitted);
                    if admitted {
                        model.bound = None;
                    }
                },
                Step::Dereg(n) => {
                    let number = mrs[n].0;
                    let uses = |model: &Model| model.bound.is_some_and(|(mr, _)| mr == number);
                    let gone = table.remove(number);
                    prop_assert_eq!(gone.is_ok(), !windows.values().any(uses));
                    if let Ok(gone) = gone {
                        table.release(number, gone);
                        mrs[n] = mr(&table, MR_ACCESS);
                    }
                }
                Step::DestroyQp(qpn) => for (number, model) in &mut windows {
                    // abi: R-410
                    table.windows().unbind_for(*number, Qpn::new(qpn));
                    if model.is_two && model.bound.is_some_and(|(_, at)| at == qpn) {
                        model.bound = None;
                    }
                },
            }
            for model in windows.values() {
                for qpn in 1..3 {
                    let expected = model.bound.is_some_and(|(_, at)| !model.is_two || at == qpn);
                    // abi
                    prop_assert_eq!(opens(&table, model.key, at(qpn), BASE + 0x1000, 1), expected);
                }
            }
        }
    }
}
