// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The model of the memory to which keys give access.

use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::{MrNumber, MwNumber};

use super::PAGE;

/// Kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Key of an MR that was created with its memory.
    Fixed,
    /// Key of an MR for fast registration.
    Fast,
    Window,
}

/// A valid key, and the memory to which it gives access.
#[derive(Clone, Debug)]
pub(super) struct Opens {
    pub(super) key: u32,
    /// Number of the MR, or of the MR to which the window is bound.
    pub(super) mr: MrNumber,
    /// Number of the window, if the key is a window's.
    pub(super) window: Option<MwNumber>,
    pub(super) kind: Kind,
    pub(super) va: u64,
    pub(super) len: u64,
    /// Offset of the first byte in the first page. `pages` has the DMA addresses of the pages.
    pub(super) offset: u64,
    pub(super) pages: Vec<u64>,
    pub(super) access: AccessFlags,
    /// Whether an access must succeed. A window of type 2 may have been unbound with its QP.
    pub(super) certain: bool,
}

impl Opens {
    /// DMA addresses of these bytes, if the key gives access to all of them.
    pub(super) fn bytes(&self, va: u64, len: u64) -> Option<Vec<u64>> {
        let first = va.checked_sub(self.va)?;
        if first.checked_add(len)? > self.len {
            return None;
        }
        let address = |at: u64| {
            let at = self.offset + first + at;
            self.pages[(at / PAGE) as usize] + at % PAGE
        };
        Some((0..len).map(address).collect())
    }
}
