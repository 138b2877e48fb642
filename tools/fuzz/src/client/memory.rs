// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The files of guest memory. Each byte of a page that the device must not write has the value of
//! the file's mark, so that a write is detected.

use super::map::{Map, Place};
use super::things::{Thing, Things, MEMORIES, PAGE, PAGES};

/// The mark of each file: the byte that fills pages which must not be written.
const MARKS: [u8; MEMORIES] = [0xa5, 0x5a];

/// For each page of each file, whether it may be written.
pub struct Memory {
    open: [[bool; PAGES]; MEMORIES],
}

impl Memory {
    /// Fills all files with marks. No page may be written yet.
    pub fn new(things: &Things) -> Self {
        let memory = Self {
            open: [[true; PAGES]; MEMORIES],
        };
        memory.restore(things);
        Self {
            open: [[false; PAGES]; MEMORIES],
        }
    }

    /// Permits writes to the writable regions of this map.
    pub fn admit(&mut self, map: &Map) {
        for region in map.regions.iter().filter(|region| region.writable) {
            if let Some((file, _)) = region.thing.memory() {
                let (first, len) = (region.offset as usize / PAGE, region.len as usize / PAGE);
                self.open[file][first..first + len].fill(true);
            }
        }
    }

    /// Writes to memory as the guest.
    pub fn write(&mut self, things: &Things, at: Place, bytes: &[u8]) {
        let (first, end) = (at.offset as usize, at.offset as usize + bytes.len());
        self.open[at.file][first / PAGE..end.div_ceil(PAGE)].fill(true);
        put(things, at.file, at.offset, bytes);
    }

    /// Reads from memory as the guest.
    pub fn read(&self, things: &Things, at: Place, bytes: &mut [u8]) {
        let read = rustix::io::pread(things.get(Thing(at.file)), &mut *bytes, at.offset);
        assert_eq!(read, Ok(bytes.len()), "memory is read");
    }

    /// Panics if a page that must not be written has changed. Then fills the pages that were open
    /// for writes with marks, and permits no further writes.
    pub fn end(&mut self, things: &Things) {
        let mut bytes = [0; PAGES * PAGE];
        for (file, open) in self.open.iter().enumerate() {
            let at = Place {
                file,
                offset: 0,
                writable: true,
            };
            self.read(things, at, &mut bytes);
            for (page, _) in open.iter().enumerate().filter(|(_, open)| !**open) {
                let shown = &bytes[page * PAGE..][..PAGE];
                let whole = shown.iter().all(|byte| *byte == MARKS[file]);
                assert!(
                    whole,
                    "no map opens page {page} of file {file}: it was written"
                );
            }
        }
        self.restore(things);
        self.open = [[false; PAGES]; MEMORIES];
    }

    fn restore(&self, things: &Things) {
        for (file, open) in self.open.iter().enumerate() {
            for (page, _) in open.iter().enumerate().filter(|(_, open)| **open) {
                put(things, file, (page * PAGE) as u64, &[MARKS[file]; PAGE]);
            }
        }
    }
}

fn put(things: &Things, file: usize, offset: u64, bytes: &[u8]) {
    let written = rustix::io::pwrite(things.get(Thing(file)), bytes, offset);
    assert_eq!(written, Ok(bytes.len()), "memory is written");
}
