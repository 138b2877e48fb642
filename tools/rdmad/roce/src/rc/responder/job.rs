// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! RDMA READ, and the queue of answers that READs and atomic operations wait in.

use crate::connection::Connection;
use crate::env::ResponderEnv;
use crate::headers::Reth;
use crate::psn::Psn;
use crate::rc::MAX_RD_ATOMIC;
use crate::work::{packets, AccessFlags, Remote, MAX_MESSAGE};

use super::{NakReason, Responder, INVALID};

/// An answer that is not all sent.
#[derive(Debug)]
pub(super) struct Job {
    pub answer: Answer,
    /// PSN of the next response.
    pub psn: Psn,
    /// It was answered before. If memory refuses a READ by now, nobody waits for it.
    pub duplicate: bool,
    pub msn: u32,
}

/// The part that is left to send.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// This range of memory.
    Read {
        remote: Remote,
        remaining: u32,
        started: bool,
    },
    /// The original value of an atomic operation.
    Atomic(u64),
    /// An atomic WRITE is done.
    Written,
    /// A FLUSH is done.
    Flushed,
}

impl Job {
    /// Whether the peer may have only so many of them outstanding: FLUSHes don't count.
    fn is_limited(&self) -> bool {
        !matches!(self.answer, Answer::Flushed)
    }

    /// PSN behind the last response.
    fn end(&self, connection: &Connection) -> Psn {
        match self.answer {
            Answer::Read { remaining, .. } => self.psn.add(packets(remaining, connection.mtu)),
            Answer::Atomic(_) | Answer::Written | Answer::Flushed => self.psn.add(1),
        }
    }
}

impl<R> Responder<R> {
    /// Queues a READ; returns how many PSNs it takes.
    pub(super) fn read<E: ResponderEnv<Recv = R>>(
        &mut self,
        reth: Reth,
        env: &mut E,
    ) -> Result<u32, NakReason> {
        self.make_room()?;
        self.admit(reth, AccessFlags::REMOTE_READ, env)?;
        self.next_msn();
        self.queue(self.expected, read_of(reth), false);
        let count = packets(reth.length, self.connection.mtu);
        self.reads.note(self.expected, count);
        Ok(count)
    }

    /// Answers a READ once more, from the PSN and address of the duplicate on, if one was executed
    /// there.
    pub(super) fn read_again<E: ResponderEnv<Recv = R>>(
        &mut self,
        psn: Psn,
        reth: Reth,
        env: &mut E,
    ) {
        let count = packets(reth.length, self.connection.mtu);
        if self.reads.covers(psn, count) && self.admit(reth, AccessFlags::REMOTE_READ, env).is_ok()
        {
            self.queue_again(psn, read_of(reth));
        }
    }

    /// Makes sure that there is room for one more READ or atomic operation.
    pub(super) fn make_room(&mut self) -> Result<(), NakReason> {
        if self.message.is_some() {
            return Err(INVALID);
        }
        if self.limited_jobs() >= self.job_limit() {
            // The peer never has more of them outstanding than the limit, so it has the answer to
            // the oldest of these by now: it asked again, and then the first answer came after all.
            match self.jobs.iter().position(Job::is_limited) {
                Some(oldest) if self.jobs[oldest].duplicate => self.jobs.remove(oldest),
                _ => return Err(INVALID),
            };
        }
        Ok(())
    }

    /// Answers to requests of which the peer may have only so many outstanding.
    pub(super) fn limited_jobs(&self) -> usize {
        self.jobs.iter().filter(|job| job.is_limited()).count()
    }

    /// READs, atomic operations and atomic WRITEs that the peer may have outstanding.
    pub(super) fn job_limit(&self) -> usize {
        usize::from(self.attr.max_dest_rd_atomic.min(MAX_RD_ATOMIC))
    }

    pub(super) fn queue(&mut self, psn: Psn, answer: Answer, duplicate: bool) {
        self.jobs.push_back(Job {
            answer,
            psn,
            duplicate,
            msn: self.msn,
        });
    }

    /// Queues the answer to a duplicate.
    pub(super) fn queue_again(&mut self, psn: Psn, answer: Answer) {
        // Nothing to repeat when the answer is still to come. Otherwise the requester goes back to
        // this PSN: it has all before it and asks again for all behind it.
        let to_come =
            |job: &Job| psn.since(job.psn) >= 0 && job.end(&self.connection).since(psn) > 0;
        if self.jobs.iter().any(to_come) {
            return;
        }
        while self
            .jobs
            .back()
            .is_some_and(|job| job.end(&self.connection).since(psn) > 0)
        {
            self.jobs.pop_back();
        }
        let room = match answer {
            Answer::Flushed => self.has_room_for_flush(),
            _ => self.limited_jobs() < self.job_limit(),
        };
        if room {
            self.queue(psn, answer, true);
        }
    }

    /// Checks what a RETH names against the QP and the memory.
    pub(super) fn admit<E: ResponderEnv<Recv = R>>(
        &self,
        reth: Reth,
        access: AccessFlags,
        env: &mut E,
    ) -> Result<(), NakReason> {
        if !self.attr.access.contains(access) || reth.length > MAX_MESSAGE {
            return Err(INVALID);
        }
        // An empty range has no address that could be wrong (IBTA 9.7.4.1.3).
        if reth.length > 0 {
            env.check(reth.remote(), reth.length, access)?;
        }
        Ok(())
    }
}

const fn read_of(reth: Reth) -> Answer {
    Answer::Read {
        remote: reth.remote(),
        remaining: reth.length,
        started: false,
    }
}
