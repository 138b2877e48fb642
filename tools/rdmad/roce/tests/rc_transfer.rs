// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Data arrives complete, unchanged and in order over channels with faults.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::{Pieces, Settings, BASE, RKEY};
use common::setup::{apply, opcode, ACK, SEND};
use common::sim::{Faults, Rng, Sim};
use proptest::prelude::*;
use roce::headers::Body;
use roce::work::{AtomicOp, Mtu, Remote, SendOp, WcStatus, With};
use roce::Packet;

/// Size in bytes of each third of an endpoint's memory. The thirds are the local memory of send
/// work requests, the receive buffers, and the memory for the peer's remote operations.
const THIRD: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    SendInv,
    CompareSwap,
    FetchAdd,
    Local,
    LocalDrained,
}

impl Kind {
    /// Whether the operation completes a receive.
    fn is_received(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm | Self::SendInv | Self::WriteImm
        )
    }

    /// Length of the message in bytes: `len`, except for operations with a fixed length.
    fn length(self, len: usize) -> usize {
        match self {
            Self::CompareSwap | Self::FetchAdd => 8,
            Self::Local | Self::LocalDrained => 0,
            _ => len,
        }
    }

    /// The atomic operation of work request `id`; `None` for other kinds. If `id` is odd, a
    /// compare-and-swap expects another value than `original`, so it does not swap.
    fn atomic(self, id: usize, original: u64) -> Option<AtomicOp> {
        match self {
            Self::CompareSwap => Some(AtomicOp::CompareSwap {
                compare: original ^ (id as u64 & 1),
                swap: !original,
            }),
            Self::FetchAdd => Some(AtomicOp::FetchAdd {
                add: 0xffff_ffff_0000_0001,
            }),
            _ => None,
        }
    }
}

fn word(memory: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(memory[at..at + 8].try_into().unwrap())
}

const KINDS: [Kind; 10] = [
    Kind::Send,
    Kind::SendImm,
    Kind::Write,
    Kind::WriteImm,
    Kind::Read,
    Kind::SendInv,
    Kind::CompareSwap,
    Kind::FetchAdd,
    Kind::Local,
    Kind::LocalDrained,
];

/// Splits a range into at most 8 pieces of random lengths.
fn scatter(rng: &mut Rng, start: usize, len: usize) -> Pieces {
    let mut pieces = Vec::new();
    let (mut at, end) = (start, start + len);
    while at < end && pieces.len() < 7 {
        let next = (at + 1 + rng.below(len as u64) as usize).min(end);
        pieces.push(at..next);
        at = next;
    }
    if at < end {
        pieces.push(at..end);
    }
    pieces
}

/// Runs `work` in both directions at once and checks every byte and completion.
fn transfer(work: &[(Kind, usize)], settings: Settings, faults: Faults, seed: u64) -> Sim {
    let mut sim = Sim::new(3 * THIRD, settings, faults, seed);
    let originals = [
        sim.ends[0].world.memory.clone(),
        sim.ends[1].world.memory.clone(),
    ];
    let mut rng = Rng(seed ^ 0xfeed);
    let mut layouts = [Vec::new(), Vec::new()];
    for (side, layout) in layouts.iter_mut().enumerate() {
        let (mut own, mut recv, mut remote) = (0, THIRD, 2 * THIRD);
        for (id, &(kind, len)) in work.iter().enumerate() {
            let len = kind.length(len);
            remote = remote.next_multiple_of(8);
            layout.push((own, recv, remote));
            if let Kind::SendInv = kind {
                sim.ends[1 - side].world.keys.push(id as u32);
            }
            if kind.is_received() {
                let pieces = scatter(&mut rng, recv, len);
                sim.ends[1 - side].post_recv(id as u64, pieces);
            }
            own += len;
            recv += len;
            remote += len;
        }
    }
    let mut posted = [0, 0];
    loop {
        for side in 0..2 {
            while posted[side] < work.len() && sim.ends[side].requester.has_room() {
                let (kind, len) = work[posted[side]];
                let (own, _, remote) = layouts[side][posted[side]];
                let imm = (posted[side] as u32).to_be_bytes();
                let original = word(&originals[1 - side], remote);
                let atomic = kind.atomic(posted[side], original);
                let remote = Remote {
                    va: BASE + remote as u64,
                    rkey: RKEY,
                };
                let op = match kind {
                    Kind::Send => SEND,
                    Kind::SendImm => SendOp::Send {
                        with: With::Imm(imm),
                    },
                    Kind::Write => SendOp::Write { remote, imm: None },
                    Kind::WriteImm => SendOp::Write {
                        remote,
                        imm: Some(imm),
                    },
                    Kind::Read => SendOp::Read { remote },
                    Kind::SendInv => SendOp::Send {
                        with: With::Inv(posted[side] as u32),
                    },
                    Kind::CompareSwap | Kind::FetchAdd => SendOp::Atomic {
                        remote,
                        op: atomic.expect("it is atomic"),
                    },
                    Kind::Local => SendOp::Local { drained: false },
                    Kind::LocalDrained => SendOp::Local { drained: true },
                };
                let pieces = scatter(&mut rng, own, kind.length(len));
                sim.ends[side].post(posted[side] as u64, op, pieces);
                posted[side] += 1;
            }
            // With every third seed, a side has only a few frame buffers in each step.
            sim.ends[side].world.frames = (seed % 3 == 0).then_some(rng.below(9) as usize);
        }
        if !sim.step()
            && posted == [work.len(); 2]
            && sim.ends.iter().all(|end| end.requester.is_empty())
        {
            break;
        }
        if sim.ends.iter().any(|end| !end.errors.is_empty()) {
            panic!("{:?} {:?}", sim.ends[0].errors, sim.ends[1].errors);
        }
    }
    for side in 0..2 {
        let (end, peer) = (&sim.ends[side].world, &sim.ends[1 - side].world);
        let all: Vec<_> = (0..work.len() as u64)
            .map(|id| (id, WcStatus::Success))
            .collect();
        assert_eq!(end.sent, all);
        let mut received = peer.received.iter();
        let mut local = end.local_operations.iter();
        for (id, &(kind, len)) in work.iter().enumerate() {
            let len = kind.length(len);
            let (own, recv, remote) = layouts[side][id];
            let source = &originals[side][own..own + len];
            match kind {
                Kind::Send | Kind::SendImm | Kind::SendInv => {
                    assert!(peer.memory[recv..recv + len] == *source)
                }
                Kind::Write | Kind::WriteImm => {
                    assert!(peer.memory[remote..remote + len] == *source)
                }
                Kind::Read => {
                    assert!(end.memory[own..own + len] == originals[1 - side][remote..remote + len])
                }
                Kind::CompareSwap | Kind::FetchAdd => {
                    let original = word(&originals[1 - side], remote);
                    let op = kind.atomic(id, original).expect("it is atomic");
                    assert_eq!(word(&end.memory, own), original);
                    assert_eq!(word(&peer.memory, remote), apply(op, original));
                }
                Kind::Local => assert!(*local.next().expect("executed") <= id),
                Kind::LocalDrained => assert_eq!(local.next(), Some(&id)),
            }
            if kind.is_received() {
                let (recv_id, how) = received.next().expect("a completion");
                assert_eq!(*recv_id, id as u64);
                assert_eq!(how.status(), WcStatus::Success);
                assert_eq!(how.byte_len as usize, len);
                assert_eq!(how.rdma_write, matches!(kind, Kind::WriteImm));
                let with = match kind {
                    Kind::Send => With::Nothing,
                    Kind::SendInv => With::Inv(id as u32),
                    _ => With::Imm((id as u32).to_be_bytes()),
                };
                assert_eq!(how.with, with);
            }
        }
        assert_eq!(received.next(), None, "no message completes twice");
        assert_eq!(local.next(), None, "no local operation is repeated");
        assert_eq!(peer.keys, [], "each key is invalidated");
        let atomics = work
            .iter()
            .filter(|(kind, _)| kind.atomic(0, 0).is_some())
            .count();
        assert_eq!(peer.atomics, atomics, "no atomic operation is repeated");
    }
    sim
}

// abi
#[test]
fn every_operation_at_every_mtu_and_odd_sizes() {
    for mtu in Mtu::ALL {
        let m = mtu.bytes() as usize;
        let sizes = [
            0,
            1,
            3,
            m - 1,
            m,
            m + 1,
            2 * m,
            5 * m + 7,
            130 * 256 + 2,
            100_001,
        ];
        let work: Vec<_> = KINDS
            .iter()
            .flat_map(|&kind| sizes.map(|len| (kind, len)))
            .collect();
        let sim = transfer(
            &work,
            Settings {
                mtu: *mtu,
                ..Settings::default()
            },
            Faults::default(),
            1,
        );
        // Without faults, no packet is sent twice. The PSNs have wrapped.
        for side in 0..2 {
            let requests: Vec<_> = sim
                .log
                .iter()
                .filter(|(from, _)| *from == side)
                .map(|(_, frame)| Packet::parse(frame).unwrap().headers)
                .filter(|headers| matches!(headers.body, Body::Request(_)))
                .map(|headers| headers.bth)
                .collect();
            assert!(requests
                .windows(2)
                .all(|pair| pair[1].psn.since(pair[0].psn) > 0));
            assert!(requests
                .windows(2)
                .any(|pair| pair[1].psn.value() < pair[0].psn.value()));
        }
    }
}

#[test]
fn acknowledgements_are_coalesced() {
    let sim = transfer(
        &[(Kind::Write, 500_000)],
        Settings::default(),
        Faults::default(),
        1,
    );
    let acks = sim
        .log
        .iter()
        .filter(|(from, frame)| *from == 0 && opcode(frame) == ACK)
        .count();
    let few = 1..=489 / 16;
    assert!(
        few.contains(&acks),
        "{acks} acknowledgements for 489 packets"
    );
}

// abi
#[test]
fn reads_obey_the_negotiated_limit() {
    let settings = Settings {
        rd_atomic: 1,
        ..Settings::default()
    };
    let work = [
        (Kind::Read, 300_000),
        (Kind::Read, 10),
        (Kind::Write, 5000),
        (Kind::Read, 70_000),
    ];
    transfer(&work, settings, Faults::default(), 1);
}

/// A READ whose request was retransmitted and whose responses arrive late must not block the next
/// READ.
#[test]
fn a_repeated_read_leaves_room_for_the_next() {
    let settings = Settings {
        mtu: Mtu::Mtu256,
        psn: 0xff_ffe0,
        rd_atomic: 1,
        depth: 3,
        ..Settings::default()
    };
    let faults = Faults {
        drop: 3,
        duplicate: 0,
        reorder: 4,
        corrupt: 0,
    };
    let work = [(Kind::Read, 32_745), (Kind::Send, 785)];
    transfer(&work, settings, faults, 17_508_306_787_824_350_610);
}

/// Each side adds to a counter of the other side. Checks that the original values are 0, 1, 2 and
/// so on, in this order.
fn count(adds: u64, settings: Settings, faults: Faults, seed: u64) {
    let mut sim = Sim::new(16 << 10, settings, faults, seed);
    for end in &mut sim.ends {
        end.world.memory[..8].fill(0);
    }
    let remote = Remote {
        va: BASE,
        rkey: RKEY,
    };
    let op = AtomicOp::FetchAdd { add: 1 };
    let result = |id: u64| 8 + id as usize * 8;
    let mut posted = [0; 2];
    while sim.step() || posted != [adds; 2] {
        for (end, posted) in sim.ends.iter_mut().zip(&mut posted) {
            assert_eq!(end.errors, []);
            while *posted < adds && end.requester.has_room() {
                let at = result(*posted);
                end.post(*posted, SendOp::Atomic { remote, op }, vec![at..at + 8]);
                *posted += 1;
            }
        }
    }
    for end in &sim.ends {
        assert_eq!(end.world.sent.len() as u64, adds);
        assert_eq!(word(&end.world.memory, 0), adds);
        for id in 0..adds {
            assert_eq!(word(&end.world.memory, result(id)), id);
        }
    }
}

#[test]
fn a_counter_counts_once_over_a_bad_channel() {
    for (seed, rd_atomic) in [(1, 1), (2, 4), (3, 16), (4, 128)] {
        let settings = Settings {
            rd_atomic,
            depth: 256,
            ..Settings::default()
        };
        let faults = Faults {
            drop: 5,
            duplicate: 5,
            reorder: 10,
            corrupt: 2,
        };
        count(1000, settings, faults, seed);
    }
}

fn faults() -> impl Strategy<Value = Faults> {
    (0..6u64, 0..6u64, 0..10u64, 0..4u64).prop_map(|(drop, duplicate, reorder, corrupt)| Faults {
        drop,
        duplicate,
        reorder,
        corrupt,
    })
}

fn work() -> impl Strategy<Value = Vec<(Kind, usize)>> {
    let size = prop_oneof![0..10usize, 200..3000usize, 0..60_000usize];
    proptest::collection::vec((proptest::sample::select(&KINDS), size), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 80,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_work_over_a_bad_channel(
        work in work(),
        faults in faults(),
        mtu in proptest::sample::select(Mtu::ALL),
        psn in prop_oneof![Just(0xff_ffe0u32), 0..0x100_0000u32],
        rd_atomic in prop_oneof![1..5u8, 5..=128u8],
        depth in prop_oneof![Just(1usize), Just(3), Just(64)],
        seed: u64,
    ) {
        let settings = Settings { mtu, psn, rd_atomic, depth, ..Settings::default() };
        transfer(&work, settings, faults, seed);
    }
}
