// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The memory that a key opens.

use std::sync::Arc;
use std::thread;

use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::Pdn;

use super::mr_cache::Flat;
use super::pages::{Cursor, PageMap};
use crate::error::{require, Errno, Result};

/// Rights that not every device has.
const NEGOTIATED: AccessFlags = AccessFlags(
    AccessFlags::MW_BIND.0
        | AccessFlags::ON_DEMAND.0
        | AccessFlags::FLUSH_GLOBAL.0
        | AccessFlags::FLUSH_PERSISTENT.0,
);

/// Refuses rights that don't exist, rights that were not negotiated, and remote write or atomic
/// access without local write access (IBTA 10.6.3.1). `optional` has the negotiated rights.
pub(crate) fn check_access(access: AccessFlags, optional: AccessFlags) -> Result<()> {
    require(!access.has_unknown())?;
    if access.without(optional).intersects(NEGOTIATED) {
        return Err(Errno::OPNOTSUPP);
    }
    require(!writes_need_local_write(access) || access.contains(AccessFlags::LOCAL_WRITE))
}

/// Whether peers may write, which needs the right of this side to do so.
pub(super) fn writes_need_local_write(access: AccessFlags) -> bool {
    access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC)
}

/// Waits until nobody else uses `region`, which no key opens any more. The caller has no
/// [`Message`](super::Message) open.
pub(super) fn drain(mut region: Arc<Region>) {
    // Another worker may be in the middle of a copy. It waits for nothing meanwhile, so this ends
    // with its slice, like the wait for a lock.
    while Arc::get_mut(&mut region).is_none() {
        thread::yield_now();
    }
}

/// Memory under a key, with rights: an MR's or a part of it. It never changes: what is invalidated
/// and registered or bound again gets another one.
#[derive(Debug)]
pub(crate) struct Region {
    /// L_Key and R_Key of an MR, or R_Key of a window.
    key: u32,
    /// Rights.
    access: AccessFlags,
    /// Address of its first byte in work requests.
    base: u64,
    /// Where it starts in `pages`, and how long it is.
    start: u64,
    len: u64,
    pages: Arc<PageMap>,
}

impl Region {
    /// `pages` under `key`. The first byte has the address `base` in work requests, or 0 if
    /// `access` says so; the last one has an address too.
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

    /// The same memory and key with other rights, or `None` if they would move it.
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

    /// The `len` bytes at `addr` under another key with other rights, or `None` if they are not all
    /// inside.
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

    /// The offset of `addr`, if all of the `len` bytes there are inside.
    #[inline]
    fn offset(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.base)?;
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(offset)
    }

    /// Whether `key` opens it for all of `access`.
    #[inline]
    pub(super) fn names(&self, key: u32, access: AccessFlags) -> bool {
        self.key == key && self.access.contains(access)
    }

    /// All of it as a cache entry, if it is in one piece.
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

    /// Itself, if it [allows](Self::allows) this.
    #[inline]
    pub(super) fn open(
        self: &Arc<Self>,
        key: u32,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> Option<Arc<Self>> {
        self.allows(key, addr, len, access).then(|| self.clone())
    }

    /// Whether `key` opens the `len` bytes at `addr` for all of `access`.
    #[inline]
    pub(super) fn allows(&self, key: u32, addr: u64, len: u64, access: AccessFlags) -> bool {
        self.names(key, access) && self.offset(addr, len).is_some()
    }

    /// How many bytes there are from `addr` on, which is inside.
    #[inline]
    pub(crate) fn rest(&self, addr: u64) -> u64 {
        self.len - (addr - self.base)
    }

    /// The DMA address of `addr`, which is inside, and how many bytes follow it in one piece, those
    /// behind its end among them.
    #[inline]
    pub(crate) fn find(&self, addr: u64, cursor: &mut Cursor) -> (u64, u64) {
        self.pages.find(self.start + (addr - self.base), cursor)
    }
}

/// The address of the first byte in work requests.
fn based(access: AccessFlags, base: u64) -> u64 {
    if access.contains(AccessFlags::ZERO_BASED) {
        0
    } else {
        base
    }
}
