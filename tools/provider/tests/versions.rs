// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! All pairs of provider and module versions: a pair works, or an error message says which side is
//! older.

use virtio_rdma_abi::uverbs::AllocContextReq;
use virtio_rdma_abi::uverbs::AllocContextResp;
use virtio_rdma_abi::uverbs::ContextAttributes;
use virtio_rdma_abi::versions::Versions;
use virtio_rdma_abi::versions::UNSTATED;
use virtio_rdma_provider::negotiation::negotiate;
use virtio_rdma_provider::negotiation::Refusal;
use virtio_rdma_provider::negotiation::SPOKEN;

/// Bytes of a request for a context in version 6.
const SIZE_OF_6: usize = 72;

/// Versions that are tried on both sides.
const TRIED: std::ops::RangeInclusive<u32> = 6..=10;

/// A kernel module, as the provider sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Module {
    /// A module of version 6, which does not know ranges of versions.
    Six,
    /// A module that knows ranges of versions.
    Ranges(Versions),
}

impl Module {
    /// The version in sysfs.
    fn stated(&self) -> u32 {
        match self {
            Self::Six => UNSTATED,
            Self::Ranges(spoken) => spoken.oldest,
        }
    }

    /// Whether the module supports a version.
    fn speaks(&self, version: u32) -> bool {
        match self {
            Self::Six => version == UNSTATED,
            Self::Ranges(spoken) => spoken.contains(version),
        }
    }

    /// The module's response to a request.
    fn answer(&self, request: &AllocContextReq) -> Result<AllocContextResp, i32> {
        let bytes = request.to_bytes();
        let version = match self {
            Self::Six if bytes[SIZE_OF_6..].iter().any(|&byte| byte != 0) => {
                return Err(libc::EOPNOTSUPP)
            }
            Self::Six => 0,
            Self::Ranges(spoken) => match spoken.agree(&request.versions) {
                Ok(_) if request.versions == Versions::default() => 0,
                Ok(version) => version,
                Err(_) => return Err(libc::ENOPROTOOPT),
            },
        };
        Ok(AllocContextResp {
            version,
            max_cq_slots: 16,
            ..AllocContextResp::default()
        })
    }
}

fn ranges() -> impl Iterator<Item = Versions> {
    TRIED.flat_map(|oldest| (oldest..=*TRIED.end()).map(move |newest| Versions { oldest, newest }))
}

fn modules() -> impl Iterator<Item = Module> {
    ranges().map(Module::Ranges).chain([Module::Six])
}

// abi: R-937, R-1126, R-1130
#[test]
fn each_pair_works_or_says_which_side_is_older() {
    for (provider, module) in
        ranges().flat_map(|range| modules().map(move |module| (range, module)))
    {
        let mut asked = 0;
        let outcome = negotiate(
            provider,
            module.stated(),
            AllocContextReq::default(),
            |request| {
                asked += 1;
                module.answer(request)
            },
        );
        let newest_of_both = TRIED
            .rev()
            .find(|&version| provider.contains(version) && module.speaks(version));
        let pair = format!("{provider:?}, {module:?}: {outcome:?}");
        match newest_of_both {
            Some(newest) => {
                let response = outcome.expect(&pair);
                let stated = if module == Module::Six { 0 } else { newest };
                assert_eq!(response.version, stated, "{pair}");
                assert_eq!(response.max_cq_slots, 16, "{pair}");
                assert!(asked <= 2, "{pair}");
            }
            None => {
                let refusal = outcome.expect_err(&pair);
                assert_eq!(refusal.number(), libc::EPROTONOSUPPORT, "{pair}");
                assert!(refusal.needs_words(), "{pair}");
                let words = refusal.to_string();
                let old = match module.stated() > provider.newest {
                    true => "update the provider",
                    false => "update the kernel module",
                };
                assert!(words.contains(old), "{pair}: {words}");
                assert_eq!(words.lines().count(), 1, "{words}");
            }
        }
    }
}

/// A module before version 6 has other structures: it gets no request.
// abi: R-937
#[test]
fn a_module_of_before_the_ranges_is_refused() {
    for module in 0..UNSTATED {
        let outcome = negotiate(SPOKEN, module, AllocContextReq::default(), |_| {
            panic!("it is asked")
        });
        let refusal = outcome.expect_err("it is served");
        assert_eq!(refusal.number(), libc::EPROTONOSUPPORT);
        assert!(refusal.to_string().contains("update the kernel module"));
    }
}

/// A module of version 6 gets the request without versions, and other errors are passed on.
// abi: R-1130
#[test]
fn a_module_of_version_6_is_asked_without_versions() {
    let request = AllocContextReq {
        attributes: ContextAttributes::PEER,
        peer_id: 5,
        ..AllocContextReq::default()
    };
    let mut seen = Vec::new();
    let outcome = negotiate(SPOKEN, UNSTATED, request, |request| {
        seen.push(*request);
        Module::Six.answer(request)
    });
    assert_eq!(outcome.map(|response| response.version), Ok(0));
    let stating = AllocContextReq {
        versions: SPOKEN,
        ..request
    };
    assert_eq!(seen, [stating, request]);

    for number in [libc::ENOMEM, libc::EINVAL, libc::EPROTONOSUPPORT] {
        let outcome = negotiate(SPOKEN, UNSTATED, request, |_| Err(number));
        assert_eq!(outcome, Err(Refusal::Error(number)));
    }
    // A module of version 6 has no exporters.
    let outcome = negotiate(SPOKEN, UNSTATED, request, |_| Err(libc::EOPNOTSUPP));
    assert_eq!(outcome, Err(Refusal::Error(libc::EOPNOTSUPP)));
    // A later module knows ranges, so it gets no second request.
    let mut asked = 0;
    let later = Versions {
        oldest: UNSTATED + 1,
        newest: UNSTATED + 1,
    };
    let outcome = negotiate(later, later.oldest, request, |_| {
        asked += 1;
        Err(libc::EOPNOTSUPP)
    });
    assert_eq!(outcome, Err(Refusal::Error(libc::EOPNOTSUPP)));
    assert_eq!(asked, 1);
}

/// The module's version is not trusted.
// abi: R-937
#[test]
fn a_version_that_was_not_offered_is_refused() {
    for version in [0, SPOKEN.oldest - 1, SPOKEN.newest + 1, u32::MAX] {
        let response = AllocContextResp {
            version,
            ..AllocContextResp::default()
        };
        let outcome = negotiate(SPOKEN, UNSTATED, AllocContextReq::default(), |_| {
            Ok(response)
        });
        let refusal = outcome.expect_err("it is taken");
        assert_eq!(refusal.number(), libc::EPROTO);
        assert!(refusal.to_string().contains(&version.to_string()));
    }
}
