// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use dma::testing::guest_memory;
use dma::DmaSpace;
use rand::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;
use roce::work::Remote;
use virtio_rdma_abi::ctrl::PageListDepth;
use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::{Pdn, Qpn};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::Sge;

use super::*;
use crate::memory::{unlimited, MrTable, PageList, PageMap};
use crate::pd::PdUse;
use crate::shuffle::Secret;
use crate::Clock;

const PAGE: u64 = 4096;
const PDN: Pdn = Pdn::new(7);
const BY: KeyUser = KeyUser {
    pdn: PDN,
    qpn: Qpn::new(9),
};
/// Regions of a VM's memory: address and length in pages. The first two are adjacent.
const REGIONS: [(u64, u64); 3] = [(0, 40), (40 * PAGE, 24), (1 << 32, 64)];
/// Address of the page lists.
const LISTS: u64 = 1 << 40;
/// Pages of an MR.
const PAGES: u64 = 40;
const ACCESS: AccessFlags = AccessFlags(AccessFlags::LOCAL_WRITE.0 | AccessFlags::REMOTE_WRITE.0);

/// A VM and its MRs.
struct Guest {
    space: DmaSpace,
    mrs: MrTable,
}

impl Guest {
    fn new() -> Self {
        let space = DmaSpace::new();
        for (iova, pages) in REGIONS.into_iter().chain([(LISTS, 1)]) {
            let len = pages * PAGE;
            space
                .map(iova, guest_memory(len).unwrap(), 0, len, true)
                .unwrap();
        }
        Self {
            space,
            mrs: MrTable::new(&Secret::new(Some(1)), &unlimited(), 8, 0, 1000),
        }
    }

    /// Registers memory of these pages, from `offset` in the first one on. Its first byte has
    /// address 0. Returns the key.
    fn register(&self, pages: &[u64], offset: u64, len: u64) -> u32 {
        let view = self.space.enter();
        let list = view.slice_mut(LISTS, 8 * pages.len()).unwrap();
        for (index, page) in pages.iter().enumerate() {
            list.write(8 * index, &page.to_le_bytes()).unwrap();
        }
        let list = PageList {
            iova: LISTS,
            npages: pages.len() as u32,
            page_shift: 12,
            depth: PageListDepth::Flat,
        };
        let map = PageMap::read(&unlimited(), &self.space, list, offset, len).unwrap();
        let charge = self.mrs.charge(0).unwrap();
        let made = self.mrs.insert(PdUse::alone(PDN), ACCESS, 0, map, charge);
        made.unwrap().1
    }

    /// All bytes of the regions.
    fn image(&self) -> Vec<u8> {
        let view = self.space.enter();
        let regions = REGIONS.map(|(iova, pages)| {
            let mut bytes = vec![0; (pages * PAGE) as usize];
            view.slice(iova, bytes.len())
                .unwrap()
                .read(0, &mut bytes)
                .unwrap();
            bytes
        });
        regions.concat()
    }

    fn set_image(&self, image: &[u8]) {
        let view = self.space.enter();
        let mut rest = image;
        for (iova, pages) in REGIONS {
            let (bytes, after) = rest.split_at((pages * PAGE) as usize);
            view.slice_mut(iova, bytes.len())
                .unwrap()
                .write(0, bytes)
                .unwrap();
            rest = after;
        }
    }
}

/// Random pages of the regions, a part of them adjacent.
fn pages(random: &mut XorShiftRng) -> Vec<u64> {
    let all = REGIONS.map(|(iova, pages)| (0..pages).map(move |page| iova + page * PAGE));
    let all: Vec<_> = all.into_iter().flatten().collect();
    let mut pages = Vec::new();
    while (pages.len() as u64) < PAGES {
        let at = random.random_range(0..all.len());
        let count = random.random_range(1..4);
        pages.extend(all[at..].iter().take(count));
    }
    pages.truncate(PAGES as usize);
    pages
}

/// Calls `work` with the message of a guest in `sges` or at `remote`.
fn with_message<R>(
    guest: &Guest,
    wqe: Option<&[u8]>,
    remote: Remote,
    work: impl FnOnce(Message<'_>) -> R,
) -> R {
    with_budget(guest, wqe, remote, usize::MAX / 2, work)
}

/// Like [`with_message`], in a turn with the budget `limit`.
fn with_budget<R>(
    guest: &Guest,
    wqe: Option<&[u8]>,
    remote: Remote,
    limit: usize,
    work: impl FnOnce(Message<'_>) -> R,
) -> R {
    let clock = Clock::manual();
    let budget = TurnBudget::new(&clock, clock.now(), limit);
    let (view, keys) = (guest.space.enter(), Keys::new(&guest.mrs));
    let memory = Memory {
        view: &view,
        keys: &keys,
        by: BY,
        budget: &budget,
    };
    work(match wqe {
        Some(wqe) => {
            let count = (wqe.len() / Sge::SIZE) as u32;
            Message::in_sges(memory, wqe, 0, count, AccessFlags::LOCAL_WRITE)
        }
        None => Message::in_range(memory, remote, AccessFlags::REMOTE_WRITE),
    })
}

/// A transfer stores the bytes that a plain read and a plain write of the message store, whatever
/// the pages, the pieces and the parts.
#[test]
fn a_transfer_equals_a_read_and_a_write() {
    let mut random = XorShiftRng::seed_from_u64(1);
    let (ours, theirs) = (Guest::new(), Guest::new());
    let mut ends = 0;
    for round in 0..300 {
        let mut bytes = ours.image();
        random.fill(&mut bytes[..]);
        ours.set_image(&bytes);
        let lead = [0, random.random_range(0..PAGE)];
        let leads = lead.map(|lead| if round % 2 == 0 { 0 } else { lead });
        let len = PAGES * PAGE - leads[1];
        let flat: Vec<u64> = (0..PAGES).map(|page| page * PAGE).collect();
        let key = ours.register(&pages(&mut random), leads[1], len);
        let flat = ours.register(&flat, 0, PAGES * PAGE);
        let rkey = theirs.register(&pages(&mut random), leads[0], PAGES * PAGE - leads[0]);
        // The SGEs are of scattered and of contiguous memory.
        let mut sges = Vec::new();
        let mut total = 0;
        while sges.len() < 3 {
            let part = match round % 3 {
                0 => 12 * PAGE,
                _ => random.random_range(1..12 * PAGE),
            };
            let sge = Sge {
                addr: random.random_range(0..len - part) / 8 * 8,
                length: part as u32,
                lkey: if random.random_ratio(2, 3) { key } else { flat },
            };
            let mut wqe = [0; Sge::SIZE];
            sge.put(&mut wqe);
            sges.push(wqe);
            total += part as usize;
        }
        let wqe = sges.concat();
        let va = random.random_range(0..PAGES * PAGE - leads[0] - total as u64) / 8 * 8;
        let remote = Remote { va, rkey };
        let before = theirs.image();
        let mut at = 0;
        while at < total {
            let left = total - at;
            let part = random.random_range(1..=left).max(left.min(8));
            // The end of a turn's budget may end a transfer.
            let limit = random.random_range(0..1 << 18);
            at += with_budget(&ours, Some(&wqe), remote, limit, |mut from| {
                with_message(&theirs, None, remote, |mut to| {
                    let last = part == left;
                    let moved = transfer(&mut from, &mut to, at as u64, part, last).unwrap();
                    assert!((1..=part).contains(&moved));
                    assert!(moved == part || left - moved >= 8, "the end is whole");
                    ends += usize::from(moved < part);
                    moved
                })
            });
        }
        let after = theirs.image();
        theirs.set_image(&before);
        let mut sent = vec![0; total];
        with_message(&ours, Some(&wqe), remote, |mut from| {
            from.read(0, &mut sent).unwrap();
        });
        with_message(&theirs, None, remote, |mut to| {
            to.write(0, &sent, true).unwrap();
        });
        assert!(after == theirs.image(), "round {round}");
        for guest in [&ours, &theirs] {
            for number in guest.mrs.numbers() {
                let mr = guest.mrs.remove(number).unwrap();
                guest.mrs.release(number, mr);
            }
        }
    }
    assert!(ends > 20, "{ends} transfers ended with the budget");
}

/// A transfer costs its bytes and the pieces of memory in which they are.
#[test]
fn a_transfer_costs_its_bytes_and_pieces() {
    const PARTS: u64 = 32;
    let guest = Guest::new();
    let flat: Vec<u64> = (0..PAGES).map(|page| page * PAGE).collect();
    let rkey = guest.register(&flat, 0, PAGES * PAGE);
    let sges = (0..PARTS).map(|part| {
        let sge = Sge {
            addr: part * PAGE,
            length: 1,
            lkey: rkey,
        };
        let mut wqe = [0; Sge::SIZE];
        sge.put(&mut wqe);
        wqe
    });
    let wqe = Vec::from_iter(sges).concat();
    let remote = Remote { va: PAGE, rkey };
    let cost = |wqe: Option<&[u8]>, len| {
        with_message(&guest, wqe, remote, |mut from| {
            with_message(&guest, None, remote, |mut to| {
                transfer(&mut from, &mut to, 0, len, true).unwrap();
            });
            from.memory.budget.spent()
        })
    };
    let one = cost(None, 64);
    assert!((64 + 256..64 + 512).contains(&one), "{one}");
    let many = cost(Some(&wqe), PARTS as usize);
    assert!(many >= PARTS as usize * 256, "{many}");
}

/// The pages are not looked up one by one.
#[test]
fn one_walk_copies_all_pages() {
    let guest = Guest::new();
    let apart: Vec<u64> = (0..20).rev().map(|page| 2 * page * PAGE).collect();
    let rkey = guest.register(&apart, 0, 20 * PAGE);
    let remote = Remote { va: 0, rkey };
    with_message(&guest, None, remote, |mut from| {
        with_message(&guest, None, remote, |mut to| {
            // Nothing was looked up yet.
            assert_eq!(transfer_pages(&mut from, &mut to, 0, 1).unwrap(), 0);
            from.find(0, 1).unwrap();
            to.find(0, 1).unwrap();
            let (first, rest) = (PAGE, (19 * PAGE) as usize);
            assert_eq!(
                transfer_pages(&mut from, &mut to, first, rest - 8).unwrap(),
                rest - 8
            );
            // The rest of the last page is known.
            let last = (from.run, to.run);
            from.find(20 * PAGE - 8, 8).unwrap();
            assert_eq!((last.0.len, last.1.len), (8, 8));
            assert_eq!(transfer_pages(&mut from, &mut to, first, 0).unwrap(), 0);
        });
    });
}

#[test]
fn a_page_that_is_missing_is_the_fault_of_its_side() {
    let (ours, theirs) = (Guest::new(), Guest::new());
    let apart: Vec<u64> = (0..10).rev().map(|page| 2 * page * PAGE).collect();
    let missing: Vec<u64> = apart
        .iter()
        .enumerate()
        .map(|(index, page)| if index == 7 { 1 << 50 } else { *page })
        .collect();
    let len = 10 * PAGE;
    for (source, target, fault) in [
        (&missing, &apart, Side::Source(Fault::Memory)),
        (&apart, &missing, Side::Target(Fault::Memory)),
    ] {
        let [source, target] = [(&ours, source), (&theirs, target)].map(|(guest, pages)| Remote {
            va: 0,
            rkey: guest.register(pages, 0, len),
        });
        with_message(&ours, None, source, |mut from| {
            with_message(&theirs, None, target, |mut to| {
                let moved = transfer(&mut from, &mut to, 0, len as usize, true);
                assert_eq!(moved, Err(fault));
            });
        });
    }
}

/// Memory that the monitor has mapped read-only is not written.
#[test]
fn read_only_memory_is_the_fault_of_the_target() {
    let (ours, theirs) = (Guest::new(), Guest::new());
    const FIRM: u64 = 1 << 33;
    theirs
        .space
        .map(FIRM, guest_memory(PAGE).unwrap(), 0, PAGE, false)
        .unwrap();
    let apart: Vec<u64> = (0..10).rev().map(|page| 2 * page * PAGE).collect();
    let firm = [&apart[..5], &[FIRM], &apart[6..]].concat();
    let len = 10 * PAGE;
    let [source, target] = [(&ours, &apart), (&theirs, &firm)].map(|(guest, pages)| Remote {
        va: 0,
        rkey: guest.register(pages, 0, len),
    });
    with_message(&ours, None, source, |mut from| {
        with_message(&theirs, None, target, |mut to| {
            let moved = transfer(&mut from, &mut to, 0, len as usize, true);
            assert_eq!(moved, Err(Side::Target(Fault::Memory)));
        });
    });
}
