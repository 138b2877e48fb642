// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a requester.

use serde::{Deserialize, Serialize};

use crate::psn::Psn;
use crate::saved::FailedWork;
use crate::work::{packets, SendWr, WcFault};

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
    /// ended, with the faults that were found now; the requester must have room for them.
    ///
    /// The driver may have changed WQEs in the meantime. If the first one has fewer packets than
    /// were sent of it, it fails.
    pub fn restore(
        &mut self,
        state: &RequesterState,
        work: impl IntoIterator<Item = (SendWr<L>, Option<WcFault>)>,
    ) {
        let mut is_changed = false;
        for (index, (wr, found)) in work.into_iter().enumerate() {
            is_changed |= state.failed.is_new(index, found);
            let appended = self.queue.push_back((wr, state.failed.fault(index)));
            debug_assert!(appended.is_ok(), "there is room");
        }
        self.index = state.index;
        let mtu = self.connection.mtu;
        if let Some((wr, failed)) = self.queue.get_mut(0) {
            if is_changed || (state.index > 0 && state.index >= packets(wr.length, mtu)) {
                *failed = Some(WcFault::CHANGED);
                self.index = 0;
            }
        }
        self.next = Psn::new(state.next);
        self.dead = state.dead != 0;
        self.held = state.held != 0;
    }
}
