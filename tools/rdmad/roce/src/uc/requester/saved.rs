// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a requester.

use serde::{Deserialize, Serialize};

use crate::psn::Psn;
use crate::saved::FailedWork;
use crate::work::SendWr;

use super::Requester;

/// The state of a [`Requester`] without its connection and work requests.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequesterState {
    /// The first work request that can't be executed.
    pub failed: FailedWork,
    /// Number of packets of the oldest work request that were sent.
    pub index: u32,
    /// PSN of the next packet.
    pub next: u32,
    /// 1 if the QP has failed.
    pub dead: u8,
    /// 1 if the requester starts no further work requests.
    pub held: u8,
    /// Padding, 0.
    pub reserved: [u8; 2],
}

impl<L> Requester<L> {
    /// The state from which another process can continue.
    pub fn save(&self) -> RequesterState {
        RequesterState {
            failed: FailedWork::first(self.queue.iter().map(|(_, failed)| *failed)),
            index: self.index,
            next: self.next.value(),
            dead: self.dead.into(),
            held: self.held.into(),
            reserved: [0; 2],
        }
    }

    /// Makes a new requester continue from `state`. `work` yields all work requests that have not
    /// ended; the requester must have room for them.
    pub fn restore(&mut self, state: &RequesterState, work: impl IntoIterator<Item = SendWr<L>>) {
        for (index, wr) in work.into_iter().enumerate() {
            let appended = self.queue.push_back((wr, state.failed.fault(index)));
            debug_assert!(appended.is_ok(), "there is room");
        }
        self.index = state.index;
        self.next = Psn::new(state.next);
        self.dead = state.dead != 0;
        self.held = state.held != 0;
    }
}
