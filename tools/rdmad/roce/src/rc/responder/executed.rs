// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Where requests of one kind were executed, so that a duplicate is known as one.

use std::collections::VecDeque;

use crate::psn::Psn;
use crate::rc::WINDOW;

/// Requests that are remembered: a requester like ours has no more packets unacknowledged, and
/// `max_dest_rd_atomic` READs are fewer.
const LIMIT: usize = WINDOW as usize;

/// The PSNs of the last requests: the first of each, and how many.
#[derive(Debug, Default)]
pub(super) struct ExecutedRequests(VecDeque<(Psn, u32)>);

impl ExecutedRequests {
    /// Bytes that are allocated at most.
    pub(super) const SIZE: usize = LIMIT * size_of::<(Psn, u32)>();

    /// Bytes that are allocated.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.0.capacity() * size_of::<(Psn, u32)>()
    }

    /// A request was executed that takes `count` PSNs from `psn` on.
    pub(super) fn note(&mut self, psn: Psn, count: u32) {
        if self.0.len() == LIMIT {
            self.0.pop_front();
        }
        self.0.push_back((psn, count));
    }

    /// The requests, from the oldest on: first PSN and number of PSNs.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Psn, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Whether one request covered these PSNs.
    pub(super) fn covers(&self, psn: Psn, count: u32) -> bool {
        self.0.iter().rev().any(|&(first, length)| {
            u32::try_from(psn.since(first)).is_ok_and(|offset| offset + count <= length)
        })
    }
}
