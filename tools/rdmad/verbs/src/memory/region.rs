// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory under a key.

use std::sync::Arc;
use std::thread;

use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::Pdn;

use super::mr_cache::Flat;
use super::pages::{Cursor, PageMap};
use crate::error::{require, Errno, Result};
use crate::shared::share;

/// Rights that depend on negotiated features.
const NEGOTIATED: AccessFlags = AccessFlags(
    AccessFlags::MW_BIND.0
        | AccessFlags::ON_DEMAND.0
        | AccessFlags::FLUSH_GLOBAL.0
        | AccessFlags::FLUSH_PERSISTENT.0,
);

/// Refuses unknown rights, rights that were not negotiated, and remote write or atomic access
/// without local write access (IBTA 10.6.3.1). `optional` holds the negotiated rights.
pub(crate) fn check_access(access: AccessFlags, optional: AccessFlags) -> Result<()> {
    require(!access.has_unknown())?;
    if access.without(optional).intersects(NEGOTIATED) {
        return Err(Errno::OPNOTSUPP);
    }
    require(!writes_need_local_write(access) || access.contains(AccessFlags::LOCAL_WRITE))
}

/// Whether peers may write, which requires local write access.
pub(super) fn writes_need_local_write(access: AccessFlags) -> bool {
    access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC)
}

/// Waits until no other thread uses `region`. No key may lead to it any more. The caller must have
/// no [`Message`](super::Message) open.
pub(super) fn drain(mut region: Arc<Region>) {
    // Another worker may be copying. It does not wait in the meantime, so this loop ends with the
    // worker's slice, like a wait for a lock.
    while Arc::get_mut(&mut region).is_none() {
        thread::yield_now();
    }
}

/// Memory under a key, with access rights: an MR or a part of it (window). A region is immutable;
/// each registration or binding creates a new one.
#[derive(Debug)]
pub(crate) struct Region {
    /// L_Key and R_Key of an MR, or R_Key of a window.
    key: u32,
    /// Rights.
    access: AccessFlags,
    /// Address of its first byte in work requests.
    base: u64,
    /// Its part of `pages`: offset and length in bytes.
    start: u64,
    len: u64,
    pages: Arc<PageMap>,
}

impl Region {
    /// All of `pages` under `key`. The first byte has the address `base` in work requests, or 0 if
    /// `access` contains `ZERO_BASED`. The address of the last byte must not overflow.
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

    /// The same memory and key with other rights, or `None` if they would change its base address.
    pub(crate) fn with_access(&self, access: AccessFlags) -> Option<Self> {
        let zero_based = |access: AccessFlags| access.contains(AccessFlags::ZERO_BASED);
        (zero_based(access) == zero_based(self.access)).then(|| Self {
            access,
            pages: self.pages.clone(),
            ..*self
        })
    }

    /// Its pages.
    pub(crate) fn pages(&self) -> &PageMap {
        &self.pages
    }

    /// The `len` bytes at `addr` under another key with other rights, or `None` if the range
    /// exceeds the region.
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

    /// Its key.
    #[inline]
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Its rights.
    #[inline]
    pub(crate) fn access(&self) -> AccessFlags {
        self.access
    }

    /// The offset of `addr`, if all `len` bytes there are inside.
    #[inline]
    fn offset(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.base)?;
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(offset)
    }

    /// Whether its key is `key`, and it has all rights of `access`.
    #[inline]
    pub(super) fn names(&self, key: u32, access: AccessFlags) -> bool {
        self.key == key && self.access.contains(access)
    }

    /// The whole region as a cache entry, if it is contiguous.
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

    /// Returns the region if it [allows](Self::allows) the access.
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

    /// Whether `key` grants the `len` bytes at `addr` with all rights of `access`.
    #[inline]
    pub(super) fn allows(&self, key: u32, addr: u64, len: u64, access: AccessFlags) -> bool {
        self.names(key, access) && self.offset(addr, len).is_some()
    }

    /// Number of bytes from `addr` to the end. `addr` must be inside.
    #[inline]
    pub(crate) fn rest(&self, addr: u64) -> u64 {
        self.len - (addr - self.base)
    }

    /// The DMA address of `addr`, which must be inside, and the number of contiguous bytes of its
    /// pages there. They may extend beyond the region.
    #[inline]
    pub(crate) fn find(&self, addr: u64, cursor: &mut Cursor) -> (u64, u64) {
        self.pages.find(self.start + (addr - self.base), cursor)
    }
}

/// Address of the first byte in work requests.
fn based(access: AccessFlags, base: u64) -> u64 {
    if access.contains(AccessFlags::ZERO_BASED) {
        0
    } else {
        base
    }
}
