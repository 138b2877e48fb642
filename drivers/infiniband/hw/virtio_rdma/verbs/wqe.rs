// SPDX-License-Identifier: GPL-2.0

//! A WQE that is being written.

use super::ring::KernelRing;
use crate::{
    abi::wqe::Sge,
    rdma::work_request,
    ring::RingMemory, //
};

/// Where the next bytes of a WQE go.
pub(super) enum Wqe<'a> {
    /// A slot of a ring, of which the device copies what it needs.
    Slot {
        /// The ring.
        ring: &'a KernelRing,
        /// Offset of the next byte.
        offset: u32,
    },
    /// A buffer of a virtqueue.
    Buffer {
        /// All of it.
        bytes: &'a mut [u8],
        /// Bytes written.
        length: usize,
    },
}

impl<'a> Wqe<'a> {
    /// A WQE at the start of a buffer.
    #[inline]
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        Self::Buffer { bytes, length: 0 }
    }

    /// Bytes that were written to the buffer; a slot need not know.
    #[inline]
    pub(super) fn length(&self) -> usize {
        match self {
            Self::Slot { .. } => 0,
            Self::Buffer { length, .. } => *length,
        }
    }

    /// Adds bytes. The caller's limits are those that the slot was made for.
    #[inline]
    pub(super) fn put(&mut self, from: &[u8]) {
        match self {
            Self::Slot { ring, offset } => {
                ring.write(*offset, from);
                // LOSSY: A slot is no longer than a page.
                *offset += from.len() as u32;
            }
            Self::Buffer { bytes, length } => {
                let end = *length + from.len();
                if let Some(to) = bytes.get_mut(*length..end) {
                    to.copy_from_slice(from);
                    *length = end;
                }
            }
        }
    }

    /// Adds SGEs.
    #[inline]
    pub(super) fn put_sges(&mut self, sges: &[work_request::Sge]) {
        for sge in sges {
            let sge = Sge {
                addr: sge.addr(),
                length: sge.length(),
                lkey: sge.lkey(),
            };
            self.put(&sge.to_bytes());
        }
    }
}
