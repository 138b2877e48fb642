// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completions and completion events that rules of a scenario hold back.
//!
//! Held completions are in the ring, but not published. They are published together when the time
//! is over, or before a command ends after which the driver expects no more completions of a QP.

use std::time::Instant;

use crate::Hca;

/// Completions and an event of a CQ that rules hold back.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Until when completions are not published.
    pub(super) completions: Option<Instant>,
    /// When a completion event that was due is sent.
    pub(super) event: Option<Instant>,
}

impl Held {
    /// Whether completions are not published now.
    #[inline]
    pub(super) fn holds(&mut self, hca: &Hca) -> bool {
        match self.completions {
            None => false,
            Some(until) if hca.now() < until => true,
            Some(_) => {
                self.completions = None;
                false
            }
        }
    }

    /// Whether the held completion event is to be sent now.
    #[inline]
    pub(super) fn takes_event(&mut self, hca: &Hca) -> bool {
        let is_due = self.event.is_some_and(|at| at <= hca.now());
        is_due && self.event.take().is_some()
    }

    /// Whether a completion event is held back.
    pub(super) fn has_event(&self) -> bool {
        self.event.is_some()
    }

    /// The state in which another process goes on: nothing is held back any longer.
    pub(super) fn restored(hca: &Hca, has_event: bool) -> Self {
        Self {
            completions: None,
            event: has_event.then(|| hca.now()),
        }
    }

    /// Until when completions are not published.
    pub(super) fn until(&self) -> Option<Instant> {
        self.completions
    }
}
