// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Responses: acknowledgements, NAKs, READ data and results of atomic operations.

use std::time::Instant;

use crate::connection::QpError;
use crate::env::{Incident, RequesterEnv};
use crate::headers::{Aeth, Body, NakCode, RcResponse, ReadPart, Syndrome};
use crate::opcode::Position;
use crate::packet::Packet;
use crate::rc::congestion::is_marked;
use crate::rc::timer::rnr_delay;
use crate::rc::RNR_RETRY_FOREVER;
use crate::work::{SendOp, WcFault};

use super::{Pending, Requester};

impl<L> Requester<L> {
    /// Handles a response of this connection. Ignores requests, and responses to packets that are
    /// already acknowledged or were not sent.
    pub fn on_packet<E: RequesterEnv<Send = L>>(
        &mut self,
        packet: &Packet<'_>,
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        let Body::Response(response) = packet.headers.body else {
            return Ok(());
        };
        if self.dead {
            return Ok(());
        }
        let psn = packet.headers.bth.psn;
        if is_marked(&packet.path) {
            env.note(Incident::Marked, psn, 0);
            self.window.notified(self.una, self.sent);
        }
        if response == RcResponse::Congestion {
            env.note(Incident::NotificationReceived, self.psn(self.una), 0);
            self.window.notified(self.una, self.sent);
        }
        let distance = psn.since(self.psn(self.una));
        let Ok(distance) = u64::try_from(distance) else {
            return Ok(());
        };
        let at = self.una + distance;
        if at >= self.sent {
            return Ok(());
        }
        // An acknowledgement covers its own packet and all earlier ones. Any other response covers
        // only the earlier packets.
        let (end, incident) = match response {
            RcResponse::Ack(Aeth { syndrome, .. }) => match syndrome {
                Syndrome::Ack(_) => (at + 1, None),
                Syndrome::Rnr(_) => (
                    at,
                    Some((Incident::RnrNakReceived, self.rnr_retries.into())),
                ),
                Syndrome::Nak(code) => (at, Some((Incident::NakReceived, code as u32))),
            },
            RcResponse::Read(part) if part.aeth().is_none_or(|aeth| aeth.is_ack()) => (at, None),
            RcResponse::Atomic(aeth, _) if aeth.is_ack() => (at, None),
            RcResponse::Read(_) | RcResponse::Atomic(..) | RcResponse::Congestion => return Ok(()),
        };
        self.acknowledge(end, now, env)?;
        if let Some((incident, number)) = incident {
            env.note(incident, psn, number);
        }
        if self.una < end {
            if self.went_back != Some(self.una) {
                env.note(
                    Incident::ResponseLost,
                    self.psn(self.una),
                    self.retries.into(),
                );
            }
            return self.go_back_once(env);
        }
        match response {
            RcResponse::Read(part) => self.read_response(part, packet.payload, now, env),
            RcResponse::Atomic(_, original) => self.atomic_response(original, now, env),
            RcResponse::Ack(Aeth { syndrome, .. }) => match syndrome {
                Syndrome::Ack(_) => Ok(()),
                Syndrome::Rnr(timer) => self.not_ready(timer, now, env),
                Syndrome::Nak(code) => self.refused(code, env),
            },
            RcResponse::Congestion => Ok(()),
        }
    }

    /// Handles a NAK of the packet at `una`.
    fn refused<E: RequesterEnv<Send = L>>(
        &mut self,
        code: NakCode,
        env: &mut E,
    ) -> Result<(), QpError> {
        let fault = match code {
            NakCode::PsnSequence => return self.go_back_once(env),
            NakCode::InvalidRequest => WcFault::PEER_INVALID_REQUEST,
            NakCode::RemoteAccess => WcFault::PEER_ACCESS,
            NakCode::RemoteOperational => WcFault::PEER_OPERATION,
        };
        Err(self.fail(fault, env))
    }

    /// Marks packets before `end` as acknowledged, up to the first request that has a response of
    /// its own. If `una` is below `end` afterwards, that response got lost.
    fn acknowledge<E: RequesterEnv<Send = L>>(
        &mut self,
        end: u64,
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        let reached = self
            .queue
            .iter()
            .take_while(|pending| pending.first < end)
            .find(|pending| pending.is_answered())
            .map_or(end, |pending| pending.first.max(self.una));
        if reached > self.una {
            self.progress(reached, now);
            self.complete_acked(env)?;
        }
        Ok(())
    }

    /// Handles the READ response at `una`.
    fn read_response<E: RequesterEnv<Send = L>>(
        &mut self,
        part: ReadPart,
        payload: &[u8],
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        let position = part.position();
        let at = self.una;
        let is_done = |pending: &&Pending<L>| {
            matches!(pending.wr.op, SendOp::AtomicWrite { .. } | SendOp::Flush(_))
        };
        if self.queue.front().filter(is_done).is_some() {
            return self.done(position, payload, now, env);
        }
        let read = self
            .queue
            .front()
            .filter(|pending| matches!(pending.wr.op, SendOp::Read { .. }));
        let Some(read) = read else {
            return Err(self.fail(WcFault::BAD_RESPONSE, env));
        };
        let mtu = self.connection.mtu.bytes();
        // A message has at most 2^23 packets, so the cast does not truncate.
        let offset = (at - read.first) as u32 * mtu;
        let ends = at + 1 == read.request_end(at);
        if position.ends() != ends {
            return Err(self.fail(WcFault::BAD_RESPONSE, env));
        }
        let expected = (read.wr.length - offset).min(mtu);
        if payload.len() != expected as usize {
            return Err(self.fail(WcFault::BAD_RESPONSE_LENGTH, env));
        }
        if !payload.is_empty() {
            let last = at + 1 == read.end;
            if let Err(fault) = env.scatter_read(&read.wr.local, offset, payload, last) {
                return Err(self.fail(fault, env));
            }
        }
        // `rewind` has set the count to 0 if the request is to be retransmitted. A response to its
        // first transmission may still arrive and must not make the count negative.
        self.unanswered = self.unanswered.saturating_sub(u32::from(ends));
        self.progress(at + 1, now);
        self.complete_acked(env)
    }

    /// Handles the response to the atomic WRITE or FLUSH at `una`: a READ response without data
    /// (IBTA A19.4).
    fn done<E: RequesterEnv<Send = L>>(
        &mut self,
        position: Position,
        payload: &[u8],
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        if position != Position::Only || !payload.is_empty() {
            return Err(self.fail(WcFault::BAD_RESPONSE, env));
        }
        // Saturates for the same reason as in `read_response`.
        self.unanswered = self.unanswered.saturating_sub(1);
        self.progress(self.una + 1, now);
        self.complete_acked(env)
    }

    /// Handles the response to the atomic operation at `una`, with the original value of the word.
    fn atomic_response<E: RequesterEnv<Send = L>>(
        &mut self,
        original: u64,
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        let atomic = self
            .queue
            .front()
            .filter(|pending| matches!(pending.wr.op, SendOp::Atomic { .. }));
        let Some(atomic) = atomic else {
            return Err(self.fail(WcFault::BAD_RESPONSE, env));
        };
        let bytes = original.to_le_bytes();
        if let Err(fault) = env.scatter_read(&atomic.wr.local, 0, &bytes, true) {
            return Err(self.fail(fault, env));
        }
        // Saturates for the same reason as in `read_response`.
        self.unanswered = self.unanswered.saturating_sub(1);
        self.progress(self.una + 1, now);
        self.complete_acked(env)
    }

    /// Advances `self.una` to `una`.
    fn progress(&mut self, una: u64, now: Instant) {
        self.window.progress(una - self.una);
        self.una = una;
        if self.next < una {
            self.next = una;
            self.probing = false;
        }
        self.restore_retries();
        self.prober.progress(una, now);
        self.rnr_deadline = None;
        self.ack_deadline = None;
        if self.una < self.next {
            self.start_ack_timer(now);
        }
    }

    /// Handles an RNR NAK: retransmits after the delay that the responder requests.
    fn not_ready<E: RequesterEnv<Send = L>>(
        &mut self,
        timer: u8,
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        if self.rnr_deadline.is_some() {
            return Ok(());
        }
        if self.attr.rnr_retry != RNR_RETRY_FOREVER {
            let Some(left) = self.rnr_retries.checked_sub(1) else {
                return Err(self.fail(WcFault::PEER_NOT_READY, env));
            };
            self.rnr_retries = left;
        }
        self.ack_deadline = None;
        self.rewind();
        self.rnr_deadline = Some(now + rnr_delay(timer));
        Ok(())
    }
}
