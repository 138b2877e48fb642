// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One mapped region, and the checks of its file.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use budget::Charge;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, VolatileMemory, VolatileSlice};

use crate::fault::{GuardedMapping, Loss};
use crate::pace::Pace;
use crate::{advice, DmaError, MapError, PAGE_SIZE};

/// Number of bytes that are unmapped in one change. Removing their page tables takes much less
/// than the free time of a change ([`Pace`]).
const PIECE: usize = 2 << 20;

/// `HUGETLBFS_MAGIC` (C header: linux/magic.h).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Device and inode of a file.
pub(crate) type FileId = (u64, u64);

/// A region of guest memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) iova: u64,
    memory: GuardedMapping,
    pub(crate) writable: bool,
    /// Offset of the region in the file, in bytes.
    pub(crate) offset: u64,
    file: Arc<File>,
    file_id: FileId,
    /// Whether the pages of the file are huge.
    pub(crate) huge: bool,
    loss: Arc<Loss>,
    /// Charge of the region's bytes to the VM's memory limit.
    charge: Arc<Charge>,
}

/// A region that a monitor requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// DMA address.
    pub iova: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Whether the device may write to the region.
    pub writable: bool,
}

impl Mapping {
    /// Maps `region` of the file `fd`. Lost pages of the region are recorded in `loss`.
    pub(crate) fn new(
        region: Region,
        fd: OwnedFd,
        loss: Arc<Loss>,
        charge: Charge,
        pace: &mut Pace,
    ) -> Result<Self, MapError> {
        let file = Arc::new(File::from(fd));
        Self::map(region, file, loss, Arc::new(charge), pace)
    }

    pub(crate) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Maps the region again, with the present pages of its file.
    pub(crate) fn again(&self, pace: &mut Pace) -> Result<Self, MapError> {
        let region = Region {
            iova: self.iova,
            offset: self.offset,
            len: self.size() as u64,
            writable: self.writable,
        };
        let (file, loss) = (self.file.clone(), self.loss.clone());
        Self::map(region, file, loss, self.charge.clone(), pace)
    }

    fn map(
        region: Region,
        file: Arc<File>,
        loss: Arc<Loss>,
        charge: Arc<Charge>,
        pace: &mut Pace,
    ) -> Result<Self, MapError> {
        let Region {
            iova,
            offset,
            len,
            writable,
        } = region;
        let bad = || MapError::BadRange { iova, len, offset };
        if len == 0 || (iova | len | offset) % PAGE_SIZE != 0 {
            return Err(bad());
        }
        let (Some(_), Some(end), Ok(size)) = (
            iova.checked_add(len - 1),
            offset.checked_add(len),
            usize::try_from(len),
        ) else {
            return Err(bad());
        };
        let (page, file_id) = MemoryFile::new(&*file)?.look(end)?;
        let (start, whole) = surrounding(offset, end, page).ok_or_else(bad)?;
        let lead = offset - start;

        let mut protection = rustix::mm::ProtFlags::READ;
        if writable {
            protection |= rustix::mm::ProtFlags::WRITE;
        }
        let builder = MmapRegionBuilder::new(whole)
            .with_file_offset(FileOffset::from_arc(file.clone(), start))
            .with_mmap_prot(protection.bits() as i32)
            .with_mmap_flags(
                (rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::NORESERVE).bits() as i32,
            );
        let whole = pace.map(|| builder.build())?;
        let huge = page > PAGE_SIZE;
        if !huge {
            advice::use_huge_pages(&whole);
        }
        // The length of the whole mapping fits `usize`, so the casts do not truncate.
        let (page, lead) = (page as usize, lead as usize);
        Ok(Self {
            iova,
            memory: GuardedMapping::new(whole, page, (iova, lead, size), loss.clone())?,
            writable,
            offset,
            file,
            file_id,
            huge,
            loss,
            charge,
        })
    }

    /// Number of bytes from `iova`, which lies in this region, to the end of the region.
    #[inline]
    pub(crate) fn rest(&self, iova: u64) -> usize {
        // `iova` lies in the region, whose size fits `usize`, so the cast does not truncate.
        self.size() - (iova - self.iova) as usize
    }

    /// The `len` bytes at `iova`, which lies in this region.
    #[inline]
    pub(crate) fn slice(&self, iova: u64, len: usize) -> Result<VolatileSlice<'_>, DmaError> {
        self.memory
            .part()
            .get_slice((iova - self.iova) as usize, len)
            .map_err(|_| DmaError::Crossing { iova, len })
    }

    /// DMA address of the last byte. The address after this byte could overflow.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.iova + (self.size() as u64 - 1)
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.memory.part().size()
    }

    /// Number of spare pages in the region.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn spare_pages(&self) -> usize {
        self.memory.spare_pages()
    }

    /// Number of bytes of pages that this process has allocated in the file.
    pub(crate) fn filled(&self) -> u64 {
        self.memory.filled()
    }

    /// The file, which keeps this identity as long as a region maps it.
    pub(crate) fn file_id(&self) -> FileId {
        self.file_id
    }

    /// Whether this is `other`, mapped [again](Self::again).
    pub(crate) fn is_again(&self, other: &Self) -> bool {
        (self.iova, self.file_id, self.offset) == (other.iova, other.file_id, other.offset)
    }

    /// Adds pages that this process has allocated while the region was mapped before.
    pub(crate) fn add_filled(&self, bytes: u64) {
        self.memory.add_filled(bytes);
    }

    /// Number of bytes that the file has allocated.
    pub(crate) fn allocated(&self) -> u64 {
        /// Unit of `st_blocks`, whatever the file system.
        const BLOCK: u64 = 512;
        // The call does not fail for an open file in memory.
        rustix::fs::fstat(&*self.file).map_or(u64::MAX, |stat| stat.st_blocks as u64 * BLOCK)
    }

    /// Unmaps the region, which no view pins any more, in many short changes.
    pub(crate) fn unmap(self: Arc<Self>, pace: &mut Pace) {
        for at in self.memory.pieces(PIECE) {
            pace.change(|| self.memory.remove_piece(at, PIECE));
        }
        // The file is closed after the change, which holds up other VMs: the last close of a file
        // frees its pages.
        let file = self.file.clone();
        pace.change(|| drop(self));
        drop(file);
    }
}

/// A file in memory (tmpfs or hugetlbfs). System calls for its size don't block. On a file system
/// that the monitor serves, such a call may never return.
struct MemoryFile<F>(F);

impl<F: AsFd> MemoryFile<F> {
    /// Fails for other kinds of files, without a call of their file systems: `F_GET_SEALS` succeeds
    /// only for files in memory, and fails at once for other files.
    fn new(fd: F) -> Result<Self, MapError> {
        let seals = rustix::fs::fcntl_get_seals(&fd);
        seals.map_err(|_| MapError::NotMemory)?;
        Ok(Self(fd))
    }

    /// Page size of the file in bytes, and its identity. Fails if the file has less than `end`
    /// bytes.
    fn look(&self, end: u64) -> Result<(u64, FileId), MapError> {
        let system = rustix::fs::fstatfs(&self.0).map_err(io::Error::from)?;
        let stat = rustix::fs::fstat(&self.0).map_err(io::Error::from)?;
        let size = stat.st_size as u64;
        if end > size {
            return Err(MapError::BeyondFile { end, size });
        }
        let page = match system.f_type as u64 {
            HUGETLBFS_MAGIC => system.f_bsize as u64,
            _ => PAGE_SIZE,
        };
        Ok((page, (stat.st_dev, stat.st_ino)))
    }
}

/// Offset and length of the whole pages that hold the bytes from `offset` to `end` of a file.
/// `None` if they exceed the address space.
fn surrounding(offset: u64, end: u64, page: u64) -> Option<(u64, usize)> {
    let start = offset - offset % page;
    let len = end.checked_next_multiple_of(page)? - start;
    Some((start, usize::try_from(len).ok()?))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::FileExt;

    use budget::MemoryBudget;

    use super::*;
    use crate::testing::guest_memory;

    /// A descriptor that counts the calls in which it is used.
    struct Counted(OwnedFd, Cell<u32>);

    impl AsFd for Counted {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.1.set(self.1.get() + 1);
            self.0.as_fd()
        }
    }

    /// Any call but the one for the seals would go to the file system, which may never answer.
    #[test]
    fn a_file_that_is_no_memory_is_refused_by_one_call() {
        let file = Counted(File::open("/").unwrap().into(), Cell::default());
        assert!(matches!(MemoryFile::new(&file), Err(MapError::NotMemory)));
        assert_eq!(file.1.get(), 1);
    }

    /// Whether the page at this address has an entry in the page tables of this process.
    fn is_present(address: usize) -> bool {
        const PRESENT: u64 = 1 << 63;
        let mut entry = [0; 8];
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let at = address as u64 / PAGE_SIZE * 8;
        pagemap.read_exact_at(&mut entry, at).unwrap();
        u64::from_ne_bytes(entry) & PRESENT != 0
    }

    #[test]
    fn a_region_is_unmapped_in_pieces() {
        const PIECES: usize = 4;
        let len = (PIECES * PIECE) as u64 - PAGE_SIZE;
        let region = Region {
            iova: 0,
            offset: 0,
            len,
            writable: true,
        };
        let mut pace = Pace::default();
        let charge = MemoryBudget::new(len).charge(len).unwrap();
        let file = guest_memory(len).unwrap();
        let region = Mapping::new(region, file, Arc::default(), charge, &mut pace).unwrap();
        let last = len as usize - 8;
        let bytes = [0, PIECE - 8, PIECE, 2 * PIECE, last];
        for at in bytes {
            region.slice(at as u64, 8).unwrap().copy_from(b"anything");
        }
        let start = region.memory.part().as_ptr() as usize;
        let present = || bytes.map(|at| is_present(start + at));
        assert_eq!(present(), [true; 5]);
        region.memory.remove_piece(0, PIECE);
        assert_eq!(present(), [false, false, true, true, true]);
        region.memory.remove_piece((PIECES - 1) * PIECE, PIECE);
        assert_eq!(present(), [false, false, true, true, false]);
        // The bytes are still in the file.
        let mut found = [0u8; 8];
        region.slice(last as u64, 8).unwrap().copy_to(&mut found);
        assert_eq!(&found, b"anything");
        let before = pace.changes;
        Arc::new(region).unmap(&mut pace);
        assert_eq!(pace.changes, before + PIECES + 1);
    }

    #[test]
    fn a_region_inside_of_huge_pages_has_them_whole() {
        const HUGE: u64 = 2 << 20;
        assert_eq!(surrounding(0, 0xa_0000, HUGE), Some((0, 2 << 20)));
        assert_eq!(surrounding(0xc_0000, 5 << 20, HUGE), Some((0, 6 << 20)));
        assert_eq!(
            surrounding(4 << 20, 6 << 20, HUGE),
            Some((4 << 20, 2 << 20))
        );
        assert_eq!(
            surrounding(0x1000, 0x3000, PAGE_SIZE),
            Some((0x1000, 0x2000))
        );
        assert_eq!(surrounding(0, u64::MAX - 4095, HUGE), None);
    }
}
