// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the DMA map: mapping, refused regions, and changes that wait for views.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dma::testing::{guest_memory, memfd, shrinkable_memory, unmapped_by};
use dma::{DmaError, DmaSpace, DmaView, MapError, MAX_REGIONS};
use rustix::fs::SealFlags;

const MIB: u64 = 1 << 20;

#[test]
fn regions_show_the_file_at_its_offset() {
    let fd = guest_memory(2 * MIB).unwrap();
    let space = DmaSpace::new();
    let dup = fd.as_fd().try_clone_to_owned().unwrap();
    space.map(0x1_0000_0000, fd, MIB, MIB, true).unwrap();
    space.map(0, dup, 0, 2 * MIB, true).unwrap();

    let view = space.enter();
    view.slice_mut(0x1_0000_0010, 5)
        .unwrap()
        .write(0, b"hello")
        .unwrap();
    let mut out = [0; 5];
    view.slice(MIB + 0x10, 5)
        .unwrap()
        .read(0, &mut out)
        .unwrap();
    assert_eq!(&out, b"hello");
}

#[test]
fn access_stays_inside_regions() {
    let space = DmaSpace::anonymous(0x1000, 0x2000);
    let view = space.enter();
    assert_eq!(
        view.slice(0xfff, 1).unwrap_err(),
        DmaError::Unmapped { iova: 0xfff }
    );
    assert_eq!(
        view.slice(0x3000, 1).unwrap_err(),
        DmaError::Unmapped { iova: 0x3000 }
    );
    assert_eq!(
        view.slice(0x2fff, 2).unwrap_err(),
        DmaError::Crossing {
            iova: 0x2fff,
            len: 2
        }
    );
    assert!(view.slice(0x2000, usize::MAX).is_err());
    assert_eq!(view.slice(0x1000, 0x2000).unwrap().len(), 0x2000);
    assert_eq!(view.contiguous(0x2ff0, 100), Ok(16));
    assert_eq!(view.contiguous(0x1000, 100), Ok(100));
    assert!(view.contiguous(u64::MAX, 1).is_err());

    let slice = view.slice_mut(0x1000, 16).unwrap();
    assert_eq!(slice.write(9, &[0; 8]), Err(DmaError::OutOfBounds));
    assert_eq!(slice.read(usize::MAX, &mut [0]), Err(DmaError::OutOfBounds));
    assert!(slice.subslice(16, 1).is_err());
    assert_eq!(
        slice.load_u32(2, Ordering::Relaxed),
        Err(DmaError::Misaligned)
    );
    assert_eq!(
        slice.load_u64(16, Ordering::Relaxed),
        Err(DmaError::OutOfBounds)
    );
    assert_eq!(slice.fetch_add_u64(4, 1), Err(DmaError::Misaligned));
}

#[test]
fn pieces_of_a_region_end_where_it_ends() {
    let space = DmaSpace::anonymous(0x1000, 0x2000);
    space
        .map(0x3000, guest_memory(4096).unwrap(), 0, 4096, false)
        .unwrap();
    let view = space.enter();
    let [writable, firm] = [0x2000, 0x3fff].map(|iova| view.region_at(iova).unwrap());
    for (region, held, others) in [
        (writable, [0x1000, 0x2fff], [0, 0xfff, 0x3000, u64::MAX]),
        (firm, [0x3000, 0x3fff], [0x2fff, 0x4000, 0x1000, u64::MAX]),
    ] {
        assert!(held.into_iter().all(|iova| region.holds(iova)));
        for iova in others {
            assert!(!region.holds(iova));
            let unmapped = DmaError::Unmapped { iova };
            assert_eq!(region.piece(iova, 1).unwrap_err(), unmapped);
            assert_eq!(region.piece_mut(iova, 1).unwrap_err(), unmapped);
        }
    }
    assert_eq!(writable.piece(0x2ff0, 100).unwrap().len(), 16);
    assert_eq!(writable.piece(0x1000, usize::MAX).unwrap().len(), 0x2000);
    let room = writable.piece_mut(0x1ffe, 4).unwrap();
    room.write(0, &[1, 2, 3, 4]).unwrap();
    let mut out = [0; 2];
    view.slice(0x2000, 2).unwrap().read(0, &mut out).unwrap();
    assert_eq!(out, [3, 4]);
    assert_eq!(
        firm.piece_mut(0x3000, 1).unwrap_err(),
        DmaError::ReadOnly { iova: 0x3000 }
    );
    assert!(view.region_at(0x4000).is_err());
}

#[test]
fn read_only_regions_are_never_written() {
    let space = DmaSpace::new();
    space
        .map(0, guest_memory(4096).unwrap(), 0, 4096, false)
        .unwrap();
    let view = space.enter();
    assert_eq!(
        view.slice(8, 8).unwrap().load_u64(0, Ordering::Acquire),
        Ok(0)
    );
    assert_eq!(
        view.slice_mut(8, 8).unwrap_err(),
        DmaError::ReadOnly { iova: 8 }
    );
}

#[test]
fn atomics_and_copies_between_two_vms() {
    let (a, b) = (
        DmaSpace::anonymous(0, 8192),
        DmaSpace::anonymous(4096, 8192),
    );
    let (a, b) = (a.enter(), b.enter());
    let word = a.slice_mut(0, 8).unwrap();
    assert_eq!(word.fetch_add_u64(0, 7), Ok(0));
    assert_eq!(word.compare_exchange_u64(0, 1, 2), Ok(7));
    assert_eq!(word.compare_exchange_u64(0, 7, 9), Ok(7));
    assert_eq!(word.copy_to(&b.slice_mut(4096, 8).unwrap()), 8);
    assert_eq!(
        b.slice(4096, 8).unwrap().load_u64(0, Ordering::Relaxed),
        Ok(9)
    );
    let longer = b.slice_mut(4096, 9).unwrap();
    longer.write(0, &[3; 9]).unwrap();
    assert_eq!(word.copy_to(&longer), 8, "what the shorter one has");
    let mut out = [0; 9];
    longer.read(0, &mut out).unwrap();
    assert_eq!(out, [9, 0, 0, 0, 0, 0, 0, 0, 3]);
    assert_eq!(longer.copy_to(&word), 8);

    let data: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
    b.slice_mut(4096, 4096).unwrap().write(0, &data).unwrap();
    b.slice(4096, 4096)
        .unwrap()
        .copy_to(&b.slice_mut(4097, 4096).unwrap());
    let mut out = vec![0; 4096];
    b.slice(4097, 4096).unwrap().read(0, &mut out).unwrap();
    assert_eq!(out, data, "an overlapping copy moves the bytes");
}

#[test]
fn only_files_of_memory_are_mapped() {
    let space = DmaSpace::new();
    let map = |file: OwnedFd, offset, len| space.map(0, file, offset, len, true);
    for (file, what) in [
        (File::open("/proc/self/exe").unwrap(), "a program"),
        (File::open("/dev/zero").unwrap(), "a device"),
        (
            File::open("/proc/self/maps").unwrap(),
            "a file of the kernel",
        ),
    ] {
        let refused = space.map(0, file.into(), 0, 4096, false);
        assert!(
            matches!(refused, Err(MapError::NotMemory)),
            "{what}: {refused:?}"
        );
    }
    let short = guest_memory(MIB).unwrap();
    assert!(matches!(
        map(short, 4096, MIB),
        Err(MapError::BeyondFile {
            end: 0x10_1000,
            size: MIB
        })
    ));
    assert!(space.enter().is_empty());
    map(memfd(MIB, SealFlags::GROW).unwrap(), 0, MIB).unwrap();
    space.clear();
    // A file on tmpfs, which QEMU's memory-backend-file may use.
    let path = format!("/dev/shm/rdmad-test-{}", std::process::id());
    let options = &mut File::options();
    let file = options.read(true).write(true).create_new(true).open(&path);
    std::fs::remove_file(&path).unwrap();
    let file = file.unwrap();
    file.set_len(MIB).unwrap();
    map(file.into(), 0, MIB).unwrap();
}

#[test]
fn what_is_mapped_is_limited_and_comes_back() {
    let space = DmaSpace::with_limit(3 * MIB);
    let map = |iova, len| space.map(iova, guest_memory(len).unwrap(), 0, len, true);
    map(0, 2 * MIB).unwrap();
    let error = map(2 * MIB, 2 * MIB).unwrap_err();
    assert!(
        matches!(error, MapError::TooMuch { len, mapped, limit }
            if (len, mapped, limit) == (2 * MIB, 2 * MIB, 3 * MIB)),
        "{error}"
    );
    // A mapping that fails for another reason charges nothing.
    assert!(map(MIB, MIB).is_err());
    map(2 * MIB, MIB).unwrap();
    assert_eq!(space.mapped(), (3 * MIB, 3 * MIB));
    space.unmap(0, 2 * MIB).unwrap();
    map(0, MIB).unwrap();
    space.clear();
    assert_eq!(space.mapped(), (0, 3 * MIB));
}

#[test]
fn bad_ranges_are_refused() {
    let space = DmaSpace::anonymous(MIB, MIB);
    let map =
        |iova, offset, len| space.map(iova, guest_memory(4 * MIB).unwrap(), offset, len, true);
    for (iova, offset, len) in [
        (0, 0, 0),
        (1, 0, 4096),
        (0, 1, 4096),
        (0, 0, 4095),
        (u64::MAX - 4095, 0, 8192),
        (0, u64::MAX - 4095, 4096),
    ] {
        assert!(
            matches!(map(iova, offset, len), Err(MapError::BadRange { .. })),
            "{iova:#x} {offset:#x} {len:#x}"
        );
    }
    for (iova, len) in [
        (MIB, 4096),
        (0, 2 * MIB),
        (2 * MIB - 4096, 8192),
        (0, 3 * MIB),
    ] {
        assert!(matches!(map(iova, 0, len), Err(MapError::Overlap { .. })));
    }
    assert!(matches!(space.unmap(0, 0), Err(MapError::BadRange { .. })));
    assert!(matches!(
        space.unmap(MIB, 4096),
        Err(MapError::Overlap { .. })
    ));
    assert!(matches!(
        space.unmap(2 * MIB - 4096, MIB),
        Err(MapError::Overlap { .. })
    ));
    assert_eq!(space.unmap(4 * MIB, MIB).unwrap(), 0);
    map(u64::MAX - 4095, 0, 4096).unwrap();
    assert_eq!(space.enter().contiguous(u64::MAX - 1, 10), Ok(2));
    assert_eq!(space.unmap(0, u64::MAX).unwrap_err().to_string(), {
        MapError::Overlap {
            iova: 0,
            len: u64::MAX,
        }
        .to_string()
    });
    assert_eq!(space.unmap(MIB, u64::MAX - MIB + 1).unwrap(), 2);
}

#[test]
fn the_map_is_bounded() {
    let space = DmaSpace::new();
    let fd = guest_memory(4096).unwrap();
    let map = |i: usize| {
        let fd = fd.as_fd().try_clone_to_owned().unwrap();
        space.map(4096 * i as u64, fd, 0, 4096, true)
    };
    for i in (0..MAX_REGIONS).rev() {
        map(i).unwrap();
    }
    assert!(matches!(map(MAX_REGIONS), Err(MapError::TooMany)));
    assert_eq!(space.unmap(0, 2 * 4096).unwrap(), 2);
    map(MAX_REGIONS).unwrap();
}

/// Checks that `change` returns as soon as all views of the old map are dropped, even if there are
/// views of the new map. `is_changed` returns whether a view is of the new map.
fn waits_for_older_views(
    change: impl FnOnce(&DmaSpace) + Send + 'static,
    is_changed: impl Fn(&DmaView) -> bool,
) {
    let space = Arc::new(DmaSpace::anonymous(0, MIB));
    let oldest = space.enter();
    let released = Arc::new(AtomicBool::new(false));
    let changer = {
        let (space, released) = (space.clone(), released.clone());
        thread::spawn(move || {
            change(&space);
            released.load(Ordering::SeqCst)
        })
    };
    while !is_changed(&space.enter()) {
        thread::yield_now();
    }
    let newer = space.enter();
    assert!(!changer.is_finished());
    oldest
        .slice(0, 4096)
        .unwrap()
        .read(0, &mut [0; 4096])
        .unwrap();
    assert!(!is_changed(&oldest));
    released.store(true, Ordering::SeqCst);
    drop(oldest);
    assert!(
        changer.join().unwrap(),
        "it returned before the old view was gone"
    );
    assert!(is_changed(&newer));
}

#[test]
fn unmap_waits_for_older_views_only() {
    waits_for_older_views(
        |space| assert_eq!(space.unmap(0, MIB).unwrap(), 1),
        |view| view.slice(0, 1).is_err(),
    );
}

/// A worker whose view lacks the new memory would fail work requests that use it.
#[test]
fn map_waits_for_older_views_only() {
    waits_for_older_views(
        |space| {
            let memory = guest_memory(MIB).unwrap();
            space.map(MIB, memory, 0, MIB, true).unwrap();
        },
        |view| view.slice(MIB, 1).is_ok(),
    );
}

#[test]
fn workers_race_with_map_and_unmap() {
    let space = Arc::new(DmaSpace::anonymous(0, MIB));
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (space, stop) = (space.clone(), stop.clone());
            thread::spawn(move || {
                let mut hits = 0u32;
                while !stop.load(Ordering::Relaxed) || hits == 0 {
                    let view = space.enter();
                    if let Ok(slice) = view.slice_mut(MIB, 64) {
                        slice.write(0, &[0xa5; 64]).unwrap();
                        hits += 1;
                    }
                    view.slice(0, 64).unwrap();
                }
            })
        })
        .collect();
    for _ in 0..2000 {
        space
            .map(MIB, guest_memory(MIB).unwrap(), 0, MIB, true)
            .unwrap();
        assert_eq!(space.unmap(MIB, MIB).unwrap(), 1);
    }
    space
        .map(MIB, guest_memory(MIB).unwrap(), 0, MIB, true)
        .unwrap();
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().unwrap();
    }
    space.clear();
    assert!(space.enter().is_empty());
}

/// A worker that ends the last view of an old map does not unmap the VM's memory.
#[test]
fn the_thread_that_changes_the_map_unmaps() {
    const REMOVED: u64 = 0x5_0000_0000;
    const RESTORED: u64 = 0x6_0000_0000;
    const CLEARED: u64 = 0x7_0000_0000;
    let space = DmaSpace::new();
    let file = shrinkable_memory(MIB).unwrap();
    let copy = file.as_fd().try_clone_to_owned().unwrap();
    space.map(RESTORED, copy, 0, MIB, true).unwrap();
    for iova in [REMOVED, CLEARED] {
        space
            .map(iova, guest_memory(MIB).unwrap(), 0, MIB, true)
            .unwrap();
    }
    rustix::fs::ftruncate(&file, 0).unwrap();
    let view = space.enter();
    let lost = view.slice_mut(RESTORED, 8).unwrap();
    lost.write(0, &[1; 8]).unwrap();
    drop(view);
    rustix::fs::ftruncate(&file, MIB).unwrap();
    let unmap = || {
        space.unmap(REMOVED, MIB).unwrap();
    };
    let restore = || space.restore().unwrap();
    let clear = || space.clear();
    let changes: [(u64, &(dyn Fn() + Sync)); 3] =
        [(REMOVED, &unmap), (RESTORED, &restore), (CLEARED, &clear)];
    for (iova, change) in changes {
        let is_old = |view: &DmaView| view.generation() != space.enter().generation();
        let view = space.enter();
        let changer = thread::scope(|scope| {
            let changer = scope.spawn(|| {
                change();
                thread::current().id()
            });
            while !is_old(&view) {
                thread::yield_now();
            }
            drop(view);
            changer.join().unwrap()
        });
        // Restoring maps all regions again, so an earlier changer may have unmapped this one too.
        let threads = unmapped_by(iova);
        assert_eq!(threads.last(), Some(&changer));
        assert!(!threads.contains(&thread::current().id()));
    }
}

/// A VM whose last change took long waits before it maps more.
#[test]
fn a_slow_change_delays_the_next_mapping() {
    let space = DmaSpace::new();
    let from = space.charge_change(Duration::from_millis(20)).unwrap();
    space
        .map(0, guest_memory(MIB).unwrap(), 0, MIB, true)
        .unwrap();
    assert!(Instant::now() >= from);
}

/// Other VMs change their mappings while a VM is unmapped.
#[test]
fn a_vm_is_unmapped_in_many_changes() {
    const LEN: u64 = 2 << 30;
    let space = DmaSpace::anonymous(0, LEN);
    let mapped = space.changes();
    space.clear();
    let changes = (space.changes() - mapped) as u64;
    assert!(changes >= LEN / (256 * MIB), "{changes}");
}
