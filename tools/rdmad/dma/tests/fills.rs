// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Pages that this process allocates in memory files are counted, whoever's memory it is.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use dma::testing::shrinkable_memory;
use dma::{count_filled_pages, DmaSpace, MapError, PAGE_SIZE};
use rustix::fs::{fallocate, ftruncate, memfd_create, FallocateFlags, MemfdFlags};
use testkit::skipped;

const LEN: u64 = 16 * PAGE_SIZE;
const HUGE: u64 = 2 << 20;

fn write(space: &DmaSpace, iova: u64) {
    let view = space.enter();
    let slice = view.slice_mut(iova, 8).unwrap();
    slice.write(0, b"anything").unwrap();
}

fn read(space: &DmaSpace, iova: u64) -> [u8; 8] {
    let mut data = [0xaa; 8];
    let view = space.enter();
    view.slice(iova, 8).unwrap().read(0, &mut data).unwrap();
    data
}

/// A space with a limit of `limit` bytes. `None` if pages can't be counted on this host.
fn counting(limit: u64) -> Option<DmaSpace> {
    match count_filled_pages() {
        Ok(()) => Some(DmaSpace::with_limit(limit)),
        Err(error) => {
            skipped(format_args!("no userfaultfd: {error}"));
            None
        }
    }
}

fn map(space: &DmaSpace, file: &OwnedFd, iova: u64, len: u64) -> Result<(), MapError> {
    space.map(iova, file.try_clone().unwrap(), 0, len, true)
}

#[test]
fn pages_that_the_guest_has_touched_are_not_counted() {
    let Some(space) = counting(LEN) else { return };
    let memory = shrinkable_memory(LEN).unwrap();
    let guest = File::from(memory.try_clone().unwrap());
    guest.write_all_at(b"of guest", 0).unwrap();
    map(&space, &memory, 0, LEN).unwrap();
    guest.write_all_at(b"later on", PAGE_SIZE).unwrap();
    assert_eq!(read(&space, 0), *b"of guest");
    assert_eq!(read(&space, PAGE_SIZE), *b"later on");
    assert_eq!(space.filled(), (0, 0));
    assert_eq!(read(&space, 2 * PAGE_SIZE), [0; 8]);
    assert_eq!(space.filled(), (PAGE_SIZE, 0));
    for page in 0..5 {
        write(&space, page * PAGE_SIZE);
    }
    assert_eq!(space.filled(), (3 * PAGE_SIZE, 0));
    let mut data = [0; 8];
    guest.read_exact_at(&mut data, 4 * PAGE_SIZE).unwrap();
    assert_eq!(&data, b"anything");
    // A page that the guest has given back is allocated again.
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&memory, mode, 0, PAGE_SIZE).unwrap();
    write(&space, 0);
    assert_eq!(space.filled(), (4 * PAGE_SIZE, 0));
    assert!(!space.has_lost());
}

#[test]
fn files_that_are_filled_and_left_behind_are_limited() {
    let Some(space) = counting(LEN) else { return };
    let mut kept = Vec::new();
    for round in 0..3 {
        let memory = shrinkable_memory(LEN).unwrap();
        // With the memory of two rounds, the limit is used up twice.
        if round == 2 {
            let refused = map(&space, &memory, 0, LEN);
            assert!(
                matches!(refused, Err(MapError::LeftBehind { .. })),
                "{refused:?}"
            );
            break;
        }
        map(&space, &memory, 0, LEN).unwrap();
        for page in 0..LEN / PAGE_SIZE {
            write(&space, page * PAGE_SIZE);
        }
        if round == 0 {
            space.clear();
        } else {
            space.unmap(0, LEN).unwrap();
        }
        let (filled, left) = space.filled();
        assert_eq!(filled, 0);
        // A little of it may be forgotten already.
        assert!(left > (round + 1) * LEN - PAGE_SIZE, "{left:#x}");
        kept.push(memory);
    }
}

/// QEMU maps and unmaps parts of one file while the VM boots.
#[test]
fn parts_of_one_file_come_and_go() {
    let Some(space) = counting(2 * LEN) else {
        return;
    };
    let memory = shrinkable_memory(LEN).unwrap();
    map(&space, &memory, 1 << 40, PAGE_SIZE).unwrap();
    for round in 1..=20 {
        map(&space, &memory, 0, LEN).unwrap();
        write(&space, round % 8 * PAGE_SIZE);
        space.unmap(0, LEN).unwrap();
    }
    // The file exists, so no page of it is forgotten.
    assert_eq!(space.filled(), (0, 8 * PAGE_SIZE));
    // The rest of the file was never allocated.
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&memory, mode, 0, 6 * PAGE_SIZE).unwrap();
    assert_eq!(space.filled(), (0, 2 * PAGE_SIZE));
    space.clear();
    let (_, left) = space.filled();
    assert!(left <= 2 * PAGE_SIZE && left > PAGE_SIZE, "{left:#x}");
}

/// One region of a sparse file stays mapped, while others are filled and unmapped.
#[test]
fn parts_that_are_filled_and_unmapped_are_limited() {
    const PART: u64 = LEN / 2;
    const PARTS: u64 = 16;
    let Some(space) = counting(LEN) else { return };
    let memory = shrinkable_memory((1 + PARTS) * PART).unwrap();
    map(&space, &memory, 1 << 40, PAGE_SIZE).unwrap();
    // Fills one part after the other until one is refused.
    let fill = || {
        let filled = (1..=PARTS).take_while(|part| {
            match space.map(0, memory.try_clone().unwrap(), part * PART, PART, true) {
                Ok(()) => {}
                Err(MapError::LeftBehind { .. }) => return false,
                Err(error) => panic!("{error}"),
            }
            for page in 0..PART / PAGE_SIZE {
                write(&space, page * PAGE_SIZE);
            }
            assert_eq!(space.filled().0, PART);
            space.unmap(0, PART).unwrap();
            true
        });
        filled.count() as u64
    };
    // With the mapped page, a fourth part would exceed twice the limit.
    assert_eq!(fill(), 3);
    assert_eq!(space.filled(), (0, 3 * PART));
    // Memory that the monitor gives back may be allocated again at once.
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&memory, mode, 2 * PART, PARTS * PART - PART).unwrap();
    assert_eq!(space.filled(), (0, PART));
    fallocate(&memory, mode, PART, PART).unwrap();
    assert_eq!(fill(), 3);
    // Files that no region maps are forgotten in time, not at once.
    space.clear();
    map(&space, &memory, 1 << 40, PAGE_SIZE).unwrap();
    let (_, left) = space.filled();
    assert!(left > 3 * PART - PAGE_SIZE, "{left:#x}");
    assert_eq!(fill(), 0);
}

#[test]
fn a_region_that_is_mapped_again_keeps_its_count() {
    let Some(space) = counting(LEN) else { return };
    let memory = shrinkable_memory(LEN).unwrap();
    map(&space, &memory, 0, LEN / 2).unwrap();
    for page in 0..LEN / 2 / PAGE_SIZE {
        write(&space, page * PAGE_SIZE);
    }
    for _ in 0..10 {
        ftruncate(&memory, LEN / 2 - PAGE_SIZE).unwrap();
        write(&space, LEN / 2 - PAGE_SIZE);
        assert!(space.has_lost());
        ftruncate(&memory, LEN).unwrap();
        space.restore().unwrap();
    }
    assert_eq!(space.filled(), (LEN / 2, 0));
}

/// The kernel does not report missing pages of a file that is open for reading only.
#[test]
fn read_only_files_count_as_a_whole() {
    let Some(space) = counting(LEN) else { return };
    let memory = shrinkable_memory(LEN).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    let file = OwnedFd::from(File::open(path).unwrap());
    space.map(0, file, 0, LEN, false).unwrap();
    assert_eq!(space.filled(), (LEN, 0));
    assert_eq!(read(&space, 0), [0; 8]);
    space.clear();
    let (_, left) = space.filled();
    assert!(left <= PAGE_SIZE && left > 0, "{left:#x}");
}

#[test]
fn memory_is_lost_and_restored() {
    let Some(space) = counting(LEN) else { return };
    let memory = shrinkable_memory(LEN).unwrap();
    map(&space, &memory, 0, LEN).unwrap();
    write(&space, 0);
    ftruncate(&memory, PAGE_SIZE).unwrap();
    write(&space, PAGE_SIZE);
    assert_eq!(space.lost().unwrap().iova, PAGE_SIZE);
    for page in 0..LEN / PAGE_SIZE {
        write(&space, page * PAGE_SIZE);
    }
    assert_eq!(space.filled(), (PAGE_SIZE, 0));
    ftruncate(&memory, LEN).unwrap();
    space.restore().unwrap();
    write(&space, 2 * PAGE_SIZE);
    assert_eq!(space.filled(), (2 * PAGE_SIZE, 0));
    assert!(!space.has_lost());
}

#[test]
fn huge_pages_are_counted_whole() {
    let Some(space) = counting(u64::MAX) else {
        return;
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(memory) = memfd_create("guest", flags) else {
        skipped("no huge pages");
        return;
    };
    ftruncate(memory.as_fd(), 2 * HUGE).unwrap();
    map(&space, &memory, 0, 2 * HUGE).unwrap();
    write(&space, HUGE + PAGE_SIZE);
    if space.has_lost() {
        skipped("the host has no free huge page");
        assert_eq!(space.filled(), (0, 0));
        return;
    }
    assert_eq!(space.filled(), (HUGE, 0));
    assert_eq!(read(&space, HUGE), [0; 8]);
    assert_eq!(read(&space, HUGE + PAGE_SIZE), *b"anything");
}
