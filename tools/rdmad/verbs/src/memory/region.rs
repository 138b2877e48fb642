// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What a key opens.

use std::sync::Arc;

use virtio_rdma_abi::ib::AccessFlags;

use super::PageMap;
use crate::error::{require, Errno, Result};

/// Rights that need something this device does not have.
const UNSUPPORTED: AccessFlags = AccessFlags(AccessFlags::MW_BIND.0 | AccessFlags::ON_DEMAND.0);

/// Refuses rights that don't exist, and remote ones that imply a local one which is not given (IBTA 10.6.3.1).
pub(crate) fn check_access(access: AccessFlags) -> Result<()> {
    require(!access.has_unknown())?;
    if access.intersects(UNSUPPORTED) {
        return Err(Errno::OPNOTSUPP);
    }
    let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    require(!access.intersects(writes) || access.contains(AccessFlags::LOCAL_WRITE))
}

/// Memory under a key, with rights. It never changes: an MR that is invalidated and registered again gets another one.
#[derive(Debug)]
pub(crate) struct Region {
    /// L_Key and R_Key.
    key: u32,
    /// Rights.
    access: AccessFlags,
    /// Address of its first byte in work requests.
    base: u64,
    pages: Arc<PageMap>,
}

impl Region {
    /// `pages` under `key`. The first byte has the address `base` in work requests, or 0 if `access` says so; the last
    /// one has an address too.
    pub(crate) fn new(key: u32, access: AccessFlags, base: u64, pages: Arc<PageMap>) -> Self {
        let base = match access.contains(AccessFlags::ZERO_BASED) {
            true => 0,
            false => base,
        };
        Self {
            key,
            access,
            base,
            pages,
        }
    }

    /// Its key.
    #[inline]
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Whether `key` opens the `len` bytes at `addr` for all of `access`.
    #[inline]
    pub(super) fn allows(&self, key: u32, addr: u64, len: u64, access: AccessFlags) -> bool {
        self.key == key
            && self.access.contains(access)
            && addr
                .checked_sub(self.base)
                .and_then(|offset| offset.checked_add(len))
                .is_some_and(|end| end <= self.pages.len())
    }

    /// How many bytes there are from `addr` on, which is inside.
    #[inline]
    pub(crate) fn rest(&self, addr: u64) -> u64 {
        self.pages.len() - (addr - self.base)
    }

    /// The DMA address of `addr`, which is inside, and how many bytes follow it in one piece.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> (u64, u64) {
        self.pages.find(addr - self.base)
    }
}
