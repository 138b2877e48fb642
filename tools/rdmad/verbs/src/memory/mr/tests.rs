// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! MRs and keys: which accesses are granted, and which are refused.

use virtio_rdma_abi::ctrl::Errno;
use virtio_rdma_abi::number::{MrNumber, Pdn, Qpn};

use super::*;
use crate::error::errno;
use crate::memory::{unlimited, Keys};

const PDN: Pdn = Pdn::new(7);
const OTHER: Pdn = Pdn::new(8);

/// The result of a check that fails for `reason`.
fn fault<T>(reason: WcReason) -> KeyResult<T> {
    Err(KeyFault(reason))
}

/// The user of a key: a QP in PD `pdn`.
fn at(pdn: Pdn) -> KeyUser {
    KeyUser {
        pdn,
        qpn: Qpn::new(9),
    }
}

fn all_memory(table: &MrTable, pdn: Pdn, access: AccessFlags) -> (MrNumber, u32) {
    let charge = table.charge(0).unwrap();
    table
        .insert(PdUse::alone(pdn), access, 0, PageMap::everything(), charge)
        .unwrap()
}

// abi
#[test]
fn a_number_never_has_the_same_key_twice_in_a_row() {
    // The step from one variant to the next is random, with 255 possible values. In 5,000 draws
    // each value occurs.
    let variants = Variants::<MrNumber>::new(&Secret::new(Some(1)), 3..5);
    let mut last = 0;
    for _ in 0..5000 {
        let key = variants.key(MrNumber::new(4));
        assert_eq!(number_of::<MrNumber>(key).get(), 4);
        assert_ne!(key, last);
        last = key;
    }
    // A variant that the guest chose counts as the number's last one, so the next key has another
    // variant. Without this rule some of 5,000 random draws would repeat the chosen variant.
    for chosen in (0..=255).cycle().take(5000) {
        variants.note((3 << VARIANT_BITS) | chosen);
        assert_ne!(variants.key(MrNumber::new(3)), (3 << VARIANT_BITS) | chosen);
    }
}

#[test]
fn a_key_opens_one_mr_only() {
    let table = MrTable::new(&Secret::new(None), &unlimited(), 1, 1, 10);
    let (number, key) = all_memory(&table, PDN, AccessFlags::LOCAL_WRITE);
    assert!(Keys::new(&table)
        .check(key, at(PDN), 0x1000, 8, AccessFlags::LOCAL_WRITE)
        .is_ok());
    assert!(Keys::new(&table)
        .check(key, at(PDN), 0x1000, 8, AccessFlags::NONE)
        .is_ok());
    // abi: R-280
    assert!(
        Keys::new(&table)
            .check(key, at(OTHER), 0x1000, 8, AccessFlags::NONE)
            .is_err(),
        "PD"
    );
    // abi: R-280
    assert!(
        Keys::new(&table)
            .check(key, at(PDN), 0x1000, 8, AccessFlags::REMOTE_READ)
            .is_err(),
        "access flag"
    );
    assert!(
        Keys::new(&table)
            .check(key ^ 1, at(PDN), 0x1000, 8, AccessFlags::NONE)
            .is_err(),
        "variant"
    );
    assert!(
        Keys::new(&table)
            .check(0, at(PDN), 0x1000, 8, AccessFlags::NONE)
            .is_err(),
        "number"
    );
    assert!(
        Keys::new(&table)
            .check(key, at(PDN), u64::MAX, 2, AccessFlags::NONE)
            .is_err(),
        "range"
    );
    let mr = table.remove(number).unwrap();
    assert!(Keys::new(&table)
        .region(key, at(PDN), 0x1000, 8, AccessFlags::NONE)
        .is_err());
    table.release(number, mr);
    let (again, other) = all_memory(&table, PDN, AccessFlags::LOCAL_WRITE);
    assert_eq!(again, number);
    // abi: R-279
    assert_ne!(other, key);
    assert!(
        Keys::new(&table)
            .check(key, at(PDN), 0x1000, 8, AccessFlags::NONE)
            .is_err(),
        "old key"
    );
}

// abi: R-283
#[test]
fn pages_are_counted() {
    let table = MrTable::new(&Secret::new(None), &unlimited(), 4, 1, 10);
    let charge = table.charge(8).unwrap();
    assert_eq!(errno(table.charge(3)).err(), Some(Errno::Enomem));
    let (number, _) = table
        .insert(
            PdUse::alone(Pdn::new(1)),
            AccessFlags::NONE,
            0,
            PageMap::everything(),
            charge,
        )
        .unwrap();
    assert_eq!(errno(table.charge(u64::MAX)).err(), Some(Errno::Enomem));
    drop(table.charge(2).unwrap());
    let mr = table.remove(number).unwrap();
    table.release(number, mr);
    assert!(table.charge(10).is_ok());
}

/// A replaced MR gets a cache entry for its new memory.
#[test]
fn an_mr_that_was_replaced_has_an_entry_again() {
    let table = MrTable::new(&Secret::new(None), &unlimited(), 1, 1, 10);
    let (number, key) = all_memory(&table, PDN, AccessFlags::LOCAL_WRITE);
    assert_eq!(table.flat(key).map(|flat| flat.pdn), Some(PDN));
    let (_, region) = table.current(number).unwrap();
    let other = region.with_access(AccessFlags::NONE).unwrap();
    table
        .replace(number, PdUse::alone(OTHER), other, None)
        .unwrap();
    assert_eq!(table.flat(key), None, "workers may still use the old one");
    table.replaced(number);
    let flat = table.flat(key).unwrap();
    assert_eq!((flat.pdn, flat.access), (OTHER, AccessFlags::NONE));
}

fn fast(table: &MrTable, pdn: Pdn) -> (MrNumber, u32) {
    let charge = table.charge(4).unwrap();
    let pd = PdUse::alone(pdn);
    table.insert_fast(pd, 4, 1, charge).unwrap()
}

fn registration(number: MrNumber, key: u32) -> RegWr {
    RegWr {
        number,
        key,
        access: AccessFlags::LOCAL_WRITE,
        pages: Some(Mapped {
            base: 0,
            pages: Arc::new(PageMap::everything()),
        }),
    }
}

#[test]
fn fast_registration_and_invalidation() {
    let table = MrTable::new(&Secret::new(None), &unlimited(), 4, 1, 100);
    let (number, key) = fast(&table, PDN);
    let opens = |key| {
        Keys::new(&table)
            .check(key, at(PDN), 0x1000, 8, AccessFlags::NONE)
            .is_ok()
    };
    assert!(!opens(key), "free");
    // abi: R-356
    assert_eq!(
        table.invalidate(key, at(PDN)),
        fault(WcReason::KeyRevoked),
        "free"
    );
    let without = RegWr {
        pages: None,
        ..registration(number, key)
    };
    assert_eq!(
        table.register(PDN, without),
        fault(WcReason::BadPages),
        "no pages"
    );
    // abi: R-352
    assert_eq!(
        table.register(OTHER, registration(number, key)),
        fault(WcReason::OtherPd),
        "PD"
    );
    let other = registration(number, key + 0x100);
    // abi
    assert_eq!(
        table.register(PDN, other),
        fault(WcReason::KeyMismatch),
        "number in the key"
    );
    let beyond = registration(MrNumber::new(0xff_ffff), !0);
    // abi: R-336
    assert_eq!(
        table.register(PDN, beyond),
        fault(WcReason::NoSuchKey),
        "no such MR"
    );

    // abi: R-626
    assert_eq!(table.register(PDN, registration(number, key)), Ok(()));
    assert!(opens(key));
    let again = registration(number, key ^ 1);
    // abi: R-352
    assert_eq!(
        table.register(PDN, again),
        fault(WcReason::KeyInUse),
        "valid"
    );
    // abi: R-356
    assert_eq!(
        table.invalidate(key ^ 1, at(PDN)),
        fault(WcReason::NoSuchKey),
        "stale key"
    );
    assert_eq!(
        table.invalidate(key, at(OTHER)),
        fault(WcReason::OtherPd),
        "PD"
    );
    assert!(opens(key));
    // abi
    assert_eq!(table.invalidate(key, at(PDN)), Ok(()));
    // abi: R-334
    assert!(!opens(key));

    assert_eq!(
        table.register(PDN, registration(number, key ^ 0x5a)),
        Ok(())
    );
    assert!(opens(key ^ 0x5a) && !opens(key), "the key changed");
}

// abi
#[test]
fn only_mrs_made_for_it_are_registered_or_invalidated() {
    let table = MrTable::new(&Secret::new(None), &unlimited(), 4, 1, 100);
    let (number, key) = all_memory(&table, PDN, AccessFlags::LOCAL_WRITE);
    assert_eq!(
        table.invalidate(key, at(PDN)),
        fault(WcReason::UnsuitableKey)
    );
    assert_eq!(
        table.register(PDN, registration(number, key)),
        fault(WcReason::UnsuitableKey)
    );
    assert_eq!(
        errno(table.fast_limits(number)).map(|(most, _)| most),
        Err(Errno::Einval)
    );
    assert!(Keys::new(&table)
        .check(key, at(PDN), 0, 8, AccessFlags::NONE)
        .is_ok());
}

// abi: R-351
#[test]
fn mapped_pages_wait_for_the_registration() {
    let table = MrTable::new(&Secret::new(None), &unlimited(), 4, 1, 100);
    let (number, key) = fast(&table, PDN);
    let mapped = |base| Mapped {
        base,
        pages: Arc::new(PageMap::everything()),
    };
    let register = || {
        let from_map = RegWr {
            pages: None,
            ..registration(number, key)
        };
        table.register(PDN, from_map)
    };
    let opens = |addr| {
        Keys::new(&table)
            .check(key, at(PDN), addr, 1, AccessFlags::NONE)
            .is_ok()
    };
    table.map(number, mapped(0x2000)).unwrap();
    assert!(!opens(0x2000));
    register().unwrap();
    assert!(opens(0x2000) && !opens(0x1fff));
    table.map(number, mapped(0x1000)).unwrap();
    assert!(!opens(0x1000), "the registration stays");
    table.invalidate(key, at(PDN)).unwrap();
    register().unwrap();
    assert!(opens(0x1000));
    assert_eq!(table.fast_limits(number).map(|(most, _)| most), Ok(4));
}

// abi: R-361
#[test]
fn invalidation_waits_for_who_uses_the_memory() {
    use std::sync::atomic::AtomicBool;
    let table = MrTable::new(&Secret::new(None), &unlimited(), 4, 1, 100);
    let (number, key) = fast(&table, PDN);
    table.register(PDN, registration(number, key)).unwrap();
    let region = Keys::new(&table)
        .region(key, at(PDN), 0, 1, AccessFlags::NONE)
        .unwrap();
    let released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Keys::new(&table)
                .check(key, at(PDN), 0, 1, AccessFlags::NONE)
                .is_ok()
            {
                std::thread::yield_now();
            }
            released.store(true, Ordering::SeqCst);
            drop(region);
        });
        table.invalidate(key, at(PDN)).unwrap();
        assert!(released.load(Ordering::SeqCst));
    });
}
