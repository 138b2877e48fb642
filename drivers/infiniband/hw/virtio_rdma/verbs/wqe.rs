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
}

impl Wqe<'_> {
    /// Adds bytes. The caller's limits are those that the slot was made for.
    #[inline]
    pub(super) fn put(&mut self, from: &[u8]) {
        match self {
            Self::Slot { ring, offset } => {
                ring.write(*offset, from);
                // LOSSY: A slot is no longer than a page.
                *offset += from.len() as u32;
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
