// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The committed state of a responder.

use std::collections::VecDeque;

use crate::committed::MessageState;
use crate::headers::Syndrome;
use crate::psn::Psn;
use crate::rc::{MAX_RD_ATOMIC, WINDOW};
use crate::work::{RecvWr, Remote};

use super::executed::ExecutedRequests;
use super::flush::WAITING;
use super::job::{Answer, Job};
use super::{RequestInProgress, Responder};

/// Answers that wait to be sent at most.
const ANSWERS: usize = MAX_RD_ATOMIC as usize + WAITING;
/// Results of atomic operations that are kept at most.
const RESULTS: usize = MAX_RD_ATOMIC as usize;
/// Requests that are remembered at most.
const REQUESTS: usize = WINDOW as usize;

/// The state of a [`Responder`] beside its connection, its attributes and the receive of a message
/// under way.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderState {
    /// The message under way.
    pub message: MessageState,
    /// Answers that are owed, in order.
    pub answers: Kept<AnswerState, ANSWERS>,
    /// Results of the last atomic operations and atomic WRITEs.
    pub results: Kept<ResultState, RESULTS>,
    /// The last READs.
    pub reads: Kept<RequestState, REQUESTS>,
    /// The last FLUSHes.
    pub flushes: Kept<RequestState, REQUESTS>,
    /// Expected PSN.
    pub expected: u32,
    /// Messages completed, 24 bits.
    pub msn: u32,
    /// Syndrome of the NAK that is owed, or 0.
    pub nak: u8,
    /// 1 if an acknowledgement is owed.
    pub ack_pending: u8,
    /// 1 if a NAK asked for the expected packet.
    pub awaiting: u8,
    /// 1 if the connection has ended.
    pub dead: u8,
}

/// The first `count` of up to `N` entries.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Kept<T, const N: usize> {
    /// Entries; those behind `count` are zero.
    pub entries: [T; N],
    /// How many there are.
    pub count: u64,
}

/// An answer that is not all sent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerState {
    /// The answer.
    pub answer: ResultState,
    /// Bytes of a READ that are left.
    pub remaining: u32,
    /// R_Key of a READ.
    pub rkey: u32,
    /// MSN of its responses.
    pub msn: u32,
    /// 1 if a READ has begun.
    pub started: u8,
    /// 1 if it was answered before.
    pub duplicate: u8,
    /// 0.
    pub reserved: [u8; 2],
}

/// The result of a request, for the peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultState {
    /// Address of the rest of a READ, or the original value of an atomic operation.
    pub value: u64,
    /// PSN of the next response.
    pub psn: u32,
    /// [`READ`], [`ATOMIC`], [`WRITTEN`] or [`FLUSHED`].
    pub kind: u32,
}

/// A request that was executed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestState {
    /// Its first PSN.
    pub psn: u32,
    /// How many it takes.
    pub count: u32,
}

/// Kind of an answer: a range of memory.
pub const READ: u32 = 1;
/// Kind of an answer: the original value of an atomic operation.
pub const ATOMIC: u32 = 2;
/// Kind of an answer: an atomic WRITE is done.
pub const WRITTEN: u32 = 3;
/// Kind of an answer: a FLUSH is done.
pub const FLUSHED: u32 = 4;

impl<T: Copy + Default, const N: usize> Kept<T, N> {
    fn of(values: impl IntoIterator<Item = T>) -> Self {
        let mut kept = Self {
            entries: [T::default(); N],
            count: 0,
        };
        for (entry, value) in kept.entries.iter_mut().zip(values) {
            *entry = value;
            kept.count += 1;
        }
        kept
    }

    fn values(&self) -> impl Iterator<Item = T> + '_ {
        let count = usize::try_from(self.count).unwrap_or(N);
        self.entries.iter().take(count).copied()
    }
}

impl<T: Copy + Default + PartialEq, const N: usize> PartialEq for Kept<T, N> {
    fn eq(&self, other: &Self) -> bool {
        self.values().eq(other.values())
    }
}

impl<T: Copy + Default + Eq, const N: usize> Eq for Kept<T, N> {}

impl ResultState {
    fn of(psn: Psn, answer: &Answer) -> Self {
        let (kind, value) = match *answer {
            Answer::Read { remote, .. } => (READ, remote.va),
            Answer::Atomic(original) => (ATOMIC, original),
            Answer::Written => (WRITTEN, 0),
            Answer::Flushed => (FLUSHED, 0),
        };
        Self {
            value,
            psn: psn.value(),
            kind,
        }
    }

    /// The answer, unless it is a READ, of which this is not all.
    fn answer(&self) -> Option<Answer> {
        Some(match self.kind {
            ATOMIC => Answer::Atomic(self.value),
            WRITTEN => Answer::Written,
            FLUSHED => Answer::Flushed,
            _ => return None,
        })
    }
}

impl AnswerState {
    fn of(job: &Job) -> Self {
        let (remaining, rkey, started) = match job.answer {
            Answer::Read {
                remote,
                remaining,
                started,
            } => (remaining, remote.rkey, started),
            Answer::Atomic(_) | Answer::Written | Answer::Flushed => (0, 0, false),
        };
        Self {
            answer: ResultState::of(job.psn, &job.answer),
            remaining,
            rkey,
            msn: job.msn,
            started: started.into(),
            duplicate: job.duplicate.into(),
            reserved: [0; 2],
        }
    }

    fn job(&self) -> Job {
        let read = Answer::Read {
            remote: Remote {
                va: self.answer.value,
                rkey: self.rkey,
            },
            remaining: self.remaining,
            started: self.started != 0,
        };
        Job {
            answer: self.answer.answer().unwrap_or(read),
            psn: Psn::new(self.answer.psn),
            duplicate: self.duplicate != 0,
            msn: self.msn,
        }
    }
}

impl<const N: usize> From<&ExecutedRequests> for Kept<RequestState, N> {
    fn from(executed: &ExecutedRequests) -> Self {
        let requests = executed.iter().map(|(psn, count)| RequestState {
            psn: psn.value(),
            count,
        });
        Self::of(requests)
    }
}

impl<const N: usize> From<&Kept<RequestState, N>> for ExecutedRequests {
    fn from(kept: &Kept<RequestState, N>) -> Self {
        let mut executed = Self::default();
        for RequestState { psn, count } in kept.values() {
            executed.note(Psn::new(psn), count);
        }
        executed
    }
}

impl<R> Responder<R> {
    /// The state to go on from in another process.
    pub fn commit(&self) -> ResponderState {
        let results = self.results.iter();
        ResponderState {
            message: match &self.message {
                None => MessageState::NONE,
                Some(RequestInProgress::Send { received, .. }) => MessageState::send(*received),
                Some(RequestInProgress::Write { reth, received }) => {
                    MessageState::write(*reth, *received)
                }
            },
            answers: Kept::of(self.jobs.iter().map(AnswerState::of)),
            results: Kept::of(results.map(|(psn, answer)| ResultState::of(*psn, answer))),
            reads: (&self.reads).into(),
            flushes: (&self.flushes).into(),
            expected: self.expected.value(),
            msn: self.msn,
            nak: self.nak.map_or(0, Syndrome::encode),
            ack_pending: self.ack_pending.into(),
            awaiting: self.awaiting.into(),
            dead: self.dead.into(),
        }
    }

    /// The receive of a message under way.
    pub fn held(&self) -> Option<&RecvWr<R>> {
        match &self.message {
            Some(RequestInProgress::Send { recv, .. }) => Some(recv),
            Some(RequestInProgress::Write { .. }) | None => None,
        }
    }

    /// Has a new responder go on from `state`, with the receive that it held.
    pub fn restore(&mut self, state: &ResponderState, recv: Option<RecvWr<R>>) {
        let MessageState { received, .. } = state.message;
        self.message = match state.message.reth() {
            Some(reth) => Some(RequestInProgress::Write { reth, received }),
            None => recv.map(|recv| RequestInProgress::Send { recv, received }),
        };
        self.jobs = state.answers.values().map(|answer| answer.job()).collect();
        let results = state.results.values();
        self.results = results
            .filter_map(|result| Some((Psn::new(result.psn), result.answer()?)))
            .collect::<VecDeque<_>>();
        self.reads = (&state.reads).into();
        self.flushes = (&state.flushes).into();
        self.expected = Psn::new(state.expected);
        self.msn = state.msn;
        self.nak = match state.nak {
            0 => None,
            syndrome => Syndrome::decode(syndrome),
        };
        self.ack_pending = state.ack_pending != 0;
        self.awaiting = state.awaiting != 0;
        self.dead = state.dead != 0;
    }
}
