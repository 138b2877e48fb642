// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! RDMA READ, and the answers that wait to be sent.

use crate::connection::Connection;
use crate::env::ResponderEnv;
use crate::headers::Reth;
use crate::psn::Psn;
use crate::rc::MAX_RD_ATOMIC;
use crate::work::{packets, AccessFlags, Remote, MAX_MESSAGE};

use super::{NakReason, Responder, INVALID};

/// An answer that has not been sent completely.
#[derive(Debug)]
pub(super) struct Job {
    pub answer: ResponseContent,
    /// PSN of the next response.
    pub psn: Psn,
    /// Whether the request is a duplicate. If the memory of a duplicate READ is no longer
    /// accessible, the answer is dropped and the connection continues.
    pub duplicate: bool,
    pub msn: u32,
}

/// The part of an answer that is left to send.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResponseContent {
    /// `remaining` bytes of memory from `remote` on.
    Read {
        remote: Remote,
        remaining: u32,
        started: bool,
    },
    /// The original value of an atomic operation.
    Atomic(u64),
    /// An atomic WRITE was executed.
    Written,
    /// A FLUSH was executed.
    Flushed,
}

impl Job {
    /// Whether `max_dest_rd_atomic` limits requests of this kind: all but FLUSHes.
    pub(super) fn is_limited(&self) -> bool {
        !matches!(self.answer, ResponseContent::Flushed)
    }

    /// PSN after the last response packet.
    fn end(&self, connection: &Connection) -> Psn {
        match self.answer {
            ResponseContent::Read { remaining, .. } => {
                self.psn.add(packets(remaining, connection.mtu))
            }
            ResponseContent::Atomic(_) | ResponseContent::Written | ResponseContent::Flushed => {
                self.psn.add(1)
            }
        }
    }
}

impl<R> Responder<R> {
    /// Queues a READ. Returns the number of PSNs of the READ.
    pub(super) fn read<E: ResponderEnv<Recv = R>>(
        &mut self,
        reth: Reth,
        env: &mut E,
    ) -> Result<u32, NakReason> {
        self.make_room()?;
        env.begin(reth.rkey, AccessFlags::REMOTE_READ)?;
        self.admit(reth, AccessFlags::REMOTE_READ, env)?;
        self.next_msn();
        self.queue(read_of(reth));
        let count = packets(reth.length, self.connection.mtu);
        self.reads.note(self.expected, count);
        Ok(count)
    }

    /// Answers a duplicate READ if one executed READ covers its PSNs. The duplicate may be a later
    /// part of that READ.
    pub(super) fn read_again<E: ResponderEnv<Recv = R>>(
        &mut self,
        psn: Psn,
        reth: Reth,
        env: &mut E,
    ) {
        let count = packets(reth.length, self.connection.mtu);
        // An answer that waits in this host arrives without being sent again.
        let peer = &self.connection.path.dst_mac;
        let waits = |ticket| env.is_waiting(peer, ticket);
        if self.sent.ticket(psn).is_some_and(waits) {
            return;
        }
        if self.reads.covers(psn, count) && self.admit(reth, AccessFlags::REMOTE_READ, env).is_ok()
        {
            self.queue_again(psn, read_of(reth));
        }
    }

    /// Ensures that the queue has room for one more READ or atomic operation.
    pub(super) fn make_room(&mut self) -> Result<(), NakReason> {
        if self.message.is_some() {
            return Err(INVALID);
        }
        // The peer never has more requests outstanding than the limit. If the oldest queued answer
        // is to a duplicate, the peer has received the first answer to that request in the
        // meantime, so the second one is not needed.
        if self.jobs.limited() >= self.job_limit() && !self.jobs.drop_oldest_duplicate() {
            return Err(INVALID);
        }
        Ok(())
    }

    /// Maximum number of READs, atomic operations and atomic WRITEs that the peer may have
    /// outstanding.
    pub(super) fn job_limit(&self) -> usize {
        usize::from(self.attr.max_dest_rd_atomic.min(MAX_RD_ATOMIC))
    }

    /// Queues the answer to the request with the expected PSN.
    pub(super) fn queue(&mut self, answer: ResponseContent) {
        self.jobs.push(Job {
            answer,
            psn: self.expected,
            duplicate: false,
            msn: self.msn,
        });
    }

    /// Queues the answer to a duplicate.
    pub(super) fn queue_again(&mut self, psn: Psn, answer: ResponseContent) {
        // If the first answer is still queued, it also answers the duplicate.
        let to_come =
            |job: &Job| psn.since(job.psn) >= 0 && job.end(&self.connection).since(psn) > 0;
        if self.jobs.iter().any(to_come) {
            return;
        }
        let again = Job {
            answer,
            psn,
            duplicate: true,
            msn: self.msn,
        };
        // Answers with later PSNs stay. If the requester has gone back, it repeats their requests,
        // which then find them queued. If the duplicate is late, the requester waits for them.
        let later = self.jobs.iter().position(|job| job.psn.since(psn) > 0);
        let end = again.end(&self.connection);
        if let Some(job) = later.and_then(|index| self.jobs.get_mut(index)) {
            // The rest of the answer to the same READ is sent again from `psn` on.
            if end.since(job.psn) > 0 {
                *job = again;
                return;
            }
        }
        let room = match answer {
            ResponseContent::Flushed => self.has_room_for_flush(),
            _ => self.jobs.limited() < self.job_limit(),
        };
        if room {
            self.jobs.insert(later, again);
        }
    }

    /// Checks that the QP permits `access` and that the peer may access the range of `reth`.
    pub(super) fn admit<E: ResponderEnv<Recv = R>>(
        &self,
        reth: Reth,
        access: AccessFlags,
        env: &mut E,
    ) -> Result<(), NakReason> {
        if !self.attr.access.contains(access) || reth.length > MAX_MESSAGE {
            return Err(INVALID);
        }
        // The address and R_Key of an empty range are not checked (IBTA 9.7.4.1.3).
        if reth.length > 0 {
            env.check(reth.remote(), reth.length, access)?;
        }
        Ok(())
    }
}

const fn read_of(reth: Reth) -> ResponseContent {
    ResponseContent::Read {
        remote: reth.remote(),
        remaining: reth.length,
        started: false,
    }
}
