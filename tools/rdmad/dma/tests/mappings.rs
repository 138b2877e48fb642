// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The number of mappings that lost memory costs. The kernel limits the mappings of a process, and
//! at the limit a fault would end it.
//!
//! One test, since other tests of this process would make mappings meanwhile.

use std::fs;
use std::os::fd::OwnedFd;
use std::thread;

use dma::testing::shrinkable_memory;
use dma::{DmaSpace, PAGE_SIZE};
use rustix::fs::ftruncate;

const IOVA: u64 = 0x10_0000;

/// Number of mappings of this process.
fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

fn write(space: &DmaSpace, iova: u64, data: &[u8]) {
    let view = space.enter();
    let slice = view.slice_mut(iova, data.len()).unwrap();
    slice.write(0, data).unwrap();
}

/// A space that maps `pages` pages of a file that can shrink.
fn shrinkable(pages: u64) -> (DmaSpace, OwnedFd) {
    let file = shrinkable_memory(pages * PAGE_SIZE).unwrap();
    let space = DmaSpace::new();
    let copy = file.try_clone().unwrap();
    space.map(IOVA, copy, 0, pages * PAGE_SIZE, true).unwrap();
    (space, file)
}

#[test]
fn lost_memory_costs_few_mappings() {
    many_lost_pages_cost_few_mappings();
    a_region_of_any_size_is_replaced();
    threads_lose_a_whole_region_together();
}

fn many_lost_pages_cost_few_mappings() {
    const PAGES: u64 = 2048;
    /// Spare pages that are mapped one by one. Each adds a mapping for itself and one for the rest
    /// of the region.
    const SPARE: usize = 2 * 16;
    let before = mappings();
    let spaces: Vec<_> = (0..3).map(|_| shrinkable(PAGES)).collect();
    let mapped = mappings();
    // A region and its spare page.
    assert!(mapped <= before + 2 * spaces.len());
    let mut last = mapped;
    for (space, file) in &spaces {
        ftruncate(file, 0).unwrap();
        for page in (0..PAGES).step_by(3) {
            let iova = IOVA + page * PAGE_SIZE;
            write(space, iova, b"anything");
            assert!(mappings() <= last + SPARE, "page {page}");
        }
        last = mappings();
        // The rest of the region is one mapping again.
        assert!(last <= mapped, "{last} mappings, {mapped} before the loss");
        assert_eq!(space.lost().unwrap().iova, IOVA);
    }
    for (space, file) in &spaces {
        ftruncate(file, PAGES * PAGE_SIZE).unwrap();
        space.restore().unwrap();
        write(space, IOVA, b"restored");
        assert!(!space.has_lost());
    }
    drop(spaces);
    assert!(mappings() <= before);
}

/// The memory that replaces a region is not limited by the size of the region.
fn a_region_of_any_size_is_replaced() {
    const PAGES: u64 = 1 << 28;
    let (space, file) = shrinkable(PAGES);
    ftruncate(&file, 0).unwrap();
    for page in 0..100 {
        write(&space, IOVA + page * (PAGES / 100) * PAGE_SIZE, b"anything");
    }
    assert_eq!(space.lost().unwrap().iova, IOVA);
}

/// Threads that access a region while it is replaced find memory at every address.
fn threads_lose_a_whole_region_together() {
    const PAGES: u64 = 512;
    for _ in 0..20 {
        let (space, file) = shrinkable(PAGES);
        ftruncate(&file, 0).unwrap();
        let before = mappings();
        thread::scope(|scope| {
            for first in 0..4 {
                let space = &space;
                scope.spawn(move || {
                    for page in (first..PAGES).step_by(4) {
                        write(space, IOVA + page * PAGE_SIZE, b"anything");
                    }
                });
            }
        });
        // A thread may have begun its access before another replaced the region. The threads have
        // stacks and memory of their own.
        assert!(mappings() <= before + 64);
        assert!(space.has_lost());
    }
}
