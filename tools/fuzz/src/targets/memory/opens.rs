// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The memory that keys open, as the model knows it.

use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::{MrNumber, MwNumber};

use super::PAGE;

/// Kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An MR that was made with its memory.
    Fixed,
    /// One for fast registration.
    Fast,
    Window,
}

/// The memory that a key opens.
#[derive(Clone, Debug)]
pub(super) struct Opens {
    pub(super) key: u32,
    /// The MR, that of a window too.
    pub(super) mr: MrNumber,
    /// The window, if it is one.
    pub(super) window: Option<MwNumber>,
    pub(super) kind: Kind,
    pub(super) va: u64,
    pub(super) len: u64,
    /// Place of the first byte in the first page, and the pages.
    pub(super) offset: u64,
    pub(super) pages: Vec<u64>,
    pub(super) access: AccessFlags,
    /// Peers are let in for certain; a window may have gone with its QP.
    pub(super) certain: bool,
}

impl Opens {
    /// Addresses of these bytes, if all of them are open.
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
