// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory under a key.

mod saved;

use std::sync::Arc;
use std::thread;

use roce::work::WcReason;
use scheduler::shared::share;
use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::Pdn;

pub(crate) use self::saved::{PartState, RegionState};
use super::key_fault::KeyFault;
use super::mr_cache::Flat;
use super::pages::{Cursor, PageMap, Pieces};
use crate::details::MemoryDetails;
use crate::error::{bits, needs_bits, require, Reason, Result, What};

/// Access flags that depend on negotiated features.
const NEGOTIATED: AccessFlags = AccessFlags(
    AccessFlags::MW_BIND.0
        | AccessFlags::ON_DEMAND.0
        | AccessFlags::FLUSH_GLOBAL.0
        | AccessFlags::FLUSH_PERSISTENT.0,
);

/// Refuses access flags that are unknown or were not negotiated, and remote write or atomic access
/// without local write access (IBTA 10.6.3.1). `optional` holds the negotiated access flags.
pub(crate) fn check_access(access: AccessFlags, optional: AccessFlags) -> Result<()> {
    let what = What::AccessFlags;
    bits(what, access.0, AccessFlags::ALL.0)?;
    let unsupported = access.without(optional).0 & NEGOTIATED.0;
    require(unsupported == 0, Reason::NotSupported, what, unsupported)?;
    if writes_need_local_write(access) {
        needs_bits(what, access.0, AccessFlags::LOCAL_WRITE.0)?;
    }
    Ok(())
}

/// Whether `access` lets peers write, which requires local write access too.
pub(super) fn writes_need_local_write(access: AccessFlags) -> bool {
    access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC)
}

/// Waits until no other thread uses `region`. The caller must have made its key invalid, and must
/// have no [`Message`](super::Message) open.
pub(super) fn drain(mut region: Arc<Region>) {
    // Another worker may be copying. That worker does not wait for anything while it copies, so
    // this loop is as short as a wait for a lock.
    while Arc::get_mut(&mut region).is_none() {
        thread::yield_now();
    }
}

/// Memory under a key, with access flags: an MR or a part of it (window). A region is immutable;
/// each registration or binding creates a new one.
#[derive(Debug)]
pub(crate) struct Region {
    /// L_Key and R_Key of an MR, or R_Key of a window.
    key: u32,
    access: AccessFlags,
    /// Address that work requests use for the region's first byte.
    base: u64,
    /// The part of `pages` that the region covers: offset and length in bytes.
    start: u64,
    len: u64,
    pages: Arc<PageMap>,
}

impl Region {
    /// A region of all of `pages` under `key`. The first byte has the address `base` in work
    /// requests, or 0 if `access` contains `ZERO_BASED`. The address of the last byte must not
    /// overflow.
    pub(crate) fn new(key: u32, access: AccessFlags, base: u64, pages: Arc<PageMap>) -> Self {
        Self {
            key,
            access,
            base: based(access, base),
            start: 0,
            len: pages.len(),
            pages,
        }
    }

    /// A region of the same memory and key with other access flags, or `None` if those flags change
    /// the base address (`ZERO_BASED`).
    pub(crate) fn with_access(&self, access: AccessFlags) -> Option<Self> {
        let zero_based = |access: AccessFlags| access.contains(AccessFlags::ZERO_BASED);
        (zero_based(access) == zero_based(self.access)).then(|| Self {
            access,
            pages: self.pages.clone(),
            ..*self
        })
    }

    /// The region, told to people.
    pub(super) fn details(&self) -> MemoryDetails {
        let is_set = |(_, flag): &&(&str, AccessFlags)| self.access.contains(*flag);
        let access = AccessFlags::BITS.iter().filter(is_set);
        MemoryDetails {
            key: format!("{:#x}", self.key),
            address: format!("{:#x}", self.base),
            length: self.len,
            access: access.map(|(name, _)| *name).collect(),
            page: self.pages.page(),
            pieces: self.pages.pieces().count(),
        }
    }

    /// The pages of which the region is a part.
    pub(crate) fn pages(&self) -> &PageMap {
        &self.pages
    }

    /// A region of the `len` bytes at `addr` of this one, with another key and other access flags,
    /// or `None` if the range exceeds this region.
    pub(super) fn window(
        &self,
        key: u32,
        access: AccessFlags,
        addr: u64,
        len: u64,
    ) -> Option<Self> {
        let offset = self.offset(addr, len)?;
        Some(Self {
            key,
            access,
            base: based(access, addr),
            start: self.start + offset,
            len,
            pages: self.pages.clone(),
        })
    }

    /// L_Key and R_Key of an MR, or R_Key of a window.
    #[inline]
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    #[inline]
    pub(crate) fn access(&self) -> AccessFlags {
        self.access
    }

    /// The offset of `addr` in the region, if all `len` bytes at `addr` are inside the region.
    #[inline]
    fn offset(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.base)?;
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(offset)
    }

    /// Whether the region has this key and all of `access`.
    #[inline]
    pub(super) fn names(&self, key: u32, access: AccessFlags) -> bool {
        self.key == key && self.access.contains(access)
    }

    /// The content of an MR cache entry for the region, if the region is contiguous.
    pub(super) fn flat(&self, pdn: Pdn) -> Option<Flat> {
        let (iova, contiguous) = self.pages.find(self.start, &mut Cursor::default());
        (contiguous >= self.len).then_some(Flat {
            pdn,
            access: self.access,
            base: self.base,
            iova,
            len: self.len,
        })
    }

    /// Why the region does not grant all of `access` to the bytes in `range`, or to any bytes if
    /// there is no range. A region that grants it now did not when it was checked.
    pub(super) fn fault(&self, range: Option<(u64, u64)>, access: AccessFlags) -> KeyFault {
        KeyFault(match range {
            Some((addr, len)) if self.offset(addr, len).is_none() => WcReason::OutOfBounds,
            _ if !self.access.contains(access) => WcReason::AccessNotGranted,
            _ => WcReason::KeyRevoked,
        })
    }

    /// Returns the region if the region [allows](Self::allows) the access.
    #[inline]
    pub(super) fn open(
        self: &Arc<Self>,
        key: u32,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> Option<Arc<Self>> {
        self.allows(key, addr, len, access).then(|| share(self))
    }

    /// Whether `key` gives all of `access` to the `len` bytes at `addr`.
    #[inline]
    pub(super) fn allows(&self, key: u32, addr: u64, len: u64, access: AccessFlags) -> bool {
        self.names(key, access) && self.offset(addr, len).is_some()
    }

    /// Number of bytes from `addr` to the region's end. `addr` must be inside the region.
    #[inline]
    pub(crate) fn rest(&self, addr: u64) -> u64 {
        self.len - (addr - self.base)
    }

    /// The DMA address of the byte at `addr`, which must be inside the region, and the number of
    /// contiguous bytes from there on. These bytes may extend beyond the region.
    #[inline]
    pub(crate) fn find(&self, addr: u64, cursor: &mut Cursor) -> (u64, u64) {
        self.pages.find(self.start + (addr - self.base), cursor)
    }

    /// The contiguous pieces of memory from `addr` on, which must be inside the region. They may
    /// extend beyond the region.
    #[inline]
    pub(super) fn pieces_from(&self, addr: u64) -> Pieces<'_> {
        self.pages.pieces_from(self.start + (addr - self.base))
    }
}

/// Address that work requests use for a region's first byte.
fn based(access: AccessFlags, base: u64) -> u64 {
    if access.contains(AccessFlags::ZERO_BASED) {
        0
    } else {
        base
    }
}
