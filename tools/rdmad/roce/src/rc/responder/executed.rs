// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! PSNs of the last executed requests of one kind, to recognize duplicates.

use std::collections::VecDeque;

use crate::psn::Psn;
use crate::rc::WINDOW;

/// Maximum number of stored requests. The requester of this crate never has more packets
/// unacknowledged, and `max_dest_rd_atomic` limits the READs of other requesters to no more.
const LIMIT: usize = WINDOW as usize;

/// The last executed requests: first PSN and number of PSNs of each.
#[derive(Debug, Default)]
pub(super) struct ExecutedRequests(VecDeque<(Psn, u32)>);

impl ExecutedRequests {
    /// Maximum number of bytes that are allocated.
    pub(super) const SIZE: usize = LIMIT * size_of::<(Psn, u32)>();

    /// Number of bytes that are allocated now.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.0.capacity() * size_of::<(Psn, u32)>()
    }

    /// Stores an executed request with `count` PSNs from `psn` on.
    pub(super) fn note(&mut self, psn: Psn, count: u32) {
        if self.0.len() == LIMIT {
            self.0.pop_front();
        }
        self.0.push_back((psn, count));
    }

    /// First PSN and number of PSNs of each request, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Psn, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Whether one executed request covers the `count` PSNs from `psn` on.
    pub(super) fn covers(&self, psn: Psn, count: u32) -> bool {
        self.0.iter().rev().any(|&(first, length)| {
            u32::try_from(psn.since(first)).is_ok_and(|offset| offset + count <= length)
        })
    }
}
