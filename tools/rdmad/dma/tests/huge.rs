// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the request for huge pages.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use dma::testing::{guest_memory, shrinkable_memory};
use dma::DmaSpace;
use rustix::fs::fstat;

const MIB: u64 = 1 << 20;
/// The kernel's flag of a mapping for which huge pages were requested (`MADV_HUGEPAGE`).
const REQUESTED: &str = "hg";

/// Whether the kernel has transparent huge pages. Without them, it refuses requests.
fn can_request() -> bool {
    Path::new("/sys/kernel/mm/transparent_hugepage").exists()
}

/// For each mapping of the file `inode` in this process: its length, and whether it has the flag.
fn mappings(inode: u64) -> Vec<(u64, bool)> {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = Vec::new();
    let mut len = None;
    for line in smaps.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match (words.as_slice(), len) {
            (["VmFlags:", flags @ ..], Some(len)) => found.push((len, flags.contains(&REQUESTED))),
            ([range, _, _, _, file, ..], _) if !range.ends_with(':') => {
                let (start, end) = range.split_once('-').unwrap();
                let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
                len = (file.parse() == Ok(inode)).then_some(end - start);
            }
            _ => {}
        }
    }
    found
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
