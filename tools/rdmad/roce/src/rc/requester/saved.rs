// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a requester.

use serde::{Deserialize, Serialize};

use crate::saved::{or_null, Epoch, FailedWork, NONE};
use crate::work::{SendWr, WcFault};

use super::Requester;

/// The state of a [`Requester`] without its connection, attributes and work requests. Positions of
/// packets count from 0, times from the [`Epoch`]. Congestion window and round-trip times are not
/// saved: a new process measures them again.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequesterState {
    /// Position of the first packet of the oldest work request, or of the next work request if none
    /// is queued.
    pub first: u64,
    /// Position after the last packet of the last work request.
    pub posted: u64,
    /// Position of the oldest unacknowledged packet.
    pub una: u64,
    /// Position of the packet to send next.
    pub next: u64,
    /// Position after the last packet that was ever sent.
    pub sent: u64,
    /// Position to which a response last made the requester go back, or [`NONE`].
    #[serde(with = "or_null")]
    pub went_back: u64,
    /// End of the local ACK timeout, or [`NONE`].
    #[serde(with = "or_null")]
    pub ack_deadline: u64,
    /// End of the delay that an RNR NAK requested, or [`NONE`].
    #[serde(with = "or_null")]
    pub rnr_deadline: u64,
    /// The first work request that can't be executed.
    pub failed: FailedWork,
    /// PSN of the packet at position 0.
    pub sq_psn: u32,
    /// Number of queued operations on local keys that were executed.
    pub locals: u32,
    /// Number of requests in flight that have a response of their own: READs, atomic operations and
    /// FLUSHes.
    pub unanswered: u32,
    /// Number of transport retries left.
    pub retries: u8,
    /// Number of retries left after RNR NAKs.
    pub rnr_retries: u8,
    /// 1 if the connection has ended.
    pub dead: u8,
    /// 1 if the requester starts no further work requests.
    pub held: u8,
}

impl<L> Requester<L> {
    /// The state from which another process can continue.
    pub fn save(&self, epoch: Epoch) -> RequesterState {
        let is_executed = |pending: &&super::Pending<L>| pending.is_local() && !pending.local;
        RequesterState {
            first: self
                .queue
                .front()
                .map_or(self.posted, |pending| pending.first),
            posted: self.posted,
            una: self.una,
            next: self.next,
            sent: self.sent,
            went_back: self.went_back.unwrap_or(NONE),
            ack_deadline: epoch.nanos(self.ack_deadline),
            rnr_deadline: epoch.nanos(self.rnr_deadline),
            failed: FailedWork::first(self.queue.iter().map(|pending| pending.failed)),
            sq_psn: self.attr.sq_psn,
            // The queue bounds the count, so the cast does not truncate.
            locals: self.queue.iter().filter(is_executed).count() as u32,
            unanswered: self.unanswered,
            retries: self.retries,
            rnr_retries: self.rnr_retries,
            dead: self.dead.into(),
            held: self.held.into(),
        }
    }

    /// Makes a new requester continue from `state`. `work` yields all work requests that have not
    /// ended, with the faults that were found now; the requester must have room for them.
    ///
    /// The driver may have changed WQEs in the meantime. If their packets are others than before,
    /// or the state is false, the first work request fails.
    pub fn restore(
        &mut self,
        state: &RequesterState,
        epoch: Epoch,
        work: impl IntoIterator<Item = (SendWr<L>, Option<WcFault>)>,
    ) {
        self.attr.sq_psn = state.sq_psn;
        self.posted = state.first;
        let mut is_changed = false;
        for (index, (wr, found)) in work.into_iter().enumerate() {
            is_changed |= state.failed.is_new(index, found);
            let appended = self.append(wr, state.failed.fault(index));
            debug_assert!(appended.is_ok(), "there is room");
        }
        let are_ordered = [state.una, state.next, state.sent].is_sorted();
        if is_changed || self.posted != state.posted || !are_ordered {
            [self.una, self.next, self.sent] = [state.first; 3];
            if let Some(first) = self.queue.get_mut(0) {
                first.failed = Some(WcFault::CHANGED);
            }
            return;
        }
        self.una = state.una;
        self.next = state.next;
        self.sent = state.sent;
        self.went_back = (state.went_back != NONE).then_some(state.went_back);
        self.ack_deadline = epoch.instant(state.ack_deadline);
        self.rnr_deadline = epoch.instant(state.rnr_deadline);
        self.unanswered = state.unanswered;
        self.retries = state.retries;
        self.rnr_retries = state.rnr_retries;
        self.dead = state.dead != 0;
        self.held = state.held != 0;
        let mut executed = state.locals;
        for index in 0..self.queue.len() {
            let Some(pending) = self.queue.get_mut(index).filter(|_| executed > 0) else {
                break;
            };
            executed -= u32::from(pending.local);
            pending.local = false;
        }
        let is_sent = |pending: &&super::Pending<L>| pending.end <= self.next && !pending.local;
        self.cursor = self.queue.iter().take_while(is_sent).count();
    }
}
