// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a responder.

use std::collections::VecDeque;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::headers::Syndrome;
use crate::psn::Psn;
use crate::rc::{MAX_RD_ATOMIC, WINDOW};
use crate::saved::MessageState;
use crate::work::{RecvWr, Remote};

use super::executed::ExecutedRequests;
use super::flush::WAITING;
use super::job::{Job, ResponseContent};
use super::{RequestInProgress, Responder};

/// Maximum number of answers that wait to be sent.
const ANSWERS: usize = MAX_RD_ATOMIC as usize + WAITING;
/// Maximum number of stored results of atomic operations and atomic WRITEs.
const RESULTS: usize = MAX_RD_ATOMIC as usize;
/// Maximum number of executed READs whose PSNs are stored. The same limit applies to FLUSHes.
const REQUESTS: usize = WINDOW as usize;

/// The state of a [`Responder`] without its connection, its attributes and the receive of the
/// message in progress.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponderState {
    /// The message in progress.
    pub message: MessageState,
    /// Answers to be sent, in order.
    pub answers: Kept<AnswerState, ANSWERS>,
    /// Results of the last atomic operations and atomic WRITEs, for duplicates.
    pub results: Kept<ResultState, RESULTS>,
    /// The last executed READs, to recognize duplicates.
    pub reads: Kept<RequestState, REQUESTS>,
    /// The last executed FLUSHes, to recognize duplicates.
    pub flushes: Kept<RequestState, REQUESTS>,
    /// Expected PSN.
    pub expected: u32,
    /// Message sequence number, 24 bits.
    pub msn: u32,
    /// Syndrome of the NAK to be sent, or 0 if there is none.
    pub nak: u8,
    /// 1 if an acknowledgement has to be sent.
    pub ack_pending: u8,
    /// 1 if a NAK has requested the expected packet.
    pub awaiting: u8,
    /// 1 if the connection has ended.
    pub dead: u8,
}

/// A list of up to `N` entries.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Kept<T, const N: usize> {
    /// The entries of the list. Array elements from `count` on are zero.
    pub entries: [T; N],
    /// Number of entries in the list.
    pub count: u64,
}

/// An answer that has not been sent completely.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerState {
    /// PSN, kind and value of the answer.
    pub answer: ResultState,
    /// Number of bytes of a READ that are left to send; 0 for other kinds.
    pub remaining: u32,
    /// R_Key of a READ; 0 for other kinds.
    pub rkey: u32,
    /// MSN of the response packets.
    pub msn: u32,
    /// 1 if a response packet of a READ was sent.
    pub started: u8,
    /// 1 if the request is a duplicate.
    pub duplicate: u8,
    /// Padding, 0.
    pub reserved: [u8; 2],
}

/// The result of an executed request, which the answer reports to the peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultState {
    /// For a READ, the address of the bytes that are left to send. For an atomic operation, the
    /// original value of the word.
    pub value: u64,
    /// PSN of the next response.
    pub psn: u32,
    /// [`READ`], [`ATOMIC`], [`WRITTEN`] or [`FLUSHED`].
    pub kind: u32,
}

/// PSNs of an executed request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestState {
    /// First PSN of the request.
    pub psn: u32,
    /// Number of PSNs of the request.
    pub count: u32,
}

/// Kind of an answer: the data of a READ.
pub const READ: u32 = 1;
/// Kind of an answer: the original value of an atomic operation.
pub const ATOMIC: u32 = 2;
/// Kind of an answer: an atomic WRITE was executed.
pub const WRITTEN: u32 = 3;
/// Kind of an answer: a FLUSH was executed.
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

impl<T: Copy + Default + Serialize, const N: usize> Serialize for Kept<T, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.values())
    }
}

impl<'de, T: Copy + Default + Deserialize<'de>, const N: usize> Deserialize<'de> for Kept<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::deserialize(deserializer)?;
        if values.len() > N {
            return Err(D::Error::invalid_length(values.len(), &"a shorter list"));
        }
        Ok(Self::of(values))
    }
}

impl ResultState {
    fn of(psn: Psn, answer: &ResponseContent) -> Self {
        let (kind, value) = match *answer {
            ResponseContent::Read { remote, .. } => (READ, remote.va),
            ResponseContent::Atomic(original) => (ATOMIC, original),
            ResponseContent::Written => (WRITTEN, 0),
            ResponseContent::Flushed => (FLUSHED, 0),
        };
        Self {
            value,
            psn: psn.value(),
            kind,
        }
    }

    /// The answer; `None` for a READ, because its R_Key and length are in [`AnswerState`].
    fn answer(&self) -> Option<ResponseContent> {
        Some(match self.kind {
            ATOMIC => ResponseContent::Atomic(self.value),
            WRITTEN => ResponseContent::Written,
            FLUSHED => ResponseContent::Flushed,
            _ => return None,
        })
    }
}

impl AnswerState {
    fn of(job: &Job) -> Self {
        let (remaining, rkey, started) = match job.answer {
            ResponseContent::Read {
                remote,
                remaining,
                started,
            } => (remaining, remote.rkey, started),
            ResponseContent::Atomic(_) | ResponseContent::Written | ResponseContent::Flushed => {
                (0, 0, false)
            }
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
        let read = ResponseContent::Read {
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
    /// The state from which another process can continue.
    pub fn save(&self) -> ResponderState {
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
            flushes: (&*self.flushes).into(),
            expected: self.expected.value(),
            msn: self.msn,
            nak: self.nak.map_or(0, Syndrome::encode),
            ack_pending: self.ack_pending.into(),
            awaiting: self.awaiting.into(),
            dead: self.dead.into(),
        }
    }

    /// The receive of the message in progress, if it is a SEND.
    pub fn held(&self) -> Option<&RecvWr<R>> {
        match &self.message {
            Some(RequestInProgress::Send { recv, .. }) => Some(recv),
            Some(RequestInProgress::Write { .. }) | None => None,
        }
    }

    /// Makes a new responder continue from `state`. `recv` is the receive that
    /// [`held`](Self::held) returned.
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
        *self.flushes = (&state.flushes).into();
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
