// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model of the DMA map, from DMA addresses to bytes of files.

use super::things::{Thing, PAGE, PAGES};
use super::{EEXIST, EINVAL, ENOMEM, ENOSPC};

/// Maximum number of bytes mapped.
pub const LIMIT: u64 = 160 * PAGE as u64;
/// Maximum number of regions mapped.
const MAX_REGIONS: usize = 128;

/// A mapped region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub iova: u64,
    pub len: u64,
    pub offset: u64,
    pub thing: Thing,
    pub writable: bool,
}

impl Region {
    fn last(&self) -> u64 {
        self.iova + (self.len - 1)
    }
}

/// A place in a file of memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub file: usize,
    pub offset: u64,
    pub writable: bool,
}

/// The DMA map of a function.
#[derive(Clone, Debug, Default)]
pub struct Map {
    pub regions: Vec<Region>,
}

impl Map {
    /// Maps a region. `has_file` is false if the client passes no file descriptor.
    pub fn map(&mut self, region: Region, has_file: bool) -> Result<(), u32> {
        let Region {
            iova,
            len,
            offset,
            thing,
            writable,
        } = region;
        // Writable memory at address 0 is RAM and needs a file. Other memory without a file is
        // ignored.
        if !has_file {
            return if iova == 0 && writable {
                Err(EINVAL)
            } else {
                Ok(())
            };
        }
        if self.regions.len() == MAX_REGIONS {
            return Err(ENOSPC);
        }
        if len > LIMIT - self.mapped() {
            return Err(ENOMEM);
        }
        let aligned = (iova | len | offset) % PAGE as u64 == 0;
        let last = len.checked_sub(1).and_then(|rest| iova.checked_add(rest));
        let fits = offset
            .checked_add(len)
            .is_some_and(|end| end <= (PAGES * PAGE) as u64);
        let allowed = thing.memory().is_some_and(|(_, may)| may || !writable);
        let (true, Some(last), true, true) = (aligned, last, fits, allowed) else {
            return Err(EINVAL);
        };
        let overlaps = |other: &Region| other.iova <= last && iova <= other.last();
        if self.regions.iter().any(overlaps) {
            return Err(EEXIST);
        }
        self.regions.push(region);
        Ok(())
    }

    /// Unmaps all regions in a range. Fails if the range covers only a part of a region.
    pub fn unmap(&mut self, iova: u64, len: u64) -> Result<(), u32> {
        let last = len.checked_sub(1).and_then(|rest| iova.checked_add(rest));
        let last = last.ok_or(EINVAL)?;
        let touches = |region: &Region| region.iova <= last && iova <= region.last();
        let inside = |region: &Region| iova <= region.iova && region.last() <= last;
        if self.regions.iter().any(|it| touches(it) && !inside(it)) {
            return Err(EEXIST);
        }
        self.regions.retain(|region| !inside(region));
        Ok(())
    }

    /// File and offset of the `len` bytes at `iova`; `None` unless all lie in one region.
    pub fn find(&self, iova: u64, len: u64) -> Option<Place> {
        let holds = |it: &&Region| it.iova <= iova && iova <= it.last();
        let region = self.regions.iter().find(holds)?;
        let at = iova - region.iova;
        let (file, _) = region.thing.memory()?;
        (len <= region.len - at).then_some(Place {
            file,
            offset: region.offset + at,
            writable: region.writable,
        })
    }

    /// Number of bytes mapped.
    pub fn mapped(&self) -> u64 {
        self.regions.iter().map(|region| region.len).sum()
    }
}
