// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Features: numbers, names, requirements, and what depends on them.

use virtio_rdma_abi::config::{DeviceCaps, CONFIG_SIZE};
use virtio_rdma_abi::ctrl::Command;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{AccessFlags, WrOpcode};

/// Number, name and constant of each feature. Other implementations depend on them.
const NUMBERS: [(u32, &str, &str); 16] = [
    (0, "ring-addr", "VIRTIO_RDMA_F_RING_ADDR"),
    (1, "mr-pages", "VIRTIO_RDMA_F_MR_PAGES"),
    (2, "reg-pages", "VIRTIO_RDMA_F_REG_PAGES"),
    (3, "gid-vlan", "VIRTIO_RDMA_F_GID_VLAN"),
    (4, "mem-windows", "VIRTIO_RDMA_F_MEM_WINDOWS"),
    (5, "srq", "VIRTIO_RDMA_F_SRQ"),
    (6, "resize-cq", "VIRTIO_RDMA_F_RESIZE_CQ"),
    (7, "rate-limit", "VIRTIO_RDMA_F_RATE_LIMIT"),
    (8, "multicast", "VIRTIO_RDMA_F_MULTICAST"),
    (9, "counters", "VIRTIO_RDMA_F_COUNTERS"),
    (10, "atomic-write", "VIRTIO_RDMA_F_ATOMIC_WRITE"),
    (11, "flush", "VIRTIO_RDMA_F_FLUSH"),
    (12, "peers", "VIRTIO_RDMA_F_PEERS"),
    (13, "cq-moderation", "VIRTIO_RDMA_F_CQ_MODERATION"),
    (14, "counter-sets", "VIRTIO_RDMA_F_COUNTER_SETS"),
    (15, "port-state", "VIRTIO_RDMA_F_PORT_STATE"),
];

#[test]
fn numbers_and_names_are_those_of_the_specification() {
    let numbers = Feature::ALL.iter().map(|f| (f.bit(), f.name()));
    let expected = NUMBERS.iter().map(|&(bit, name, _)| (bit, name));
    assert!(numbers.eq(expected));
    assert_eq!(Features::ALL.0, 0xffff);
}

/// The table in `abi.md` and the list of `--withhold` name all features of the device type, and no
/// others.
#[test]
fn documents_name_each_feature() {
    let specification = include_str!("../../../../../Documentation/abi.md");
    let rows = specification
        .lines()
        .filter_map(|line| line.strip_prefix("| "))
        .filter_map(|line| line.split_once(" | `VIRTIO_RDMA_F_"))
        .map(|(bit, rest)| (bit.to_owned(), rest.split('`').next().unwrap_or_default()));
    let expected = NUMBERS.map(|(bit, _, constant)| (bit.to_string(), &constant[14..]));
    assert!(rows.eq(expected));

    let manual = include_str!("../../../../../Documentation/man/virtio-rdmad.1");
    let (_, list) = manual
        .split_once("Does not offer a feature:\n")
        .expect("the list of --withhold");
    let (list, _) = list.split_once("\nor with\n").expect("the end of the list");
    let mut names: Vec<_> = list
        .lines()
        .filter_map(|line| line.strip_prefix(".BR "))
        .map(|line| line.trim_end_matches(" ,").replace('\\', ""))
        .collect();
    let of_transport = names.split_off(NUMBERS.len());
    let mut expected = NUMBERS.map(|(_, name, _)| name);
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
    let transport = [
        "indirect-desc",
        "version-1",
        "access-platform",
        "ring-reset",
    ];
    assert_eq!(of_transport, transport);
}

// abi: R-10
#[test]
fn features_without_what_they_need_are_not_in_force() {
    let in_force = |features: &[Feature]| Features::of(features).in_force();
    use Feature::*;
    assert_eq!(
        in_force(&[Srq, ResizeCq, CqModeration, CounterSets, Counters]),
        Features::of(&[Counters])
    );
    let all = [RingAddr, Srq, ResizeCq, CqModeration, CounterSets, Counters];
    assert_eq!(in_force(&all), Features::of(&all));
    // Bits of the virtio transport are kept.
    let version_1 = Features(1 << 32);
    assert_eq!(version_1.union(Features::of(&[Srq])).in_force(), version_1);
    // One step is enough: no required feature requires another feature.
    assert!(Feature::ALL
        .iter()
        .filter_map(|feature| feature.needs())
        .all(|needed| needed.needs().is_none()));
}

// abi: R-101
#[test]
fn commands_come_and_go_with_features() {
    let known = |features: Features| -> Vec<u8> {
        let known = Command::ALL.iter().copied();
        let known = known.filter(|command| features.know(*command));
        known.map(Command::value).collect()
    };
    let base: Vec<u8> = (1..=18).chain([30]).collect();
    assert_eq!(known(Features::NONE), base);
    let more = |feature: Feature, commands: &[u8], without: &[u8]| {
        let mut expected: Vec<u8> = base.iter().chain(commands).copied().collect();
        expected.retain(|command| !without.contains(command));
        expected.sort();
        assert_eq!(known(Features::of(&[feature])), expected, "{feature:?}");
    };
    for feature in Feature::ALL.iter().copied() {
        match feature {
            Feature::RingAddr => more(feature, &[], &[18]),
            Feature::RegPages => more(feature, &[], &[8]),
            Feature::MemWindows => more(feature, &[19, 20], &[]),
            Feature::Srq => more(feature, &[21, 22, 23, 24], &[]),
            Feature::ResizeCq => more(feature, &[25], &[]),
            Feature::RateLimit => more(feature, &[26], &[]),
            Feature::Multicast => more(feature, &[27, 28], &[]),
            Feature::Counters => more(feature, &[29], &[]),
            Feature::Peers => more(feature, &[31], &[]),
            Feature::CqModeration => more(feature, &[32], &[]),
            Feature::CounterSets => more(feature, &[33, 34, 35, 36], &[]),
            Feature::PortState => more(feature, &[37], &[]),
            Feature::MrPages | Feature::GidVlan | Feature::AtomicWrite | Feature::Flush => {
                more(feature, &[], &[]);
            }
        }
    }
}

#[test]
fn operations_access_flags_and_capabilities_belong_to_one_feature_each() {
    let operations: Vec<_> = WrOpcode::ALL
        .iter()
        .filter_map(|opcode| Some((*opcode, opcode.feature()?)))
        .collect();
    let expected = [
        (WrOpcode::BindMw, Feature::MemWindows),
        (WrOpcode::Flush, Feature::Flush),
        (WrOpcode::AtomicWrite, Feature::AtomicWrite),
    ];
    assert_eq!(operations, expected);

    let access_flags: Vec<_> = Feature::ALL
        .iter()
        .map(|feature| feature.access_flags())
        .collect();
    for (index, feature) in Feature::ALL.iter().enumerate() {
        let expected = match feature {
            Feature::MemWindows => AccessFlags(1 << 4),
            Feature::Flush => AccessFlags((1 << 8) | (1 << 9)),
            _ => AccessFlags::NONE,
        };
        assert_eq!(access_flags[index], expected, "{feature:?}");
    }

    assert_eq!(Features::NONE.capabilities(), DeviceCaps::NONE);
    for (feature, bits) in [
        (Feature::RegPages, 1 << 21),
        (Feature::MemWindows, (1 << 17) | (1 << 23) | (1 << 24)),
        (Feature::Multicast, 1 << 22),
        (Feature::AtomicWrite, 1 << 40),
        (Feature::Flush, (1 << 38) | (1 << 39)),
        (Feature::Counters, 0),
    ] {
        let capabilities = Features::of(&[feature]).capabilities();
        assert_eq!(capabilities, DeviceCaps(bits), "{feature:?}");
    }
}

/// The parts of the configuration are within it and do not overlap.
#[test]
fn parts_of_the_configuration_do_not_meet() {
    let mut parts: Vec<_> = Feature::ALL
        .iter()
        .map(|feature| feature.config())
        .filter(|part| !part.is_empty())
        .collect();
    parts.sort_by_key(|part| part.start);
    assert_eq!(parts, [128..160, 160..172, 176..192, 192..200, 208..212]);
    assert!(parts.iter().all(|part| part.end <= CONFIG_SIZE));
}
