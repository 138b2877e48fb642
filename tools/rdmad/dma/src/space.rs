// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The DMA map and its snapshots. Workers pin a snapshot while they use it. A change of the map
//! waits until no older snapshot is pinned.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use budget::MemoryBudget;
use parking_lot::{Condvar, Mutex};
use vm_memory::VolatileSlice;

use crate::fault::Loss;
use crate::left_behind::LeftBehind;
use crate::mapping::{Mapping, Region};
use crate::pace::Pace;
use crate::{DmaError, DmaSlice, DmaSliceMut, LostMemory, MapError};

/// Maximum number of regions in one map. A monitor uses a few. Each region costs a mapping and a
/// file descriptor of the process, whose limits all VMs share.
pub const MAX_REGIONS: usize = 128;

/// The DMA map of one VM.
pub struct DmaSpace {
    pub(crate) current: ArcSwap<Snapshot>,
    /// Serializes changes of the map.
    pub(crate) change: Mutex<Changes>,
    /// Number of mapped bytes, and its limit: all VMs share the address space of the process.
    mapped: MemoryBudget,
    live: Arc<Live>,
    loss: Arc<Loss>,
}

/// Costs of the changes of the map.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) pace: Pace,
    pub(crate) left_behind: LeftBehind,
}

/// Counts the snapshots that exist: the current one and older ones that some view still pins.
#[derive(Default)]
struct Live {
    count: Mutex<usize>,
    dropped: Condvar,
}

/// An immutable state of the map.
pub(crate) struct Snapshot {
    /// Regions sorted by DMA address, without overlap.
    pub(crate) regions: Vec<Arc<Mapping>>,
    live: Arc<Live>,
    loss: Arc<Loss>,
}

impl Snapshot {
    fn new(regions: Vec<Arc<Mapping>>, live: &Arc<Live>, loss: &Arc<Loss>) -> Arc<Self> {
        *live.count.lock() += 1;
        Arc::new(Self {
            regions,
            live: live.clone(),
            loss: loss.clone(),
        })
    }

    /// Index of the first region that ends at or after `iova`.
    fn position(&self, iova: u64) -> usize {
        self.regions.partition_point(|region| region.last() < iova)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // The references to mappings are dropped before the count changes: `replace_and_wait`
        // drops the last ones as soon as the count shows that the old snapshots are gone.
        self.regions.clear();
        *self.live.count.lock() -= 1;
        self.live.dropped.notify_all();
    }
}

impl DmaSpace {
    /// An empty map, without a limit of mapped bytes.
    pub fn new() -> Self {
        Self::with_limit(u64::MAX)
    }

    /// An empty map for regions of up to `limit` bytes in all.
    pub fn with_limit(limit: u64) -> Self {
        let (live, loss) = (Arc::default(), Arc::default());
        Self {
            current: ArcSwap::new(Snapshot::new(Vec::new(), &live, &loss)),
            change: Mutex::default(),
            mapped: MemoryBudget::new(limit),
            live,
            loss,
        }
    }

    /// Maps `len` bytes of the file `fd` from `offset` on at the DMA address `iova`.
    ///
    /// `len`, `offset` and `iova` are multiples of [`PAGE_SIZE`](crate::PAGE_SIZE). Fails if the
    /// range overlaps a region, the file is not in memory or too short, the map is full, or the
    /// limit would be exceeded; the map is then unchanged. Returns when no view of an earlier map
    /// exists any more, like [`unmap`](Self::unmap).
    pub fn map(
        &self,
        iova: u64,
        fd: OwnedFd,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<(), MapError> {
        let region = Region {
            iova,
            offset,
            len,
            writable,
        };
        self.add(region, fd, false)
    }

    /// Maps a region that the last engine of the daemon had mapped, without a pause that its VM has
    /// to make ([`map`](Self::map)). Its time is not charged: the kernel may still be removing that
    /// engine's mapping of the file.
    ///
    /// # Errors
    ///
    /// As those of [`map`](Self::map).
    pub fn map_again(&self, region: Region, fd: OwnedFd) -> Result<(), MapError> {
        self.add(region, fd, true)
    }

    fn add(&self, region: Region, fd: OwnedFd, is_free: bool) -> Result<(), MapError> {
        let Region { iova, len, .. } = region;
        let changes = &mut *self.change.lock();
        let old = self.current.load_full();
        if old.regions.len() == MAX_REGIONS {
            return Err(MapError::TooMany);
        }
        let charge = self.mapped.charge(len).map_err(|_| MapError::TooMuch {
            len,
            mapped: self.mapped.used(),
            limit: self.mapped.limit(),
        })?;
        self.check_left_behind(&mut changes.left_behind, &old.regions)?;
        let loss = self.loss.clone();
        let mut free = Pace::default();
        let pace = match is_free {
            true => &mut free,
            false => &mut changes.pace,
        };
        let mapping = Mapping::new(region, fd, loss, charge, pace)?;
        let at = old.position(iova);
        if old
            .regions
            .get(at)
            .is_some_and(|next| next.iova <= mapping.last())
        {
            return Err(MapError::Overlap { iova, len });
        }
        let mut regions = old.regions.clone();
        regions.insert(at, Arc::new(mapping));
        // Waits, because a worker with an older view would fail work requests that use the new
        // memory.
        self.replace_and_wait(old, regions, changes);
        Ok(())
    }

    /// The file of the region that begins at `iova`.
    pub fn file(&self, iova: u64) -> Option<Arc<File>> {
        let snapshot = self.current.load();
        let region = snapshot.regions.get(snapshot.position(iova))?;
        (region.iova == iova).then(|| region.file())
    }

    /// Unmaps every region inside the `len` bytes at `iova`. Returns the number of regions, which
    /// may be 0.
    ///
    /// Returns when no view of an earlier map exists any more. Fails, with the map unchanged, if
    /// only a part of a region lies in this range. A thread that holds a view must not call this,
    /// because it would wait for itself.
    pub fn unmap(&self, iova: u64, len: u64) -> Result<usize, MapError> {
        let Some(last) = len.checked_sub(1).and_then(|rest| iova.checked_add(rest)) else {
            return Err(MapError::BadRange {
                iova,
                len,
                offset: 0,
            });
        };
        let changes = &mut *self.change.lock();
        let old = self.current.load_full();
        let start = old.position(iova);
        let inside = old.regions[start..].partition_point(|region| region.iova <= last);
        let (kept_front, rest) = old.regions.split_at(start);
        let (removed, kept_back) = rest.split_at(inside);
        if removed
            .iter()
            .any(|region| region.iova < iova || region.last() > last)
        {
            return Err(MapError::Overlap { iova, len });
        }
        let removed = removed.len();
        if removed > 0 {
            let kept = [kept_front, kept_back].concat();
            self.replace_and_wait(old, kept, changes);
        }
        Ok(removed)
    }

    /// Unmaps everything. Returns when no view of an earlier map exists any more; see
    /// [`unmap`](Self::unmap).
    pub fn clear(&self) {
        let changes = &mut *self.change.lock();
        self.replace_and_wait(self.current.load_full(), Vec::new(), changes);
        self.loss.clear();
    }

    /// Whether memory was lost since it was last [restored](Self::restore) or
    /// [cleared](Self::clear).
    #[inline]
    pub fn has_lost(&self) -> bool {
        self.loss.address().is_some()
    }

    /// The page that was lost first. Accesses to this page now access a spare page instead.
    pub fn lost(&self) -> Option<LostMemory> {
        let iova = self.loss.address()?;
        let snapshot = self.current.load();
        let region = snapshot.regions.get(snapshot.position(iova));
        let offset = region
            .filter(|region| region.iova <= iova)
            .map(|region| region.offset + (iova - region.iova));
        Some(LostMemory { iova, offset })
    }

    /// An eventfd that becomes readable whenever memory is lost.
    pub fn loss_event(&self) -> io::Result<Arc<OwnedFd>> {
        self.loss.event()
    }

    /// Maps all regions again if memory was lost. To be called while nothing accesses guest memory.
    /// A page that is still missing is lost again when it is accessed.
    ///
    /// # Errors
    ///
    /// A region can't be mapped; the map is then unchanged.
    pub fn restore(&self) -> Result<(), MapError> {
        if !self.has_lost() {
            return Ok(());
        }
        let changes = &mut *self.change.lock();
        let old = self.current.load_full();
        let again = old
            .regions
            .iter()
            .map(|region| region.again(&mut changes.pace).map(Arc::new));
        let regions = again.collect::<Result<_, _>>()?;
        self.replace_and_wait(old, regions, changes);
        self.loss.clear();
        Ok(())
    }

    /// Pins the map as it is now.
    ///
    /// Lock-free; the cost does not depend on the size of the map. Changes of the map wait while
    /// the view lives, so hold it only for a short piece of work.
    #[inline]
    pub fn enter(&self) -> DmaView {
        DmaView {
            snapshot: self.current.load(),
            recent: Cell::new(0),
        }
    }

    /// Number of mapped bytes, and its limit. Unmapped regions that some view still pins count.
    pub fn mapped(&self) -> (u64, u64) {
        (self.mapped.used(), self.mapped.limit())
    }

    /// Number of mapped bytes that are in files of huge pages. The kernel may also use huge pages
    /// for other files; these are not counted.
    pub fn in_huge_pages(&self) -> u64 {
        let snapshot = self.current.load();
        let huge = snapshot.regions.iter().filter(|region| region.huge);
        huge.map(|region| region.size() as u64).sum()
    }

    /// Fails if the charged regions, one more than `regions`, and the memory that the VM has left
    /// behind are more than twice its limit. A region counts as a whole, since the VM may have it
    /// filled at any time.
    fn check_left_behind(
        &self,
        left_behind: &mut LeftBehind,
        regions: &[Arc<Mapping>],
    ) -> Result<(), MapError> {
        let limit = self.mapped.limit();
        let left = left_behind.bytes(Instant::now(), limit, regions);
        if self.mapped.used().saturating_add(left) > limit.saturating_mul(2) {
            return Err(MapError::LeftBehind { left, limit });
        }
        Ok(())
    }

    /// Replaces the map `old` by `regions`, and waits until no view of `old` is left. The mappings
    /// that are not in `regions` are unmapped by this thread, since a worker that ends the last
    /// view must not spend its time on the page tables of a VM.
    fn replace_and_wait(
        &self,
        old: Arc<Snapshot>,
        regions: Vec<Arc<Mapping>>,
        changes: &mut Changes,
    ) {
        let kept = |region: &&Arc<Mapping>| regions.iter().any(|other| Arc::ptr_eq(region, other));
        let removed = old.regions.iter().filter(|region| !kept(region));
        let removed: Vec<_> = removed.cloned().collect();
        let kept = regions.clone();
        let new = Snapshot::new(regions, &self.live, &self.loss);
        self.current.store(new);
        drop(old);
        // Only this thread makes snapshots, since it holds the lock `change`. So a count of 1 means
        // that only the new snapshot is left.
        let mut count = self.live.count.lock();
        self.live.dropped.wait_while(&mut count, |count| *count > 1);
        drop(count);
        let (now, limit) = (Instant::now(), self.mapped.limit());
        changes.left_behind.unmapped(now, limit, &removed, &kept);
        for region in removed {
            region.unmap(&mut changes.pace);
        }
    }
}

impl Default for DmaSpace {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for DmaSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.current.load();
        f.debug_list()
            .entries(
                snapshot
                    .regions
                    .iter()
                    .map(|region| region.iova..=region.last()),
            )
            .finish()
    }
}

/// A pinned DMA map. Slices from a view are valid as long as the view lives.
pub struct DmaView {
    pub(crate) snapshot: Guard<Arc<Snapshot>>,
    /// Index of the region that was accessed last. The next access is mostly to this region too.
    recent: Cell<usize>,
}

impl DmaView {
    /// `len` bytes at `iova` for reading. They must lie in one region.
    #[inline]
    pub fn slice(&self, iova: u64, len: usize) -> Result<DmaSlice<'_>, DmaError> {
        let (memory, _) = self.find(iova, len)?;
        Ok(DmaSlice::new(memory))
    }

    /// `len` bytes at `iova` for reading and writing. They must lie in one writable region.
    #[inline]
    pub fn slice_mut(&self, iova: u64, len: usize) -> Result<DmaSliceMut<'_>, DmaError> {
        match self.find(iova, len)? {
            (memory, true) => Ok(DmaSliceMut::new(memory)),
            (_, false) => Err(DmaError::ReadOnly { iova }),
        }
    }

    /// Number of bytes from `iova` to the end of its region, but not more than `max`. Never 0 if
    /// `max` is not 0. Access a longer range piece by piece.
    #[inline]
    pub fn contiguous(&self, iova: u64, max: usize) -> Result<usize, DmaError> {
        Ok(self.region(iova)?.rest(iova).min(max))
    }

    /// The bytes from `iova` to the end of its region, but not more than `max`, for reading. Never
    /// empty if `max` is not 0.
    #[inline]
    pub fn piece(&self, iova: u64, max: usize) -> Result<DmaSlice<'_>, DmaError> {
        self.region_at(iova)?.piece(iova, max)
    }

    /// Like [`piece`](Self::piece), but for reading and writing.
    #[inline]
    pub fn piece_mut(&self, iova: u64, max: usize) -> Result<DmaSliceMut<'_>, DmaError> {
        self.region_at(iova)?.piece_mut(iova, max)
    }

    /// The region that holds the byte at `iova`.
    #[inline]
    pub fn region_at(&self, iova: u64) -> Result<DmaRegion<'_>, DmaError> {
        let region = self.region(iova)?;
        Ok(DmaRegion {
            iova: region.iova,
            memory: region.slice(region.iova, region.size())?,
            is_writable: region.writable,
        })
    }

    /// Whether memory of the VM was lost, like [`DmaSpace::has_lost`].
    #[inline]
    pub fn has_lost(&self) -> bool {
        self.snapshot.loss.address().is_some()
    }

    /// Whether the map has no region at all.
    pub fn is_empty(&self) -> bool {
        self.snapshot.regions.is_empty()
    }

    #[inline]
    fn region(&self, iova: u64) -> Result<&Mapping, DmaError> {
        let regions = &self.snapshot.regions;
        let has = |region: &&Arc<Mapping>| region.iova <= iova && iova <= region.last();
        if let Some(region) = regions.get(self.recent.get()).filter(has) {
            return Ok(region);
        }
        let at = self.snapshot.position(iova);
        let region = regions.get(at).filter(has);
        self.recent.set(at);
        region
            .map(|region| &**region)
            .ok_or(DmaError::Unmapped { iova })
    }

    #[inline]
    fn find(&self, iova: u64, len: usize) -> Result<(VolatileSlice<'_>, bool), DmaError> {
        let region = self.region(iova)?;
        Ok((region.slice(iova, len)?, region.writable))
    }
}

/// A region of a pinned DMA map. Saves the search for the region when many pieces are accessed.
#[derive(Clone, Copy, Debug)]
pub struct DmaRegion<'view> {
    iova: u64,
    memory: VolatileSlice<'view>,
    is_writable: bool,
}

impl<'view> DmaRegion<'view> {
    /// Whether the byte at `iova` is in the region.
    #[inline]
    pub fn holds(&self, iova: u64) -> bool {
        self.offset(iova) < self.memory.len() as u64
    }

    /// The bytes from `iova` to the end of the region, but not more than `max`, for reading. Never
    /// empty if `max` is not 0.
    #[inline]
    pub fn piece(&self, iova: u64, max: usize) -> Result<DmaSlice<'view>, DmaError> {
        let unmapped = DmaError::Unmapped { iova };
        if !self.holds(iova) {
            return Err(unmapped);
        }
        // The region, whose size fits `usize`, holds the byte, so the cast does not truncate.
        let offset = self.offset(iova) as usize;
        let len = max.min(self.memory.len() - offset);
        let memory = self.memory.subslice(offset, len);
        Ok(DmaSlice::new(memory.map_err(|_| unmapped)?))
    }

    /// Like [`piece`](Self::piece), but for reading and writing.
    #[inline]
    pub fn piece_mut(&self, iova: u64, max: usize) -> Result<DmaSliceMut<'view>, DmaError> {
        let slice = self.piece(iova, max)?;
        if self.is_writable {
            Ok(DmaSliceMut::of(slice))
        } else {
            Err(DmaError::ReadOnly { iova })
        }
    }

    /// Distance of `iova` from the first byte. It exceeds the length if `iova` is outside.
    #[inline]
    fn offset(&self, iova: u64) -> u64 {
        iova.wrapping_sub(self.iova)
    }
}

impl fmt::Debug for DmaView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaView")
            .field("regions", &self.snapshot.regions.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    use super::*;

    const LEN: u64 = 4096;

    /// A change may take long since the kernel is removing the mapping of the last engine. Its VM
    /// must not wait for a multiple of that time.
    #[test]
    fn a_region_of_the_last_engine_is_mapped_without_a_pause() {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LEN).unwrap();
        let space = DmaSpace::new();
        let now = Instant::now();
        space
            .change
            .lock()
            .pace
            .charge(now, Duration::from_secs(3600));
        let before = space.change.lock().pace.pause(now);
        let region = Region {
            iova: LEN,
            offset: 0,
            len: LEN,
            writable: true,
        };
        space.map_again(region, file.try_clone().unwrap()).unwrap();
        assert_eq!(space.change.lock().pace.pause(now), before);
        assert_eq!(space.mapped().0, LEN);
    }
}
