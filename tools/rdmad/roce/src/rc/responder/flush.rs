// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! FLUSH (IBTA A19.4.1). A duplicate is answered but not executed: a second execution would have no
//! effect.

use crate::env::ResponderEnv;
use crate::psn::Psn;
use crate::work::FlushOp;

use super::job::ResponseContent;
use super::{NakReason, Responder, INVALID};

/// Maximum number of answers to FLUSHes that wait to be sent. A peer may have more FLUSHes
/// outstanding: those beyond this limit are dropped, and a NAK requests them again.
pub(super) const WAITING: usize = 64;

impl<R> Responder<R> {
    /// Executes a FLUSH and queues its answer.
    pub(super) fn flush<E: ResponderEnv<Recv = R>>(
        &mut self,
        flush: FlushOp,
        env: &mut E,
    ) -> Result<(), NakReason> {
        if self.message.is_some() || !self.attr.access.contains(flush.access()) {
            return Err(INVALID);
        }
        if !self.has_room_for_flush() {
            return Err(NakReason::Busy);
        }
        env.begin(flush.remote.rkey, flush.access())?;
        env.flush(&flush)?;
        self.next_msn();
        self.queue(ResponseContent::Flushed);
        self.flushes.note(self.expected, 1);
        Ok(())
    }

    pub(super) fn has_room_for_flush(&self) -> bool {
        self.jobs.unlimited() < WAITING
    }

    /// Answers a duplicate if a FLUSH was executed at this PSN. The R_Key is not checked again.
    pub(super) fn flush_again(&mut self, psn: Psn) {
        if self.flushes.covers(psn, 1) {
            self.queue_again(psn, ResponseContent::Flushed);
        }
    }
}
