// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Negotiation of versions, and a check that the structures between module and provider only grow.

use std::fmt::Debug;

use virtio_rdma_abi::config::RateLimitConfig;
use virtio_rdma_abi::uverbs::*;
use virtio_rdma_abi::versions::{
    received, Disagreement, Extensible, Misfit, Versions, RELEASE, UNSTATED,
};
use virtio_rdma_abi::wire::Field;
use virtio_rdma_abi::wqe::AddressVector;

use super::check;

fn range(oldest: u32, newest: u32) -> Versions {
    Versions { oldest, newest }
}

// abi: R-931, R-1125
#[test]
fn exact_bytes_and_versions() {
    check(range(6, 0x0102), "06000000 02010000");
    assert_eq!(Versions::SPOKEN, range(6, 7));
    assert_eq!(UNSTATED, 6);
}

// abi: R-1126, R-1127
#[test]
fn the_newest_version_of_both_is_agreed_on() {
    let tried = 1..=6u32;
    let ranges = || {
        tried
            .clone()
            .flat_map(|oldest| (oldest..=6).map(move |newest| range(oldest, newest)))
    };
    for (module, provider) in ranges().flat_map(|one| ranges().map(move |other| (one, other))) {
        let both = tried
            .clone()
            .rev()
            .find(|&version| module.contains(version) && provider.contains(version));
        let expected = both.ok_or(match module.newest < provider.oldest {
            true => Disagreement::OldModule,
            false => Disagreement::OldProvider,
        });
        assert_eq!(module.agree(&provider), expected, "{module:?} {provider:?}");
    }
}

// abi: R-1126, R-1127
#[test]
fn a_provider_that_states_nothing_speaks_version_6() {
    let unstated = Versions::default();
    assert_eq!(range(6, 7).agree(&unstated), Ok(6));
    assert_eq!(range(7, 9).agree(&unstated), Err(Disagreement::OldProvider));
    assert_eq!(unstated.or_unstated(), range(6, 6));
    assert_eq!(range(7, 8).or_unstated(), range(7, 8));
    for nonsense in [range(0, 7), range(7, 6), range(u32::MAX, 0), range(1, 0)] {
        let outcome = range(6, 7).agree(&nonsense);
        assert_eq!(outcome, Err(Disagreement::NoRange), "{nonsense:?}");
    }
}

/// `length` bytes, all nonzero.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 255) as u8 + 1).collect()
}

/// Checks that a structure can be received in any permitted length.
fn is_read_by_length<T: Extensible + PartialEq + Debug + Copy>() {
    for length in 0..T::SIZE + 16 {
        let mut given = bytes(length);
        let outcome = received::<T>(&given);
        if length < T::MIN_SIZE {
            assert_eq!(outcome, Err(Misfit::TooShort), "{length}");
            continue;
        }
        if length > T::SIZE {
            assert_eq!(outcome, Err(Misfit::Unknown), "{length}");
            // A single nonzero byte after the known fields is refused, at any position.
            given[T::SIZE..].fill(0);
            given[length - 1] = 1;
            assert_eq!(received::<T>(&given), Err(Misfit::Unknown), "{length}");
            given[length - 1] = 0;
        }
        // A shorter structure means the same as one that is padded with zeroes.
        let mut whole = given.clone();
        whole.resize(T::SIZE.max(length), 0);
        let value = received::<T>(&given).expect("it is read");
        assert_eq!(received::<T>(&whole), Ok(value), "{length}");
        assert_eq!(value.encode().as_ref(), &whole[..T::SIZE], "{length}");
    }
}

/// A structure in its first version: its size, and the offset and size of each field.
type Frozen<'a> = (usize, &'a [(usize, usize)]);

/// Checks that the structure begins with the fields of its first version, at the same offsets. So
/// an old request, padded with zeroes, is a valid new request.
fn begins_as<T: Extensible + PartialEq + Debug + Copy>(fields: &[Field], (size, old): Frozen<'_>) {
    let now: Vec<_> = fields
        .iter()
        .map(|field| (field.offset, field.size))
        .collect();
    assert_eq!(&now[..old.len()], old);
    assert_eq!(old.last().map(|(offset, size)| offset + size), Some(size));
    assert!(T::MIN_SIZE <= size, "what was whole is whole still");
    assert!(size <= T::SIZE);
    let old_request = bytes(size);
    let value = received::<T>(&old_request).expect("it is read");
    let encoded = value.encode();
    assert_eq!(encoded.as_ref()[..size], old_request);
    assert!(encoded.as_ref()[size..].iter().all(|&byte| byte == 0));
    is_read_by_length::<T>();
}

/// Never change a line of this table: it describes version 6. Add lines for new structures only.
// abi, R-1129, R-1131
#[test]
fn structures_only_grow() {
    macro_rules! frozen {
        ($($name:ident $size:literal [$($offset:literal + $len:literal)*],)*) => {
            $(begins_as::<$name>($name::FIELDS, ($size, &[$(($offset, $len)),*]));)*
        };
    }
    frozen! {
        AllocContextReq 72 [0 + 4 4 + 4 8 + 64],
        AllocContextResp 48 [0 + 4 4 + 4 8 + 8 16 + 4 20 + 4 24 + 16 40 + 4 44 + 4],
        CreateAhResp 48 [0 + 43 43 + 5],
        CreateCqReq 16 [0 + 16],
        CreateCqResp 24 [0 + 4 4 + 4 8 + 16],
        CreateQpReq 32 [0 + 16 16 + 16],
        CreateQpResp 32 [0 + 16 16 + 16],
        CreateSrqReq 16 [0 + 16],
        CreateSrqResp 24 [0 + 4 4 + 4 8 + 16],
        ModifyQpReq 8 [0 + 4 4 + 2 6 + 2],
        ModifySrqReq 24 [0 + 16 16 + 8],
        ResizeCqReq 16 [0 + 16],
        ResizeCqResp 24 [0 + 4 4 + 4 8 + 16],
    }
}

/// A structure inside of another structure must not grow: the fields after the inner structure
/// would move.
// abi: R-1131
#[test]
fn structures_inside_of_others_stay() {
    let fields = |fields: &[Field]| -> Vec<_> {
        let pairs = fields.iter().map(|field| (field.offset, field.size));
        pairs.collect()
    };
    assert_eq!(fields(UserRing::FIELDS), [(0, 8), (8, 4), (12, 1), (13, 3)]);
    assert_eq!(fields(RingMapping::FIELDS), [(0, 8), (8, 8)]);
    assert_eq!(fields(Versions::FIELDS), [(0, 4), (4, 4)]);
    let rates = fields(RateLimitConfig::FIELDS);
    assert_eq!(rates, [(0, 4), (4, 4), (8, 4), (12, 4)]);
    assert_eq!(AddressVector::SIZE, 43);
}

/// The version has two homes, since the kernel does not compile with cargo.
#[test]
fn the_release_is_that_of_the_packages() {
    let [major, minor, patch] = RELEASE;
    assert_eq!(
        format!("{major}.{minor}.{patch}"),
        env!("CARGO_PKG_VERSION")
    );
}
