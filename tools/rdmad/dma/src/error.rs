// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Why memory could not be mapped or accessed.

/// An access that the DMA map does not allow. The guest causes it, and only the guest gets an
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// No region holds the first byte.
    #[error("DMA address {iova:#x} is not mapped")]
    Unmapped {
        /// First address of the access.
        iova: u64,
    },
    /// A region holds the first byte but not the last.
    #[error("{len} bytes at DMA address {iova:#x} exceed their region")]
    Crossing {
        /// First address of the access.
        iova: u64,
        /// Length of the access.
        len: usize,
    },
    /// The region may only be read.
    #[error("DMA address {iova:#x} is read-only")]
    ReadOnly {
        /// First address of the access.
        iova: u64,
    },
    /// An offset or length beyond the slice, or two lengths that differ.
    #[error("access beyond the slice")]
    OutOfBounds,
    /// An atomic access to a word that is not aligned to its size.
    #[error("misaligned atomic access")]
    Misaligned,
}

/// Guest memory that the host can't provide, or can't provide any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "guest memory at DMA address {iova:#x}{} is not available (memory error, no free huge page, \
     commit limit, or a truncated file); make sure that the host has the memory, then reset the \
     device or restart the VM",
    offset.map_or_else(String::new, |offset| format!(", offset {offset:#x} of its file,"))
)]
pub struct LostMemory {
    /// DMA address of the first missing page.
    pub iova: u64,
    /// Offset of that page in the region's file, if the region is still mapped.
    pub offset: Option<u64>,
}

/// Why a region can't be mapped or unmapped at the monitor's request.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The length is zero, or address, length or offset is misaligned or exceeds the address space.
    #[error("bad region: {len:#x} bytes at DMA address {iova:#x}, file offset {offset:#x}")]
    BadRange {
        /// DMA address.
        iova: u64,
        /// Length in bytes.
        len: u64,
        /// Offset in the file.
        offset: u64,
    },
    /// The new region overlaps a mapped one, or the range to unmap covers only a part of a region.
    #[error("{len:#x} bytes at DMA address {iova:#x} overlap another region")]
    Overlap {
        /// DMA address.
        iova: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The map is full.
    #[error("more than {} regions", crate::MAX_REGIONS)]
    TooMany,
    /// The region would exceed the memory limit of the VM.
    #[error(
        "{len:#x} bytes more than the {mapped:#x} that are mapped exceed the limit of {limit:#x}: \
         raise it (guest-memory=) if the VM has that much"
    )]
    TooMuch {
        /// Length of the region in bytes.
        len: u64,
        /// Number of bytes that are mapped already.
        mapped: u64,
        /// Limit of the sum of `len` and `mapped`.
        limit: u64,
    },
    /// The daemon has allocated too much memory for the VM in what is unmapped now.
    #[error(
        "the daemon has allocated {left:#x} bytes for this VM in memory that was unmapped, and \
         they may still exist: with the VM's memory they exceed twice the limit of {limit:#x} \
         (guest-memory=); unmapped files are forgotten within some hours, add prealloc=on to the \
         VM's memory backend"
    )]
    LeftBehind {
        /// Number of bytes that were allocated.
        left: u64,
        /// Limit of the VM's memory.
        limit: u64,
    },
    /// The region has no file descriptor: its memory is private to the monitor.
    #[error("it is not shared")]
    NoFile,
    /// The file is not in memory: its file system could block an access.
    #[error("its file is neither a memfd nor on tmpfs or hugetlbfs")]
    NotMemory,
    /// The VMs of this process have the maximum number of regions.
    #[error("all VMs map {} regions already", crate::fault::MAX_GUARDED)]
    TooManyOfAll,
    /// The region ends beyond the file.
    #[error("region ends at {end:#x}, beyond the file's {size:#x} bytes")]
    BeyondFile {
        /// End of the region in the file.
        end: u64,
        /// Size of the file.
        size: u64,
    },
    /// The file can't be examined.
    #[error("can't examine guest memory: {0}")]
    File(#[from] std::io::Error),
    /// The file can't be mapped.
    #[error("can't map guest memory: {0}")]
    Map(#[from] vm_memory::mmap::MmapRegionError),
}
