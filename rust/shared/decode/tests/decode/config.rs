// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Configurations: which of them are refused, and which limits result from accepted configurations.

use std::ops::Range;

use virtio_rdma_abi::config::*;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_decode::config::{accesses, ConfigError, Limits, Machine};

const RING_ADDR: u64 = Feature::RingAddr.mask();
const SRQ: u64 = Feature::Srq.mask();
const RATE_LIMIT: u64 = Feature::RateLimit.mask();
const CQ_MODERATION: u64 = Feature::CqModeration.mask();
/// Enough CPUs for all event queues, and the smallest pages.
const MACHINE: Machine = Machine {
    cpus: 8,
    page_size: 4096,
};
const EVERY_FEATURE: u64 = Features::ALL.0;

/// The word in which the bits with these numbers are set.
fn bits(bits: &[u32]) -> u64 {
    bits.iter().fold(0, |word, bit| word | (1 << bit))
}

/// The parts of a configuration.
#[derive(Clone, Copy)]
pub struct Parts {
    config: Config,
    rings: OwnRingsConfig,
    srq: SrqConfig,
    rates: RateLimitConfig,
    moderation: CqModerationConfig,
}

/// A valid configuration for all features, with a different value in each field.
pub fn good() -> Parts {
    Parts {
        config: Config {
            phys_port_cnt: 1,
            page_size_cap: 4096,
            max_pd: 1,
            max_mr: 1,
            max_mr_size: 4096,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_sge_rd: 1,
            max_qp_rd_atom: 1,
            max_qp_init_rd_atom: 1,
            max_fast_reg_page_list_len: 1,
            max_qp: 10,
            max_qp_wr: 11,
            max_cq: 12,
            max_cqe: 13,
            ..Config::default()
        },
        rings: OwnRingsConfig {
            num_event_queues: 4,
            max_qp: 20,
            max_qp_wr: 21,
            max_cq: 22,
            max_cqe: 23,
            max_inline_data: 24,
            doorbell_pages: 1,
            doorbell_shift: 12,
            reserved: [0; 3],
        },
        srq: SrqConfig {
            max_srq: 30,
            max_srq_wr: 31,
            max_srq_sge: 32,
        },
        rates: RateLimitConfig {
            min_rate: 1,
            max_rate: 1,
            ..RateLimitConfig::default()
        },
        moderation: CqModerationConfig {
            max_count: 1,
            max_period: 1,
        },
    }
}

impl Parts {
    pub fn bytes(&self) -> [u8; CONFIG_SIZE] {
        let mut bytes = [0xa5; CONFIG_SIZE];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &self.config.to_bytes());
        put(OWN_RINGS_CONFIG_OFFSET, &self.rings.to_bytes());
        put(SRQ_CONFIG_OFFSET, &self.srq.to_bytes());
        put(RATE_LIMIT_CONFIG_OFFSET, &self.rates.to_bytes());
        put(CQ_MODERATION_CONFIG_OFFSET, &self.moderation.to_bytes());
        bytes
    }

    fn decode(&self, features: u64) -> Result<Limits, ConfigError> {
        Limits::decode(&self.bytes(), Features(features), MACHINE)
    }
}

/// The field because of which the configuration is refused; `None` if it is accepted.
fn refused(features: u64, spoil: impl FnOnce(&mut Parts)) -> Option<&'static str> {
    let mut parts = good();
    spoil(&mut parts);
    match parts.decode(features) {
        Err(ConfigError::Invalid(field)) => Some(field),
        Err(error) => panic!("{error:?}"),
        Ok(_) => None,
    }
}

// abi
#[test]
fn own_rings_bring_limits_of_their_own() {
    let limits = good().decode(EVERY_FEATURE).expect("a good configuration");
    let queues = limits.queues;
    assert_eq!((queues.max_qp, queues.max_qp_wr), (20, 21));
    assert_eq!((queues.max_cq, queues.max_cqe), (22, 23));
    assert_eq!(queues.max_inline_data, 24);
    assert_eq!(limits.srq, Some(good().srq));
    assert_eq!(limits.rate_limits, Some(good().rates));

    let limits = good().decode(0).expect("a good configuration");
    let queues = limits.queues;
    assert_eq!((queues.max_qp, queues.max_qp_wr), (10, 11));
    assert_eq!((queues.max_cq, queues.max_cqe), (12, 13));
    assert_eq!(queues.max_inline_data, 256);
    assert!(limits.own_rings.is_none() && limits.srq.is_none());
    assert_eq!(limits.rate_limits, None);
}

/// A feature is in use if it was negotiated together with the features that it needs.
// abi: R-10
#[test]
fn features_in_use() {
    let of = |features| {
        let limits = good().decode(features).expect("a good configuration");
        limits.features().0
    };
    assert_eq!(of(RING_ADDR | SRQ), RING_ADDR | SRQ);
    assert_eq!(of(RATE_LIMIT | SRQ), RATE_LIMIT);
}

/// Without own rings there are no SRQs, and no work requests that only processes post.
// abi: R-10
#[test]
fn features_need_each_other() {
    let of = |features| {
        let mut parts = good();
        parts.config.device_cap_flags = DeviceCaps::MEM_MGT_EXTENSIONS;
        let limits = parts.decode(features).expect("a good configuration");
        [
            limits.has(Feature::MemWindows),
            limits.has(Feature::AtomicWrite),
            limits.has(Feature::Flush),
            limits.has(Feature::ResizeCq),
            limits.srq.is_some(),
            limits.has_fast_registration(),
            limits.has(Feature::MrPages),
            limits.has(Feature::GidVlan),
            limits.has(Feature::Multicast),
            limits.has(Feature::Counters),
            limits.has(Feature::Peers),
            limits.rate_limits.is_some(),
        ]
    };
    assert_eq!(of(EVERY_FEATURE), [true; 12]);
    assert_eq!(of(RING_ADDR), [false; 12]);
    let [windows, writes, flushes, resize, srq, others @ ..] = of(EVERY_FEATURE & !RING_ADDR);
    assert_eq!([windows, writes, flushes, resize, srq], [false; 5]);
    assert_eq!(others, [true; 7]);
    for (index, feature) in [
        Feature::MemWindows,
        Feature::AtomicWrite,
        Feature::Flush,
        Feature::ResizeCq,
        Feature::Srq,
        Feature::RegPages,
        Feature::MrPages,
        Feature::GidVlan,
        Feature::Multicast,
        Feature::Counters,
        Feature::Peers,
        Feature::RateLimit,
    ]
    .into_iter()
    .enumerate()
    {
        let mut expected = [false; 12];
        expected[index] = true;
        assert_eq!(
            of(RING_ADDR | feature.mask()),
            expected,
            "feature {feature:?}"
        );
    }
    // The device's capability permits fast registration, but only the feature enables it.
    let limits = good().decode(EVERY_FEATURE).expect("a good configuration");
    assert!(!limits.has_fast_registration());
}

// abi, R-1250
#[test]
fn fields_of_the_rfc_are_in_range() {
    type Spoil = fn(&mut Config);
    let cases: [(&str, Spoil); 14] = [
        ("phys_port_cnt is not 1", |c| c.phys_port_cnt = 0),
        ("phys_port_cnt is not 1", |c| c.phys_port_cnt = 2),
        ("page_size_cap lacks 4096", |c| c.page_size_cap = !4096),
        ("max_pd", |c| c.max_pd = 0),
        ("max_mr", |c| c.max_mr = 0),
        ("max_mr_size", |c| c.max_mr_size = 0),
        ("max_mr_size", |c| c.max_mr_size = 4095),
        ("max_send_sge", |c| c.max_send_sge = 0),
        ("max_recv_sge", |c| c.max_recv_sge = 0),
        ("max_sge_rd", |c| c.max_sge_rd = 0),
        ("max_qp_rd_atom", |c| c.max_qp_rd_atom = 0),
        ("max_qp_init_rd_atom", |c| c.max_qp_init_rd_atom = 0),
        ("max_qp_wr", |c| c.max_qp_wr = 0),
        ("max_cqe", |c| c.max_cqe = 0),
    ];
    for (field, spoil) in cases {
        assert_eq!(refused(0, |parts| spoil(&mut parts.config)), Some(field));
    }
}

// abi
#[test]
fn queues_are_in_range_in_either_mode() {
    type Set = fn(&mut Parts, u32);
    let cases: [(&str, u32, u64, Set); 10] = [
        ("max_qp", 16384, 0, |p, n| p.config.max_qp = n),
        ("max_qp_wr", 32768, 0, |p, n| p.config.max_qp_wr = n),
        ("max_cqe", 4_194_304, 0, |p, n| p.config.max_cqe = n),
        ("max_qp", 16384, RING_ADDR, |p, n| p.rings.max_qp = n),
        ("max_cq", 16384, RING_ADDR, |p, n| p.rings.max_cq = n),
        ("max_qp_wr", 32768, RING_ADDR, |p, n| p.rings.max_qp_wr = n),
        ("max_cqe", 4_194_304, RING_ADDR, |p, n| {
            p.rings.max_cqe = n;
        }),
        ("max_srq", 16384, RING_ADDR | SRQ, |p, n| p.srq.max_srq = n),
        ("max_srq_wr", 32768, RING_ADDR | SRQ, |p, n| {
            p.srq.max_srq_wr = n;
        }),
        ("max_cq", 16384, 0, |p, n| {
            // More than 1,022 CQs leave no virtqueues for QPs, which is a different error.
            p.config.max_cq = if (1..=16384).contains(&n) { 1 } else { n };
        }),
    ];
    for (field, most, features, set) in cases {
        for (value, expected) in [
            (0, Some(field)),
            (1, None),
            (most, None),
            (most + 1, Some(field)),
            (u32::MAX, Some(field)),
        ] {
            let found = refused(features, |parts| set(parts, value));
            assert_eq!(found, expected, "{field} {value} {features:#x}");
        }
    }
}

// abi
#[test]
fn counts_of_features_are_not_zero() {
    let spoiled = refused(RING_ADDR, |parts| parts.rings.num_event_queues = 0);
    assert_eq!(spoiled, Some("num_event_queues"));
    let spoiled = refused(RING_ADDR, |parts| parts.rings.doorbell_pages = 0);
    assert_eq!(spoiled, Some("doorbell_pages"));
    let spoiled = refused(RING_ADDR | SRQ, |parts| parts.srq.max_srq_sge = 0);
    assert_eq!(spoiled, Some("max_srq_sge"));
    for (min_rate, max_rate, is_good) in [(1, 1, true), (0, 1, false), (2, 1, false), (0, 0, false)]
    {
        let found = refused(RATE_LIMIT, |parts| {
            parts.rates.min_rate = min_rate;
            parts.rates.max_rate = max_rate;
        });
        let expected = (!is_good).then_some("min_rate, max_rate");
        assert_eq!(found, expected, "{min_rate} {max_rate}");
    }
}

/// Only feature bits tell what a device can do. Vendor, part and version numbers are ignored.
#[test]
fn no_number_of_the_vendor_decides() {
    for features in [0, RING_ADDR, RATE_LIMIT] {
        for number in [0, 1, u32::MAX] {
            let spoil = |parts: &mut Parts| {
                parts.config.hw_ver = number;
                parts.config.vendor_id = number;
                parts.config.vendor_part_id = number;
            };
            assert_eq!(refused(features, spoil), None, "{features:#x} {number}");
        }
    }
}

/// Fields of features that were not negotiated may have any value.
// abi: R-91
#[test]
fn fields_without_their_feature_are_not_read() {
    let spoil = |parts: &mut Parts| {
        parts.rings = OwnRingsConfig::default();
        parts.srq = SrqConfig::default();
        parts.rates = RateLimitConfig::default();
        parts.moderation = CqModerationConfig::default();
    };
    assert_eq!(refused(0, spoil), None);
    // Without own rings, the SRQ feature has no effect.
    assert_eq!(refused(SRQ, spoil), None);
    assert_eq!(refused(RING_ADDR, spoil), Some("num_event_queues"));
    assert_eq!(refused(RATE_LIMIT, spoil), Some("min_rate, max_rate"));
    assert_eq!(refused(CQ_MODERATION, spoil), None);
}

// abi: R-1221, R-1222
#[test]
fn moderation_has_limits() {
    let features = RING_ADDR | CQ_MODERATION;
    let count = refused(features, |parts| parts.moderation.max_count = 0);
    let period = refused(features, |parts| parts.moderation.max_period = 0);
    assert_eq!([count, period], [Some("max_count, max_period"); 2]);
    let moderation = good().decode(features).expect("a good one").cq_moderation;
    assert_eq!(moderation, Some(good().moderation));
    assert_eq!(
        good().decode(RING_ADDR).expect("a good one").cq_moderation,
        None
    );
}

// abi: R-549
#[test]
fn event_queues_are_no_more_than_processors() {
    let bytes = good().bytes();
    for (cpus, expected) in [(0, 1), (1, 1), (3, 3), (4, 4), (u32::MAX, 4)] {
        let machine = Machine { cpus, ..MACHINE };
        let limits = Limits::decode(&bytes, Features(RING_ADDR), machine).expect("a good one");
        let queues = limits.own_rings.map(|own| own.num_event_queues);
        assert_eq!(queues, Some(expected), "{cpus} processors");
    }
}

/// A process maps whole pages of its machine. A page must not hold doorbells of other processes.
// abi: R-1103, R-1104, R-1105
#[test]
fn doorbell_pages_are_no_closer_than_pages() {
    let with = |doorbell_shift, page_size| {
        let mut parts = good();
        parts.rings.doorbell_shift = doorbell_shift;
        let machine = Machine {
            page_size,
            ..MACHINE
        };
        let limits = Limits::decode(&parts.bytes(), Features(RING_ADDR), machine)?;
        Ok(limits.own_rings.map(|own| own.doorbell_shift))
    };
    for (shift, page_size) in [(12, 4096), (16, 4096), (30, 4096), (16, 65536), (17, 65536)] {
        assert_eq!(with(shift, page_size), Ok(Some(shift)));
    }
    for (shift, page_size) in [(12, 16384), (13, 16384), (12, 65536), (15, 65536)] {
        let narrow = ConfigError::NarrowDoorbells(1 << shift);
        assert_eq!(with(shift, page_size), Err(narrow));
    }
    for shift in [0, 11, 31, 64, u8::MAX] {
        assert_eq!(
            with(shift, 4096),
            Err(ConfigError::Invalid("doorbell_shift"))
        );
    }
}

/// The limit of 1,024 virtqueues includes the control queue, one for each CQ and two for each QP.
// abi: R-28
#[test]
fn virtqueues_are_shared_by_cqs_and_qps() {
    let with = |max_cq, max_qp| {
        let mut parts = good();
        parts.config.max_cq = max_cq;
        parts.config.max_qp = max_qp;
        parts.decode(0).map(|limits| limits.queues.max_qp)
    };
    assert_eq!(with(1, 16384), Ok(511));
    assert_eq!(with(2, 16384), Ok(510));
    assert_eq!(with(1, 511), Ok(511));
    assert_eq!(with(1, 1), Ok(1));
    assert_eq!(with(1021, 5), Ok(1));
    for max_cq in [1022, 1023, 1024, 16384] {
        assert_eq!(with(max_cq, 5), Err(ConfigError::TooManyCqs(max_cq)));
    }
}

/// Fields are read by accesses of their width, 64-bit fields as two halves, and unaligned fields of
/// the RFC byte by byte. Fields of features that were not negotiated are not read.
// abi: R-91, R-1106, R-1108
#[test]
fn fields_are_accessed_by_their_width() {
    let widths = |features, part: Range<usize>| {
        let accesses = accesses(Features(features)).filter(|at| part.contains(&at.start));
        let accesses: Vec<_> = accesses.collect();
        for access in &accesses {
            assert_eq!(access.start % access.len(), 0, "{access:?}");
        }
        for (one, next) in accesses.iter().zip(accesses.iter().skip(1)) {
            assert_eq!(one.end, next.start, "in order, without a gap");
        }
        let ends = accesses.first().zip(accesses.last());
        let whole = ends.map(|(first, last)| first.start..last.end);
        let widths: Vec<_> = accesses.iter().map(Range::len).collect();
        (whole, widths)
    };
    // All fields up to `atomic_cap` are aligned. Later fields are read byte by byte.
    let rfc = [[4; 24].as_slice(), &[1; 32]].concat();
    for features in [0, EVERY_FEATURE] {
        assert_eq!(widths(features, 0..128), (Some(0..128), rfc.clone()));
    }
    // Seven le32, then `doorbell_shift` and reserved bytes.
    let own = [[4; 7].as_slice(), &[1; 4]].concat();
    assert_eq!(widths(RING_ADDR, 128..640), (Some(128..160), own));
    let srq = RING_ADDR | SRQ;
    assert_eq!(widths(srq, 160..640), (Some(160..172), vec![4; 3]));
    assert_eq!(widths(RATE_LIMIT, 128..640), (Some(176..192), vec![4; 4]));
    // Without own rings, the SRQ feature has no effect.
    for features in [0, SRQ] {
        assert_eq!(widths(features, 128..640), (None, vec![]));
    }
}

/// A capability whose feature was not negotiated has no verb. Some capabilities never have a verb.
#[test]
fn capabilities_need_verbs() {
    let always = bits(&[1, 2, 5, 6, 11, 12]);
    let of = |features| {
        let mut parts = good();
        // abi: R-92
        parts.config.device_cap_flags = DeviceCaps(u64::MAX);
        let limits = parts.decode(features).expect("a good configuration");
        (limits.capabilities().0, limits.blocks_loopback())
    };
    let cases = [
        // abi
        (0, 0, false),
        (RING_ADDR, 0, false),
        (Features::of(&[Feature::RegPages]).0, bits(&[21]), false),
        // abi: R-416
        (Features::of(&[Feature::MemWindows]).0, 0, false),
        // abi: R-763
        (
            Features::of(&[Feature::AtomicWrite, Feature::Flush]).0,
            0,
            false,
        ),
        (
            Features::of(&[Feature::RingAddr, Feature::MemWindows]).0,
            bits(&[17, 23, 24]),
            false,
        ),
        (
            Features::of(&[Feature::RingAddr, Feature::AtomicWrite]).0,
            bits(&[40]),
            false,
        ),
        (
            Features::of(&[Feature::RingAddr, Feature::Flush]).0,
            bits(&[38, 39]),
            false,
        ),
        (Features::of(&[Feature::Multicast]).0, 0, true),
    ];
    for (features, more, blocks) in cases {
        assert_eq!(of(features), (always | more, blocks), "{features:#x}");
    }
    let without = good().decode(EVERY_FEATURE).expect("a good configuration");
    assert_eq!(without.capabilities(), DeviceCaps::NONE);
    assert!(!without.blocks_loopback());
}

/// A QP for the largest READ is not larger than the device's QPs.
#[test]
fn reads_fit_the_send_queue() {
    for (send, read, expected) in [(4, 3, 3), (4, 4, 4), (4, 5, 4), (4, u32::MAX, 4)] {
        let mut parts = good();
        parts.config.max_send_sge = send;
        parts.config.max_sge_rd = read;
        let limits = parts.decode(0).expect("a good configuration");
        assert_eq!(limits.config.max_sge_rd, expected);
    }
}

/// MRs for fast registration have pages. Without fast registration, the limit does not matter.
// abi: R-1250
#[test]
fn fast_registration_has_pages() {
    let refused = |features, flags| {
        refused(features, |parts| {
            parts.config.device_cap_flags = flags;
            parts.config.max_fast_reg_page_list_len = 0;
        })
    };
    let with = DeviceCaps::MEM_MGT_EXTENSIONS;
    let field = Some("max_fast_reg_page_list_len");
    assert_eq!(refused(EVERY_FEATURE, with), field);
    assert_eq!(refused(Feature::RegPages.mask(), with), field);
    assert_eq!(refused(0, with), None);
    assert_eq!(refused(EVERY_FEATURE, DeviceCaps::NONE), None);
}

// abi
#[test]
fn limits_of_mrs_depend_on_features() {
    let of = |features| {
        let mut parts = good();
        parts.config.max_mr_size = 1 << 40;
        parts.config.page_size_cap = bits(&[30, 21, 12]) | 0xfff;
        parts.config.max_fast_reg_page_list_len = 600;
        parts.config.device_cap_flags = DeviceCaps::MEM_MGT_EXTENSIONS;
        parts.decode(features).expect("a good configuration")
    };
    let flat = of(0);
    assert_eq!(flat.max_mr_size(1 << 31), 1 << 31);
    assert_eq!(flat.max_mr_size(1 << 41), 1 << 40);
    assert_eq!(flat.mr_page_sizes(), 1 << 12);
    assert_eq!(flat.max_fast_reg_pages(512), 0);
    let paged = of(Features::of(&[Feature::MrPages, Feature::RegPages]).0);
    assert_eq!(paged.max_mr_size(1 << 31), 1 << 40);
    assert_eq!(paged.mr_page_sizes(), bits(&[30, 21, 12]));
    assert_eq!(paged.max_fast_reg_pages(512), 512);
    assert_eq!(paged.max_fast_reg_pages(1024), 600);
}

#[test]
fn atomicity_that_does_not_exist_is_none() {
    for (value, expected) in [
        (0, AtomicCap::None),
        (1, AtomicCap::Hca),
        (2, AtomicCap::Global),
        (3, AtomicCap::None),
        (255, AtomicCap::None),
    ] {
        let mut parts = good();
        parts.config.atomic_cap = value;
        let limits = parts.decode(0).expect("a good configuration");
        assert_eq!(limits.atomic_cap(), expected, "{value}");
    }
}
