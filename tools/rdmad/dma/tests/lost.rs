// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Guest memory whose pages the kernel can't provide is lost to its VM. The process survives.

use std::env;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dma::testing::{guest_memory, memfd};
use dma::{DmaSpace, MapError, PAGE_SIZE};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags, SealFlags};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

const IOVA: u64 = 0x10_0000;
const HUGE: u64 = 2 << 20;

fn read(space: &DmaSpace, iova: u64) -> [u8; 8] {
    let mut data = [0xaa; 8];
    let view = space.enter();
    view.slice(iova, 8).unwrap().read(0, &mut data).unwrap();
    data
}

fn write(space: &DmaSpace, iova: u64, data: &[u8]) {
    let view = space.enter();
    let slice = view.slice_mut(iova, data.len()).unwrap();
    slice.write(0, data).unwrap();
}

/// A space that maps `pages` pages of a file that can shrink, from the file's second page on.
fn shrinkable(pages: u64) -> (DmaSpace, OwnedFd) {
    let file = memfd((1 + pages) * PAGE_SIZE, SealFlags::empty()).unwrap();
    let space = DmaSpace::new();
    let copy = file.try_clone().unwrap();
    let len = pages * PAGE_SIZE;
    space.map(IOVA, copy, PAGE_SIZE, len, true).unwrap();
    (space, file)
}

fn is_readable(event: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(event, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn a_truncated_file_is_lost_and_restored() {
    let (space, file) = shrinkable(4);
    let (other, _) = shrinkable(1);
    let event = space.loss_event().unwrap();
    write(&space, IOVA, b"retained");
    write(&space, IOVA + 2 * PAGE_SIZE, b"forgotten");
    ftruncate(&file, 2 * PAGE_SIZE).unwrap();
    assert!(!space.has_lost() && !is_readable(&event));

    assert_eq!(read(&space, IOVA + 2 * PAGE_SIZE + 16), [0; 8]);
    let lost = space.lost().unwrap();
    assert_eq!(lost.iova, IOVA + 2 * PAGE_SIZE);
    assert_eq!(lost.offset, Some(3 * PAGE_SIZE));
    assert!(
        lost.to_string().contains("0x102000, offset 0x3000 of"),
        "{lost}"
    );
    assert!(is_readable(&event));
    write(&space, IOVA + 3 * PAGE_SIZE, b"anything");
    let view = space.enter();
    let word = view.slice_mut(IOVA + PAGE_SIZE, 8).unwrap();
    word.fetch_add_u64(0, 1).unwrap();
    drop(view);
    assert_eq!(space.lost(), Some(lost), "the first one counts");
    assert_eq!(read(&space, IOVA), *b"retained");
    assert!(!other.has_lost());

    // `restore` fails as long as the file is too short.
    assert!(matches!(space.restore(), Err(MapError::BeyondFile { .. })));
    assert_eq!(space.lost(), Some(lost));
    ftruncate(&file, 5 * PAGE_SIZE).unwrap();
    space.restore().unwrap();
    assert!(!space.has_lost() && !is_readable(&event));
    assert_eq!(read(&space, IOVA), *b"retained");
    let twin = DmaSpace::new();
    twin.map(0, file, 0, 5 * PAGE_SIZE, true).unwrap();
    write(&space, IOVA + 2 * PAGE_SIZE, b"as usual");
    assert_eq!(read(&twin, 3 * PAGE_SIZE), *b"as usual");
    assert!(!space.has_lost());
}

/// A copy by one instruction, which a missing page interrupts, goes on after the page.
#[test]
fn a_long_copy_passes_over_lost_pages() {
    const PAGES: u64 = 16;
    let len = (PAGES * PAGE_SIZE) as usize;
    for is_source in [true, false] {
        let (lost, file) = shrinkable(PAGES);
        let (whole, _kept) = shrinkable(PAGES);
        let (from, to) = match is_source {
            true => (&lost, &whole),
            false => (&whole, &lost),
        };
        write(from, IOVA, &vec![1; len]);
        write(to, IOVA, &vec![2; len]);
        ftruncate(&file, 9 * PAGE_SIZE).unwrap();
        let (from, to) = (from.enter(), to.enter());
        let target = to.slice_mut(IOVA, len).unwrap();
        assert_eq!(from.slice(IOVA, len).unwrap().copy_to(&target), len);
        let mut bytes = vec![3; len];
        target.read(0, &mut bytes).unwrap();
        let (there, missing) = bytes.split_at(8 * PAGE_SIZE as usize);
        assert!(there.iter().all(|byte| *byte == 1));
        // A spare page has zeros, and takes what is stored in it.
        let expected = if is_source { 0 } else { 1 };
        assert!(missing.iter().all(|byte| *byte == expected));
        assert_eq!(lost.lost().unwrap().iova, IOVA + 8 * PAGE_SIZE);
    }
}

#[test]
fn an_empty_map_has_lost_nothing() {
    let (space, file) = shrinkable(1);
    ftruncate(&file, 0).unwrap();
    read(&space, IOVA);
    assert!(space.has_lost());
    let event = space.loss_event().unwrap();
    assert!(is_readable(&event), "the event is younger than the loss");
    space.clear();
    assert!(!space.has_lost() && !is_readable(&event));
    let file = guest_memory(PAGE_SIZE).unwrap();
    space.map(IOVA, file, 0, PAGE_SIZE, true).unwrap();
    write(&space, IOVA, b"the next");
    assert_eq!(read(&space, IOVA), *b"the next");
    assert!(!space.has_lost());
}

#[test]
fn a_read_only_region_is_lost_too() {
    let file = memfd(PAGE_SIZE, SealFlags::empty()).unwrap();
    let space = DmaSpace::new();
    let copy = file.try_clone().unwrap();
    space.map(0, copy, 0, PAGE_SIZE, false).unwrap();
    ftruncate(&file, 0).unwrap();
    assert_eq!(read(&space, 0), [0; 8]);
    assert_eq!(space.lost().unwrap().iova, 0);
}

/// Number of huge pages that the host has free or may allocate.
fn free_huge_pages() -> u64 {
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
    let number = |name: &str| -> u64 {
        let text = fs::read_to_string(format!("{pool}{name}"));
        text.map_or(0, |text| text.trim().parse().unwrap())
    };
    number("free_hugepages") + number("nr_overcommit_hugepages")
}

#[test]
fn huge_pages_are_mapped_whole_and_lost_whole() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = memfd_create("guest", flags).unwrap();
    ftruncate(&file, 2 * HUGE).unwrap();
    let space = DmaSpace::new();
    let map = |iova, offset, len| {
        let file = file.try_clone().unwrap();
        space.map(iova, file, offset, len, true)
    };
    // Two regions of one file: QEMU splits memory in this way around the hole below 1 MiB.
    map(0, 0, 0xa_0000).unwrap();
    map(0xc_0000, 0xc_0000, 2 * HUGE - 0xc_0000).unwrap();
    assert!(matches!(
        map(2 * HUGE, HUGE, HUGE + PAGE_SIZE),
        Err(MapError::BeyondFile { .. })
    ));
    assert_eq!(space.in_huge_pages(), 2 * HUGE - 0x2_0000);
    let small = guest_memory(PAGE_SIZE).unwrap();
    space.map(4 * HUGE, small, 0, PAGE_SIZE, true).unwrap();
    assert_eq!(space.in_huge_pages(), 2 * HUGE - 0x2_0000);
    space.unmap(0, 0xa_0000).unwrap();
    assert_eq!(space.in_huge_pages(), 2 * HUGE - 0xc_0000);
    map(0, 0, 0xa_0000).unwrap();
    let whole = DmaSpace::new();
    let twin = file.try_clone().unwrap();
    whole.map(0, twin, 0, 2 * HUGE, true).unwrap();
    assert!(space.enter().slice(0xa_0000, 1).is_err());
    assert_eq!(
        space.enter().contiguous(0xc_0000, usize::MAX),
        Ok(0x34_0000)
    );

    let is_missing = free_huge_pages() < 2;
    for (iova, data) in [
        (0xc_0000, b"higher 1"),
        (0x9_fff8, b"lower  2"),
        (2 * HUGE - 8, b"last   3"),
    ] {
        write(&space, iova, data);
        assert_eq!(read(&space, iova), *data);
        assert_eq!(space.has_lost(), is_missing);
        if !is_missing {
            assert_eq!(read(&whole, iova), *data);
        }
    }
    if is_missing {
        assert_eq!(space.lost().unwrap().iova, 0xc_0000);
        // This read does not fault: the spare page replaces the whole huge page.
        assert_eq!(read(&space, 0x10_0000), [0; 8]);
        space.restore().unwrap();
        assert!(!space.has_lost());
        read(&space, 0x10_0000);
        assert_eq!(space.lost().unwrap().iova, 0x10_0000, "lost again");
    }
}

#[test]
fn threads_lose_memory_while_others_map_and_unmap() {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = || {
            let space = DmaSpace::new();
            while !ends.load(Ordering::Relaxed) {
                for region in 0..4 {
                    let file = guest_memory(PAGE_SIZE << region).unwrap();
                    let len = PAGE_SIZE << region;
                    space.map(region << 20, file, 0, len, true).unwrap();
                }
                space.clear();
                assert!(!space.has_lost());
            }
        };
        let others = [scope.spawn(busy), scope.spawn(busy)];
        for round in 0..50 {
            const PAGES: u64 = 16;
            let (space, file) = shrinkable(PAGES);
            ftruncate(&file, 0).unwrap();
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for page in 0..PAGES {
                            read(&space, IOVA + page * PAGE_SIZE);
                        }
                    });
                }
            });
            assert!(space.has_lost(), "round {round}");
        }
        ends.store(true, Ordering::Relaxed);
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn a_fault_elsewhere_ends_the_process() {
    for test in [
        "ends_by_a_fault_elsewhere",
        "ends_by_a_signal_that_was_sent",
    ] {
        let output = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(7), "{test}: {told}");
    }
}

#[test]
#[ignore = "ends its process"]
fn ends_by_a_fault_elsewhere() {
    // First the handler is installed and replaces a page.
    let (space, file) = shrinkable(1);
    ftruncate(&file, 0).unwrap();
    read(&space, IOVA);
    let file = fs::File::from(memfd(PAGE_SIZE, SealFlags::empty()).unwrap());
    let copy = file.as_fd().try_clone_to_owned().unwrap();
    let offset = FileOffset::new(file, 0);
    let region = MmapRegion::<()>::from_file(offset, PAGE_SIZE as usize).unwrap();
    ftruncate(&copy, 0).unwrap();
    let slice = region.get_slice(0, 8).unwrap();
    let _ = slice.read_obj::<u64>(0);
}

#[test]
#[ignore = "ends its process"]
fn ends_by_a_signal_that_was_sent() {
    let (space, _file) = shrinkable(1);
    read(&space, IOVA);
    // The first signal makes the runtime's handler restore the default action, so a later signal
    // ends the process. Signals that are sent before the first one is handled have no effect.
    for _ in 0..100 {
        let kill = Command::new("sh")
            .args(["-c", "kill -BUS $PPID"])
            .status()
            .unwrap();
        assert!(kill.success());
    }
}
