// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of advice to the kernel: huge pages, and core dumps.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use dma::testing::{guest_memory, shrinkable_memory};
use dma::DmaSpace;
use rustix::fs::fstat;

const MIB: u64 = 1 << 20;
/// The kernel's flag of a mapping for which huge pages were requested (`MADV_HUGEPAGE`).
const REQUESTED: &str = "hg";
/// The kernel's flag of a mapping that core dumps leave out (`MADV_DONTDUMP`).
const NOT_DUMPED: &str = "dd";

/// Whether the kernel has transparent huge pages. Without them, it refuses requests.
fn can_request() -> bool {
    Path::new("/sys/kernel/mm/transparent_hugepage").exists()
}

/// A mapping of this process.
struct Mapped {
    start: u64,
    len: u64,
    inode: u64,
    flags: Vec<String>,
}

impl Mapped {
    fn all() -> Vec<Self> {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut all = Vec::<Self>::new();
        for line in smaps.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words.as_slice() {
                ["VmFlags:", flags @ ..] => {
                    let flags = flags.iter().map(|flag| (*flag).to_owned());
                    all.last_mut().unwrap().flags = flags.collect();
                }
                [range, _, _, _, inode, ..] if !range.ends_with(':') => {
                    let (start, end) = range.split_once('-').unwrap();
                    let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
                    all.push(Self {
                        start,
                        len: end - start,
                        inode: inode.parse().unwrap(),
                        flags: Vec::new(),
                    });
                }
                _ => {}
            }
        }
        all
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|other| other == flag)
    }
}

/// For each mapping of the file `inode` in this process: its length, and whether huge pages were
/// requested for it.
fn mappings(inode: u64) -> Vec<(u64, bool)> {
    let all = Mapped::all().into_iter();
    let ours = all.filter(|mapping| mapping.inode == inode);
    ours.map(|mapping| (mapping.len, mapping.has(REQUESTED)))
        .collect()
}

#[test]
fn huge_pages_are_requested_where_they_fit() {
    let space = DmaSpace::new();
    let fd = guest_memory(8 * MIB).unwrap();
    let inode = fstat(&fd).unwrap().st_ino;
    let dup = fd.as_fd().try_clone_to_owned().unwrap();
    space.map(0, fd, 0, 4 * MIB, true).unwrap();
    space.map(4 * MIB, dup, 4 * MIB, MIB, true).unwrap();
    let mut found = mappings(inode);
    found.sort();
    assert_eq!(found, [(MIB, false), (4 * MIB, can_request())]);
}

/// A device that is reset after a loss of memory maps the memory again.
#[test]
fn restored_memory_requests_huge_pages_again() {
    let space = DmaSpace::new();
    let fd = shrinkable_memory(4 * MIB).unwrap();
    let inode = fstat(&fd).unwrap().st_ino;
    let file = fd.as_fd().try_clone_to_owned().unwrap();
    space.map(0, fd, 0, 4 * MIB, true).unwrap();
    rustix::fs::ftruncate(&file, 0).unwrap();
    let view = space.enter();
    view.slice_mut(0, 8).unwrap().write(0, &[1; 8]).unwrap();
    drop(view);
    assert!(space.has_lost());
    rustix::fs::ftruncate(&file, 4 * MIB).unwrap();
    space.restore().unwrap();
    assert_eq!(mappings(inode), [(4 * MIB, can_request())]);
}

#[test]
fn guest_memory_is_not_in_core_dumps() {
    let space = DmaSpace::new();
    let fd = shrinkable_memory(MIB).unwrap();
    let inode = fstat(&fd).unwrap().st_ino;
    let file = fd.as_fd().try_clone_to_owned().unwrap();
    space.map(0, fd, 0, MIB, true).unwrap();
    let mut all = Mapped::all().into_iter();
    let whole = all.find(|mapping| mapping.inode == inode).unwrap();
    assert!(whole.has(NOT_DUMPED));
    // Memory that replaces lost memory holds data of the VM too.
    rustix::fs::ftruncate(&file, 0).unwrap();
    let view = space.enter();
    let slice = view.slice_mut(0, MIB as usize).unwrap();
    for page in (0..MIB as usize).step_by(4096) {
        slice.write(page, &[1; 8]).unwrap();
    }
    let all = Mapped::all().into_iter();
    let range = whole.start..whole.start + whole.len;
    let parts: Vec<_> = all.filter(|part| range.contains(&part.start)).collect();
    assert!(parts
        .iter()
        .all(|part| part.inode != inode && part.has(NOT_DUMPED)));
    assert_eq!(parts.iter().map(|part| part.len).sum::<u64>(), MIB);
}
