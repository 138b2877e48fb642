// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The responder of a reliable connection (IBTA 9.7.4, 9.7.5, 9.9.3).
//!
//! Requests execute as they arrive; what they cause to be sent waits for `transmit`: READ responses in the order of
//! their requests, then at most one acknowledgement or NAK. The acknowledgement always names the last packet before the
//! expected one, so any number of requests share it.

mod answer;

use std::collections::VecDeque;

use virtio_rdma_abi::ib::MASK_24;

use crate::headers::{NakCode, Reth, Syndrome};
use crate::net::Path;
use crate::opcode::{Extra, Op, Position};
use crate::packet::Packet;
use crate::psn::Psn;
use crate::work::{
    packets, AccessFlags, AsyncEvent, RecvCompletion, RecvWr, Remote, WcStatus, MAX_MESSAGE,
};

use super::env::{BadReceive, RemoteFault, ResponderEnv};
use super::{Connection, QpError, ResponderAttr, MAX_RD_ATOMIC};

/// A message of which the last packet has not arrived.
#[derive(Debug)]
enum Message<R> {
    Send { recv: RecvWr<R>, received: u32 },
    Write { reth: Reth, received: u32 },
}

/// A READ whose responses are not all sent.
#[derive(Debug)]
struct ReadJob {
    /// What is left to send.
    remote: Remote,
    remaining: u32,
    /// PSN of the next response.
    psn: Psn,
    started: bool,
    /// Executed before; if memory refuses it by now, nobody waits for it.
    duplicate: bool,
    msn: u32,
}

impl ReadJob {
    /// PSN behind the last response.
    fn end(&self, connection: &Connection) -> Psn {
        self.psn.add(packets(self.remaining, connection.mtu))
    }
}

/// Why a request is not executed.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// No receive is posted.
    NotReady,
    /// The connection ends with this NAK.
    Fatal(NakCode, Option<AsyncEvent>),
}

/// Opcode, length or sequence of packets is not as it must be, or the QP does not admit the operation.
const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, Some(AsyncEvent::QpReqErr));

impl From<RemoteFault> for Refusal {
    fn from(fault: RemoteFault) -> Self {
        let (code, event) = nak_of(fault);
        Self::Fatal(code, Some(event))
    }
}

/// How a fault of this side's memory ends the connection.
const fn nak_of(fault: RemoteFault) -> (NakCode, AsyncEvent) {
    match fault {
        RemoteFault::Access => (NakCode::RemoteAccess, AsyncEvent::QpAccessErr),
        RemoteFault::Operational => (NakCode::RemoteOperational, AsyncEvent::QpFatal),
    }
}

impl From<BadReceive> for Refusal {
    fn from(_: BadReceive) -> Self {
        Self::Fatal(NakCode::RemoteOperational, None)
    }
}

/// Executes the requests of the peer of one QP. `R` finds the local memory of a receive work request.
#[derive(Debug)]
pub struct Responder<R> {
    connection: Connection,
    attr: ResponderAttr,
    /// Expected PSN.
    expected: Psn,
    /// Messages completed, 24 bits.
    msn: u32,
    message: Option<Message<R>>,
    reads: VecDeque<ReadJob>,
    ack_pending: bool,
    nak: Option<Syndrome>,
    /// A NAK asked for the expected packet; until it arrives, later ones are dropped without another NAK.
    awaiting: bool,
    dead: bool,
}

impl<R> Responder<R> {
    /// A responder that expects its first packet.
    pub fn new(connection: Connection, attr: ResponderAttr) -> Self {
        let reads = usize::from(attr.max_dest_rd_atomic.min(MAX_RD_ATOMIC));
        Self {
            connection,
            attr,
            expected: Psn::new(attr.rq_psn),
            msn: 0,
            message: None,
            reads: VecDeque::with_capacity(reads),
            ack_pending: false,
            nak: None,
            awaiting: false,
            dead: false,
        }
    }

    /// Attributes in force.
    pub fn attr(&self) -> &ResponderAttr {
        &self.attr
    }

    /// Changes RNR timer, READ limit and access; `rq_psn` stays what it was.
    pub fn set_attr(&mut self, attr: ResponderAttr) {
        self.attr = ResponderAttr {
            rq_psn: self.attr.rq_psn,
            ..attr
        };
    }

    /// Changes the path that answers take.
    pub fn set_path(&mut self, path: Path) {
        self.connection.path = path;
    }

    /// Expected PSN.
    pub fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Message sequence number.
    pub fn msn(&self) -> u32 {
        self.msn
    }

    /// Counts packets and messages as received that another path than this one carried.
    pub fn advance(&mut self, packets: u32, messages: u32) {
        self.expected = self.expected.add(packets);
        self.msn = self.msn.wrapping_add(messages) & MASK_24;
    }

    /// Ends the connection and takes back a receive whose message is incomplete. What is to be sent stays.
    pub fn drain(&mut self) -> Option<RecvWr<R>> {
        self.dead = true;
        match self.message.take() {
            Some(Message::Send { recv, .. }) => Some(recv),
            Some(Message::Write { .. }) | None => None,
        }
    }

    /// Whether [`transmit`](Self::transmit) has something to send.
    pub fn has_output(&self) -> bool {
        !self.reads.is_empty() || self.nak.is_some() || self.ack_pending
    }

    /// Takes a request of this connection.
    pub fn on_packet<E: ResponderEnv<Recv = R>>(
        &mut self,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), QpError> {
        if self.dead {
            return Ok(());
        }
        let distance = packet.transport.bth.psn.since(self.expected);
        if distance > 0 {
            if !self.awaiting {
                self.awaiting = true;
                self.nak = Some(Syndrome::Nak(NakCode::PsnSequence));
            }
            return Ok(());
        }
        if distance < 0 {
            self.duplicate(packet, distance.unsigned_abs(), env);
            return Ok(());
        }
        self.awaiting = false;
        match self.execute(packet, env) {
            Ok(()) => {
                if matches!(self.nak, Some(Syndrome::Rnr(_))) {
                    self.nak = None;
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                self.awaiting = true;
                self.nak = Some(Syndrome::Rnr(self.attr.min_rnr_timer));
                Ok(())
            }
            Err(Refusal::Fatal(code, event)) => Err(self.fail(code, event)),
        }
    }

    /// Executes the expected request.
    fn execute<E: ResponderEnv<Recv = R>>(
        &mut self,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let transport = &packet.transport;
        let taken = match transport.bth.opcode.op {
            Op::Send(position, extra) if extra != Extra::Inv => {
                self.check_length(position, packet.payload)?;
                self.send(position, packet, env)?;
                self.msn_after(position);
                1
            }
            Op::Write(position, _) => {
                self.check_length(position, packet.payload)?;
                self.write(position, packet, env)?;
                self.msn_after(position);
                1
            }
            Op::ReadRequest => {
                let packets = self.read(transport.reth.ok_or(INVALID)?, env)?;
                // The responses acknowledge all before them.
                self.ack_pending = false;
                self.expected = self.expected.add(packets);
                return Ok(());
            }
            _ => return Err(INVALID),
        };
        self.expected = self.expected.add(taken);
        self.ack_pending |= transport.bth.ack_req;
        Ok(())
    }

    /// Packets that do not end their message are full, a last one is not empty.
    fn check_length(&self, position: Position, payload: &[u8]) -> Result<(), Refusal> {
        let mtu = self.connection.mtu.bytes() as usize;
        let valid = match position {
            Position::First | Position::Middle => payload.len() == mtu,
            Position::Last => (1..=mtu).contains(&payload.len()),
            Position::Only => payload.len() <= mtu,
        };
        valid.then_some(()).ok_or(INVALID)
    }

    fn msn_after(&mut self, position: Position) {
        if position.ends() {
            self.msn = (self.msn + 1) & MASK_24;
        }
    }

    fn send<E: ResponderEnv<Recv = R>>(
        &mut self,
        position: Position,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let (recv, received) = match self.message.take() {
            None if position.starts() => (env.take_receive()?.ok_or(Refusal::NotReady)?, 0),
            Some(Message::Send { recv, received }) if !position.starts() => (recv, received),
            message => {
                self.message = message;
                return Err(INVALID);
            }
        };
        let payload = packet.payload;
        let mut completion = RecvCompletion {
            status: WcStatus::Success,
            rdma_write: false,
            byte_len: received,
            imm: packet.transport.imm,
            solicited: packet.transport.bth.solicited,
        };
        if payload.len() > (recv.length - received) as usize {
            completion.status = WcStatus::LocLenErr;
            env.complete_recv(recv, completion);
            return Err(Refusal::Fatal(NakCode::InvalidRequest, None));
        }
        if !payload.is_empty() {
            if let Err(status) = env.scatter_recv(&recv.local, received, payload, position.ends()) {
                completion.status = status;
                env.complete_recv(recv, completion);
                return Err(Refusal::Fatal(NakCode::RemoteOperational, None));
            }
        }
        // The sum is at most `recv.length`.
        let received = received + payload.len() as u32;
        if position.ends() {
            completion.byte_len = received;
            env.complete_recv(recv, completion);
        } else {
            self.message = Some(Message::Send { recv, received });
        }
        Ok(())
    }

    fn write<E: ResponderEnv<Recv = R>>(
        &mut self,
        position: Position,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let (reth, received) = match (&self.message, packet.transport.reth) {
            (None, Some(reth)) if position.starts() => {
                self.admit(reth, AccessFlags::REMOTE_WRITE, env)?;
                (reth, 0)
            }
            (&Some(Message::Write { reth, received }), None) if !position.starts() => {
                (reth, received)
            }
            _ => return Err(INVALID),
        };
        let payload = packet.payload;
        let left = (reth.length - received) as usize;
        if payload.len() > left || position.ends() != (payload.len() == left) {
            return Err(INVALID);
        }
        let at = Remote {
            va: reth.va.wrapping_add(u64::from(received)),
            rkey: reth.rkey,
        };
        // A receive is taken before the data is in place, so that a message without one leaves no trace.
        let recv = match packet.transport.imm {
            Some(_) => Some(env.take_receive()?.ok_or(Refusal::NotReady)?),
            None => None,
        };
        let written = if payload.is_empty() {
            Ok(())
        } else {
            env.write(at, payload, position.ends())
        };
        // `left` bounds the sum.
        let received = received + payload.len() as u32;
        self.message = (!position.ends()).then_some(Message::Write { reth, received });
        if let Some(recv) = recv {
            let status = if written.is_ok() {
                WcStatus::Success
            } else {
                WcStatus::WrFlushErr
            };
            let completion = RecvCompletion {
                status,
                rdma_write: true,
                byte_len: reth.length,
                imm: packet.transport.imm,
                solicited: packet.transport.bth.solicited,
            };
            env.complete_recv(recv, completion);
        }
        Ok(written?)
    }

    /// Queues a READ; returns how many PSNs it takes.
    fn read<E: ResponderEnv<Recv = R>>(&mut self, reth: Reth, env: &mut E) -> Result<u32, Refusal> {
        if self.message.is_some() {
            return Err(INVALID);
        }
        if self.reads.len() >= self.read_limit() {
            // The peer never has more READs outstanding than the limit, so it has the oldest of these by now: it
            // asked for it again, and then the first answer came after all.
            match self.reads.front() {
                Some(oldest) if oldest.duplicate => self.reads.pop_front(),
                _ => return Err(INVALID),
            };
        }
        self.admit(reth, AccessFlags::REMOTE_READ, env)?;
        self.msn = (self.msn + 1) & MASK_24;
        self.queue_read(self.expected, reth, false);
        Ok(packets(reth.length, self.connection.mtu))
    }

    /// Checks what a RETH names against the QP and the memory.
    fn admit<E: ResponderEnv<Recv = R>>(
        &self,
        reth: Reth,
        access: AccessFlags,
        env: &mut E,
    ) -> Result<(), Refusal> {
        if !self.attr.access.contains(access) || reth.length > MAX_MESSAGE {
            return Err(INVALID);
        }
        // An empty range has no address that could be wrong (IBTA 9.7.4.1.3).
        if reth.length > 0 {
            env.check(
                Remote {
                    va: reth.va,
                    rkey: reth.rkey,
                },
                reth.length,
                access,
            )?;
        }
        Ok(())
    }

    fn read_limit(&self) -> usize {
        usize::from(self.attr.max_dest_rd_atomic.min(MAX_RD_ATOMIC))
    }

    fn queue_read(&mut self, psn: Psn, reth: Reth, duplicate: bool) {
        self.reads.push_back(ReadJob {
            remote: Remote {
                va: reth.va,
                rkey: reth.rkey,
            },
            remaining: reth.length,
            psn,
            started: false,
            duplicate,
            msn: self.msn,
        });
    }

    /// Takes a request that lies `behind` packets before the expected one: SENDs and WRITEs are acknowledged once more,
    /// READs are executed once more, from the PSN and address of the duplicate on.
    fn duplicate<E: ResponderEnv<Recv = R>>(
        &mut self,
        packet: &Packet<'_>,
        behind: u32,
        env: &mut E,
    ) {
        let (Op::ReadRequest, Some(reth)) = (packet.opcode().op, packet.transport.reth) else {
            self.ack_pending = true;
            return;
        };
        let psn = packet.transport.bth.psn;
        if packets(reth.length, self.connection.mtu) > behind
            || self.admit(reth, AccessFlags::REMOTE_READ, env).is_err()
        {
            return;
        }
        // Nothing to repeat when the response is still to come. Otherwise the requester goes back to this PSN: it has
        // all before it and asks again for all behind it.
        if self
            .reads
            .iter()
            .any(|job| psn.since(job.psn) >= 0 && job.end(&self.connection).since(psn) > 0)
        {
            return;
        }
        while self
            .reads
            .back()
            .is_some_and(|job| job.end(&self.connection).since(psn) > 0)
        {
            self.reads.pop_back();
        }
        if self.reads.len() < self.read_limit() {
            self.queue_read(psn, reth, true);
        }
    }

    fn fail(&mut self, code: NakCode, event: Option<AsyncEvent>) -> QpError {
        self.dead = true;
        self.nak = Some(Syndrome::Nak(code));
        QpError { event }
    }
}
