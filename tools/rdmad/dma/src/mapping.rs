// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One mapped region and what its file must be.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;

use budget::Charge;
use rustix::fs::SealFlags;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::FileOffset;
use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;
use vm_memory::VolatileSlice;

use crate::DmaError;
use crate::MapError;
use crate::PAGE_SIZE;

/// `HUGETLBFS_MAGIC` (C header: linux/magic.h).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// A region of guest memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) iova: u64,
    pub(crate) memory: MmapRegion,
    pub(crate) writable: bool,
    /// For its addresses.
    _charge: Charge,
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset` on.
    pub(crate) fn new(
        iova: u64,
        fd: OwnedFd,
        offset: u64,
        len: u64,
        writable: bool,
        charge: Charge,
    ) -> Result<Self, MapError> {
        let bad = MapError::BadRange { iova, len, offset };
        if len == 0 || (iova | len | offset) % PAGE_SIZE != 0 {
            return Err(bad);
        }
        let (Some(_), Some(end), Ok(size)) = (
            iova.checked_add(len - 1),
            offset.checked_add(len),
            usize::try_from(len),
        ) else {
            return Err(bad);
        };
        check_file(&fd, end)?;

        let mut protection = rustix::mm::ProtFlags::READ;
        if writable {
            protection |= rustix::mm::ProtFlags::WRITE;
        }
        let memory = MmapRegionBuilder::new(size)
            .with_file_offset(FileOffset::new(File::from(fd), offset))
            .with_mmap_prot(protection.bits() as i32)
            .with_mmap_flags(
                (rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::NORESERVE).bits() as i32,
            )
            .build()?;
        Ok(Self {
            iova,
            memory,
            writable,
            _charge: charge,
        })
    }

    /// How many bytes there are from `iova` on, which is inside.
    #[inline]
    pub(crate) fn rest(&self, iova: u64) -> usize {
        // The part of a region whose size fits.
        self.memory.size() - (iova - self.iova) as usize
    }

    /// `len` bytes at `iova`, which is inside.
    #[inline]
    pub(crate) fn slice(&self, iova: u64, len: usize) -> Result<VolatileSlice<'_>, DmaError> {
        self.memory
            .get_slice((iova - self.iova) as usize, len)
            .map_err(|_| DmaError::Crossing { iova, len })
    }

    /// The last address; it exists even if the region ends where the address space does.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.iova + (self.memory.size() as u64 - 1)
    }
}

/// Refuses a file whose mapping could fault later.
fn check_file(fd: impl AsFd, end: u64) -> Result<(), MapError> {
    // First: it never calls into the file system, which may be one that the monitor serves and that never answers. Only
    // files of memory have seals; any other file fails the call.
    match rustix::fs::fcntl_get_seals(&fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        _ => return Err(MapError::NotSealed),
    }
    if rustix::fs::fstatfs(&fd).map_err(io::Error::from)?.f_type as u64 == HUGETLBFS_MAGIC {
        return Err(MapError::HugePages);
    }
    let size = rustix::fs::fstat(&fd).map_err(io::Error::from)?.st_size as u64;
    if end > size {
        return Err(MapError::BeyondFile { end, size });
    }
    Ok(())
}
