// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The committed state of a requester.

use crate::committed::{Epoch, FailedWork, NONE};
use crate::work::SendWr;

use super::Requester;

/// The state of a [`Requester`] beside its connection, attributes and work requests. Packets count
/// from 0, times as in [`Epoch`]. Round trips are not kept: they are learned anew.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterState {
    /// First packet of the oldest work request, or of the next one.
    pub first: u64,
    /// Oldest packet that is not acknowledged.
    pub una: u64,
    /// Packet to send next.
    pub next: u64,
    /// End of what was ever sent.
    pub sent: u64,
    /// Packet to which a packet last made it go back, or [`NONE`].
    pub went_back: u64,
    /// End of the wait for an acknowledgement, or [`NONE`].
    pub ack_deadline: u64,
    /// End of the pause that an RNR NAK asked for, or [`NONE`].
    pub rnr_deadline: u64,
    /// Work request that can't be executed.
    pub failed: FailedWork,
    /// PSN of packet 0.
    pub sq_psn: u32,
    /// Operations on local keys, among the work requests, that were executed.
    pub locals: u32,
    /// Requests with an answer of their own, sent and not answered.
    pub unanswered: u32,
    /// Transport retries that are left.
    pub retries: u8,
    /// Retries after RNR NAKs that are left.
    pub rnr_retries: u8,
    /// 1 if the connection has ended.
    pub dead: u8,
    /// 1 if no work request begins.
    pub held: u8,
}

impl<L> Requester<L> {
    /// The state to go on from in another process.
    pub fn commit(&self, epoch: Epoch) -> RequesterState {
        let is_executed = |pending: &&super::Pending<L>| pending.is_local() && !pending.local;
        RequesterState {
            first: self
                .queue
                .front()
                .map_or(self.posted, |pending| pending.first),
            una: self.una,
            next: self.next,
            sent: self.sent,
            went_back: self.went_back.unwrap_or(NONE),
            ack_deadline: epoch.nanos(self.ack_deadline),
            rnr_deadline: epoch.nanos(self.rnr_deadline),
            failed: FailedWork::first(self.queue.iter().map(|pending| pending.failed)),
            sq_psn: self.attr.sq_psn,
            // At most as many as the queue holds.
            locals: self.queue.iter().filter(is_executed).count() as u32,
            unanswered: self.unanswered,
            retries: self.retries,
            rnr_retries: self.rnr_retries,
            dead: self.dead.into(),
            held: self.held.into(),
        }
    }

    /// Has a new requester, which has room for `work`, go on from `state`. `work` are all work
    /// requests that have not ended.
    pub fn restore(
        &mut self,
        state: &RequesterState,
        epoch: Epoch,
        work: impl IntoIterator<Item = SendWr<L>>,
    ) {
        self.attr.sq_psn = state.sq_psn;
        self.posted = state.first;
        for (index, wr) in work.into_iter().enumerate() {
            let appended = self.append(wr, state.failed.status(index));
            debug_assert!(appended.is_ok(), "there is room");
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
        let is_behind = |pending: &&super::Pending<L>| pending.end <= self.next && !pending.local;
        self.cursor = self.queue.iter().take_while(is_behind).count();
    }
}
