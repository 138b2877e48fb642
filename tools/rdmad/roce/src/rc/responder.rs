// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The responder of a reliable connection (IBTA 9.7.4, 9.7.5, 9.9.3).
//!
//! Requests are executed as they arrive, and `transmit` sends their responses: first those of
//! READs, atomic operations and FLUSHes, in the order of the requests, then at most one
//! acknowledgement or NAK. An acknowledgement has the PSN before the expected one, so it
//! acknowledges any number of requests.

mod answer;
mod atomic;
mod executed;
mod flush;
mod job;
mod message;
mod queue;
mod saved;
mod sent;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Instant;

use virtio_rdma_abi::ib::MASK_24;

use crate::connection::{Connection, QpError, TemplatedConnection};
use crate::env::{BadReceive, Incident, RemoteFault, ResponderEnv};
use crate::headers::{Body, NakCode, Part, RcRequest, Syndrome};
use crate::net::Path;
use crate::opcode::Position;
use crate::packet::Packet;
use crate::psn::Psn;
use crate::work::{AsyncEvent, FlushOp, Mtu, RecvWr};

use self::executed::ExecutedRequests;
use self::job::{Job, ResponseContent};
use self::message::RequestInProgress;
use self::queue::JobQueue;
pub use self::saved::ResponderState;
use self::sent::SentAnswers;
use super::congestion::{capable, is_marked, CongestionNotifier};
use super::ResponderAttr;

/// Why a request is not executed.
#[derive(Clone, Copy, Debug)]
enum NakReason {
    /// No receive is posted.
    NotReady,
    /// There is no room for the response. The request is dropped, and the NAK requests it again.
    Busy,
    /// The connection ends with this NAK and raises this event.
    Fatal(NakCode, Option<AsyncEvent>),
}

/// The reason for a NAK if the opcode, the length or the sequence of packets is invalid, or if the
/// QP does not permit the operation.
const INVALID: NakReason = NakReason::Fatal(NakCode::InvalidRequest, Some(AsyncEvent::QpReqErr));

impl From<RemoteFault> for NakReason {
    fn from(fault: RemoteFault) -> Self {
        let (code, event) = nak_of(fault);
        Self::Fatal(code, Some(event))
    }
}

/// The NAK and the event of a connection that ends with `fault`.
const fn nak_of(fault: RemoteFault) -> (NakCode, AsyncEvent) {
    match fault {
        RemoteFault::Access => (NakCode::RemoteAccess, AsyncEvent::QpAccessErr),
        RemoteFault::Invalid => (NakCode::InvalidRequest, AsyncEvent::QpReqErr),
        RemoteFault::Operational => (NakCode::RemoteOperational, AsyncEvent::QpFatal),
    }
}

impl From<BadReceive> for NakReason {
    fn from(_: BadReceive) -> Self {
        Self::Fatal(NakCode::RemoteOperational, None)
    }
}

/// Executes the requests of the peer of one QP. `R` describes the local memory of a receive work
/// request.
#[derive(Debug)]
pub struct Responder<R> {
    connection: TemplatedConnection,
    attr: ResponderAttr,
    /// Expected PSN.
    expected: Psn,
    /// Message sequence number: messages completed, modulo 2^24.
    msn: u32,
    message: Option<RequestInProgress<R>>,
    jobs: JobQueue,
    /// PSNs and results of the last atomic operations and atomic WRITEs, to answer duplicates.
    results: VecDeque<(Psn, ResponseContent)>,
    /// PSNs of the last READs, to recognize duplicates.
    reads: ExecutedRequests,
    /// PSNs of the last FLUSHes. Boxed, so that the responder stays small: few peers use FLUSHes.
    flushes: Box<ExecutedRequests>,
    /// Boxed like `flushes`: few duplicates are of answers that wait.
    sent: Box<SentAnswers>,
    ack_pending: bool,
    nak: Option<Syndrome>,
    /// Whether a NAK has requested the expected packet. Until that packet arrives, later packets
    /// are dropped without another NAK.
    awaiting: bool,
    /// Boxed like `flushes`: few connections ever meet congestion.
    notifier: Box<CongestionNotifier>,
    dead: bool,
}

impl<R> Responder<R> {
    /// Maximum number of bytes that the queues of a responder allocate if its `max_dest_rd_atomic`
    /// is `max_rd_atomic`. Each queue grows by doubling.
    pub const fn queues(max_rd_atomic: u8) -> usize {
        let limit = max_rd_atomic as usize;
        let jobs = (limit + flush::WAITING).next_power_of_two();
        let results = limit.next_power_of_two();
        jobs * size_of::<Job>()
            + results * size_of::<(Psn, ResponseContent)>()
            + 2 * ExecutedRequests::SIZE
    }

    /// A responder that expects the packet with PSN `rq_psn`.
    pub fn new(mut connection: Connection, attr: ResponderAttr) -> Self {
        connection.path = capable(connection.path);
        Self {
            connection: TemplatedConnection::new(connection),
            attr,
            expected: Psn::new(attr.rq_psn),
            msn: 0,
            message: None,
            jobs: JobQueue::default(),
            results: VecDeque::new(),
            reads: ExecutedRequests::default(),
            flushes: Box::default(),
            sent: Box::default(),
            ack_pending: false,
            nak: None,
            awaiting: false,
            notifier: Box::default(),
            dead: false,
        }
    }

    /// Current attributes.
    pub fn attr(&self) -> &ResponderAttr {
        &self.attr
    }

    /// Changes `min_rnr_timer`, `max_dest_rd_atomic` and `access`. `rq_psn` does not change.
    pub fn set_attr(&mut self, attr: ResponderAttr) {
        self.attr = ResponderAttr {
            rq_psn: self.attr.rq_psn,
            ..attr
        };
    }

    /// Changes the path of responses to the peer.
    pub fn set_path(&mut self, path: Path) {
        self.connection.set_path(capable(path));
    }

    /// Path MTU.
    pub fn mtu(&self) -> Mtu {
        self.connection.mtu
    }

    /// Expected PSN.
    pub fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Message sequence number.
    pub fn msn(&self) -> u32 {
        self.msn
    }

    /// Skips the PSNs of `packets` packets and counts `messages` messages that were transferred
    /// without packets.
    pub fn advance(&mut self, packets: u32, messages: u32) {
        self.expected = self.expected.add(packets);
        self.msn = self.msn.wrapping_add(messages) & MASK_24;
    }

    /// Ends the connection and returns the receive of an incomplete message. Queued responses
    /// remain to be sent.
    pub fn drain(&mut self) -> Option<RecvWr<R>> {
        self.dead = true;
        match self.message.take() {
            Some(RequestInProgress::Send { recv, .. }) => Some(recv),
            Some(RequestInProgress::Write { .. }) | None => None,
        }
    }

    /// Whether [`transmit`](Self::transmit) has something to send.
    pub fn has_output(&self) -> bool {
        !self.jobs.is_empty() || self.nak.is_some() || self.ack_pending || self.notifier.is_owed()
    }

    /// Handles a request of this connection. Ignores any other packet.
    pub fn on_packet<E: ResponderEnv<Recv = R>>(
        &mut self,
        packet: &Packet<'_>,
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        let Body::Request(request) = packet.headers.body else {
            return Ok(());
        };
        if self.dead {
            return Ok(());
        }
        let psn = packet.headers.bth.psn;
        if is_marked(&packet.path) {
            env.note(Incident::Marked, psn, 0);
            self.notifier.note(now);
        }
        let distance = psn.since(self.expected);
        if distance > 0 {
            env.note(Incident::OutOfSequence, psn, self.expected.value());
            if !self.awaiting {
                self.awaiting = true;
                self.nak = Some(Syndrome::Nak(NakCode::PsnSequence));
            }
            return Ok(());
        }
        if distance < 0 {
            env.note(Incident::Duplicate, psn, self.expected.value());
            self.duplicate(request, psn, env);
            return Ok(());
        }
        self.awaiting = false;
        match self.execute(request, packet, env) {
            Ok(()) => {
                if matches!(self.nak, Some(Syndrome::Rnr(_))) {
                    self.nak = None;
                }
                Ok(())
            }
            Err(NakReason::NotReady) => {
                self.awaiting = true;
                self.nak = Some(Syndrome::Rnr(self.attr.min_rnr_timer));
                Ok(())
            }
            Err(NakReason::Busy) => {
                self.awaiting = true;
                self.nak = Some(Syndrome::Nak(NakCode::PsnSequence));
                Ok(())
            }
            Err(NakReason::Fatal(code, event)) => Err(self.fail(code, event)),
        }
    }

    /// Executes a request with the expected PSN.
    fn execute<E: ResponderEnv<Recv = R>>(
        &mut self,
        request: RcRequest,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), NakReason> {
        let taken = match request {
            RcRequest::Part(part) => {
                match part {
                    Part::Send(part) => self.send(part, packet, env)?,
                    Part::Write(part) => self.write(part, packet, env)?,
                }
                self.took_packet(part.position(), packet.headers.bth.ack_req);
                return Ok(());
            }
            RcRequest::Read(reth) => self.read(reth, env)?,
            RcRequest::Atomic(remote, op) => {
                self.atomic(remote, op, env)?;
                1
            }
            RcRequest::AtomicWrite(reth) => {
                self.atomic_write(reth, packet.payload, env)?;
                1
            }
            RcRequest::Flush(feth, reth) => {
                self.flush(FlushOp::new(feth, reth), env)?;
                1
            }
        };
        // The response also acknowledges all earlier requests.
        self.ack_pending = false;
        self.expected = self.expected.add(taken);
        Ok(())
    }

    /// Counts an executed packet of a SEND or WRITE.
    fn took_packet(&mut self, position: Position, ack_req: bool) {
        self.expected = self.expected.add(1);
        self.ack_pending |= ack_req;
        if position.ends() {
            self.next_msn();
        }
    }

    fn next_msn(&mut self) {
        self.msn = (self.msn + 1) & MASK_24;
    }

    /// Handles a duplicate: a request with a PSN before the expected one. SENDs and WRITEs are
    /// acknowledged once more. READs, atomic operations and FLUSHes are answered once more if the
    /// same kind of request was executed at this PSN. Otherwise they are ignored, because an answer
    /// to a duplicate replaces the queued responses with this and later PSNs.
    fn duplicate<E: ResponderEnv<Recv = R>>(&mut self, request: RcRequest, psn: Psn, env: &mut E) {
        match request {
            RcRequest::Part(_) => self.ack_pending = true,
            RcRequest::Read(reth) => self.read_again(psn, reth, env),
            RcRequest::Atomic(..) | RcRequest::AtomicWrite(_) => self.atomic_again(psn),
            RcRequest::Flush(..) => self.flush_again(psn),
        }
    }

    fn fail(&mut self, code: NakCode, event: Option<AsyncEvent>) -> QpError {
        self.dead = true;
        self.nak = Some(Syndrome::Nak(code));
        QpError { event }
    }
}
