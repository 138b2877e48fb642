// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Atomic operations and atomic WRITEs. An operation is executed once, when its request arrives in
//! order. Its result is stored for as long as the peer may repeat the request (IBTA 9.4.5).

use crate::env::ResponderEnv;
use crate::headers::Reth;
use crate::psn::Psn;
use crate::work::{AccessFlags, AtomicOp, Remote, ATOMIC_SIZE};

use super::job::ResponseContent;
use super::{NakReason, Responder, INVALID};

impl<R> Responder<R> {
    /// Executes an atomic operation and queues its answer.
    pub(super) fn atomic<E: ResponderEnv<Recv = R>>(
        &mut self,
        at: Remote,
        op: AtomicOp,
        env: &mut E,
    ) -> Result<(), NakReason> {
        self.make_room()?;
        env.begin(at.rkey, AccessFlags::REMOTE_ATOMIC)?;
        let aligned = at.va % u64::from(ATOMIC_SIZE) == 0;
        if !aligned || !self.attr.access.contains(AccessFlags::REMOTE_ATOMIC) {
            return Err(INVALID);
        }
        let original = env.atomic(at, op)?;
        self.keep(ResponseContent::Atomic(original));
        Ok(())
    }

    /// Executes an atomic WRITE and queues its answer (IBTA A19.4.2).
    pub(super) fn atomic_write<E: ResponderEnv<Recv = R>>(
        &mut self,
        reth: Reth,
        payload: &[u8],
        env: &mut E,
    ) -> Result<(), NakReason> {
        self.make_room()?;
        env.begin(reth.rkey, AccessFlags::REMOTE_WRITE)?;
        let data = payload.try_into().map_err(|_| INVALID)?;
        let aligned = reth.va % u64::from(ATOMIC_SIZE) == 0 && reth.length == ATOMIC_SIZE;
        if !aligned || !self.attr.access.contains(AccessFlags::REMOTE_WRITE) {
            return Err(INVALID);
        }
        env.write_word(reth.remote(), data)?;
        self.keep(ResponseContent::Written);
        Ok(())
    }

    /// Queues the answer to the expected request, and stores it for duplicates.
    pub(super) fn keep(&mut self, answer: ResponseContent) {
        if self.results.len() >= self.job_limit() {
            self.results.pop_front();
        }
        self.results.push_back((self.expected, answer));
        self.next_msn();
        self.queue(answer);
    }

    /// Answers a duplicate from its stored result. Ignores a request without a stored result, which
    /// the requester may not repeat: results are stored for as many operations as the requester may
    /// have outstanding.
    pub(super) fn atomic_again(&mut self, psn: Psn) {
        let result = self.results.iter().rev().find(|(at, _)| *at == psn);
        if let Some(&(_, answer)) = result {
            self.queue_again(psn, answer);
        }
    }
}
