// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The requester of a reliable connection: go-back-N over a bounded window (IBTA 9.7.5, 9.7.6, 9.7.8).
//!
//! Packets are counted in 64 bits from 0; the PSN on the wire is that count plus the first PSN, modulo 2^24. Nothing is
//! kept of a packet once it is sent: to repeat it, its payload is gathered again.
//!
//! A long READ is asked for in several requests, so that the responses on their way obey the same window as everything
//! else. The requests of one READ always divide it at the same packets, whatever is repeated, because a responder
//! recognizes a duplicate READ only if all of it was requested before.

use std::collections::VecDeque;
use std::time::Instant;

use crate::headers::{Bth, NakCode, Reth, Syndrome, Transport};
use crate::opcode::{Extra, Op, Opcode, Position};
use crate::packet::{build, frame_size, Packet};
use crate::psn::Psn;
use crate::work::{packets, Remote, SendFlags, SendOp, SendWr, WcStatus, MAX_MESSAGE};

use super::env::RequesterEnv;
use super::timer::{ack_timeout, rnr_delay};
use super::{Connection, Pause, QpError, RequesterAttr, Sent, WINDOW};

/// Packets of one READ request.
const READ_PACKETS: u64 = WINDOW as u64 / 2;

/// An acknowledgement is asked for at least once in so many packets.
const ACK_INTERVAL: u64 = WINDOW as u64 / 4;

/// `rnr_retry` without a limit.
const RNR_RETRY_FOREVER: u8 = 7;

/// A work request with its place in the stream of packets.
#[derive(Debug)]
struct Pending<L> {
    wr: SendWr<L>,
    first: u64,
    end: u64,
    /// It can't be sent (any further) and ends with this status once all before it have ended.
    failed: Option<WcStatus>,
}

impl<L> Pending<L> {
    const fn is_read(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. })
    }

    /// End of the READ request that packet `at` belongs to.
    fn request_end(&self, at: u64) -> u64 {
        let request = (at - self.first) / READ_PACKETS;
        self.end.min(self.first + (request + 1) * READ_PACKETS)
    }
}

/// What to send next.
enum Next {
    /// One packet with `length` bytes of payload from `offset`.
    Packet {
        transport: Transport,
        offset: u32,
        length: u32,
    },
    /// A READ request for the packets before `end`.
    Request { transport: Transport, end: u64 },
}

/// Sends the work requests of one QP and receives the responses. `L` finds the local memory of a work request.
#[derive(Debug)]
pub struct Requester<L> {
    connection: Connection,
    attr: RequesterAttr,
    queue: VecDeque<Pending<L>>,
    depth: usize,
    /// Index in `queue` of the work request that `next` belongs to.
    cursor: usize,
    /// Oldest packet not acknowledged. Responses of a READ that arrived count as acknowledged.
    una: u64,
    /// Packet to send next, `una <= next`.
    next: u64,
    /// End of what was ever sent, `next <= sent` but for work that is sent the first time.
    sent: u64,
    /// End of what was posted.
    posted: u64,
    /// READ requests sent and not answered.
    reads: u32,
    retries: u8,
    rnr_retries: u8,
    /// `una` when a packet last made us go back, so that its like does not do so again.
    went_back: Option<u64>,
    /// When to go back for lack of an answer.
    ack_deadline: Option<Instant>,
    /// End of the pause that an RNR NAK asked for.
    rnr_deadline: Option<Instant>,
    dead: bool,
}

impl<L> Requester<L> {
    /// A requester that holds up to `depth` work requests at a time.
    pub fn new(connection: Connection, attr: RequesterAttr, depth: usize) -> Self {
        Self {
            connection,
            attr,
            queue: VecDeque::with_capacity(depth),
            depth,
            cursor: 0,
            una: 0,
            next: 0,
            sent: 0,
            posted: 0,
            reads: 0,
            retries: attr.retry_cnt,
            rnr_retries: attr.rnr_retry,
            went_back: None,
            ack_deadline: None,
            rnr_deadline: None,
            dead: false,
        }
    }

    /// Whether [`post`](Self::post) would take a work request.
    pub fn has_room(&self) -> bool {
        self.queue.len() < self.depth && !self.dead
    }

    /// Whether every posted work request has ended.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a work request. Gives it back if there is no room or the connection has ended. One that is too long or
    /// that needs READs where none are negotiated fails as if by [`post_failed`](Self::post_failed).
    pub fn post(&mut self, wr: SendWr<L>) -> Result<(), SendWr<L>> {
        self.enqueue(wr, None)
    }

    /// Queues a work request that was found to be bad: it ends with `status` in its turn, and the connection with it.
    pub fn post_failed(&mut self, wr: SendWr<L>, status: WcStatus) -> Result<(), SendWr<L>> {
        self.enqueue(wr, Some(status))
    }

    fn enqueue(&mut self, wr: SendWr<L>, failed: Option<WcStatus>) -> Result<(), SendWr<L>> {
        if !self.has_room() {
            return Err(wr);
        }
        let never_fits = matches!(wr.op, SendOp::Read { .. }) && self.attr.max_rd_atomic == 0;
        let failed = failed
            .or((wr.length > MAX_MESSAGE).then_some(WcStatus::LocLenErr))
            .or(never_fits.then_some(WcStatus::LocQpOpErr));
        let first = self.posted;
        self.posted += u64::from(packets(wr.length, self.connection.mtu));
        self.queue.push_back(Pending {
            wr,
            first,
            end: self.posted,
            failed,
        });
        Ok(())
    }

    /// PSN of the next packet that is sent for the first time.
    pub fn next_psn(&self) -> Psn {
        self.psn(self.sent)
    }

    /// Counts `packets` packets as sent and acknowledged, which another path than this one carried. Only when
    /// [`is_empty`](Self::is_empty).
    pub fn advance(&mut self, packets: u32) {
        debug_assert!(self.is_empty());
        self.posted += u64::from(packets);
        self.una = self.posted;
        self.next = self.posted;
        self.sent = self.posted;
    }

    /// Attributes in force.
    pub fn attr(&self) -> &RequesterAttr {
        &self.attr
    }

    /// Changes timeout, retry counts and READ limit; `sq_psn` stays what it was.
    pub fn set_attr(&mut self, attr: RequesterAttr) {
        self.attr = RequesterAttr {
            sq_psn: self.attr.sq_psn,
            ..attr
        };
        self.restore_retries();
    }

    /// Ends the connection and takes back what has not ended, in the order of posting.
    pub fn drain(&mut self) -> impl Iterator<Item = SendWr<L>> + '_ {
        self.stop();
        self.queue.drain(..).map(|pending| pending.wr)
    }

    /// When [`on_timer`](Self::on_timer) is to be called at the latest, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.rnr_deadline.or(self.ack_deadline)
    }

    /// Lets time pass. Call [`transmit`](Self::transmit) afterwards.
    pub fn on_timer<E: RequesterEnv<Send = L>>(
        &mut self,
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        if self.rnr_deadline.is_some_and(|at| at <= now) {
            self.rnr_deadline = None;
        }
        if self.ack_deadline.is_some_and(|at| at <= now) {
            // Whatever made us go back before is long past.
            self.went_back = None;
            self.go_back(env)?;
        }
        Ok(())
    }

    /// Sends packets until there is nothing to send or frames of `budget` bytes are sent; the last may exceed it.
    pub fn transmit<E: RequesterEnv<Send = L>>(
        &mut self,
        budget: usize,
        now: Instant,
        env: &mut E,
    ) -> Result<Sent, QpError> {
        let mut bytes = 0;
        let pause = loop {
            self.settle(env)?;
            if self.rnr_deadline.is_some_and(|at| now < at) {
                break Pause::Idle;
            }
            self.rnr_deadline = None;
            let Some(next) = self.choose() else {
                break Pause::Idle;
            };
            if bytes >= budget {
                break Pause::Budget;
            }
            let (transport, end) = match &next {
                Next::Packet { transport, .. } => (transport, self.next + 1),
                Next::Request { transport, end } => (transport, *end),
            };
            let (offset, length) = match next {
                Next::Packet { offset, length, .. } => (offset, length),
                Next::Request { .. } => (0, 0),
            };
            let size = frame_size(&self.connection.path, transport, length as usize);
            let Some(mut frame) = env.frame(size) else {
                break Pause::NoFrame;
            };
            // PSNs have 24 bits: the low 16 tell the packets of a connection apart well enough.
            let ident = transport.bth.psn.value() as u16;
            let pending = &mut self.queue[self.cursor];
            let built = build(
                &mut frame,
                &self.connection.path,
                ident,
                transport,
                length as usize,
                |payload| {
                    if payload.is_empty() {
                        return Ok(());
                    }
                    env.gather(&pending.wr.local, offset, payload)
                },
            );
            if let Err(status) = built {
                pending.failed = Some(status);
                continue;
            }
            bytes += size;
            self.next = end;
            self.cursor += usize::from(end == pending.end);
            self.reads += u32::from(matches!(next, Next::Request { .. }));
            self.sent = self.sent.max(self.next);
            env.send(frame);
            if self.ack_deadline.is_none() {
                self.start_ack_timer(now);
            }
        };
        Ok(Sent { bytes, pause })
    }

    /// The next packet, if one may be sent now.
    fn choose(&mut self) -> Option<Next> {
        let (at, in_flight) = (self.next, self.next - self.una);
        let room = u64::from(WINDOW)
            .checked_sub(in_flight)
            .filter(|&room| room > 0 && !self.dead)?;
        let pending = self
            .queue
            .get(self.cursor)
            .filter(|pending| pending.failed.is_none())?;
        let wr = &pending.wr;
        if at == pending.first
            && wr.flags.contains(SendFlags::FENCE)
            && self.queue.range(..self.cursor).any(Pending::is_read)
        {
            return None;
        }
        let mtu = self.connection.mtu.bytes();
        // A message has at most 2^23 packets.
        let index = (at - pending.first) as u32;
        let offset = index * mtu;
        let psn = self.psn(at);
        let bth = |op| {
            Bth::new(
                Opcode::rc(op),
                self.connection.pkey,
                self.connection.dest_qpn,
                psn,
            )
        };

        if let SendOp::Read { remote } = wr.op {
            let end = pending.request_end(at);
            if self.reads >= u32::from(self.attr.max_rd_atomic) || end - at > room {
                return None;
            }
            // At most the packets of the whole message.
            let length = (wr.length - offset).min((end - at) as u32 * mtu);
            let mut transport = Transport::new(bth(Op::ReadRequest));
            transport.bth.ack_req = true;
            transport.reth = Some(reth(remote, offset, length));
            return Some(Next::Request { transport, end });
        }

        let last = at + 1 == pending.end;
        let position = Position::of(index == 0, last);
        let (remote, imm) = match wr.op {
            SendOp::Send { imm } => (None, imm),
            SendOp::Write { remote, imm } => (Some(remote), imm),
            SendOp::Read { .. } => return None,
        };
        let imm = imm.filter(|_| last);
        let extra = if imm.is_some() {
            Extra::Imm
        } else {
            Extra::None
        };
        let op = if remote.is_some() {
            Op::Write(position, extra)
        } else {
            Op::Send(position, extra)
        };
        let mut transport = Transport::new(bth(op));
        transport.imm = imm;
        transport.reth = remote
            .filter(|_| index == 0)
            .map(|remote| reth(remote, 0, wr.length));
        transport.bth.ack_req = last || room == 1 || at % ACK_INTERVAL == ACK_INTERVAL - 1;
        // A WRITE without immediate data completes no receive that could be solicited.
        transport.bth.solicited =
            last && wr.flags.contains(SendFlags::SOLICITED) && (imm.is_some() || remote.is_none());
        Some(Next::Packet {
            transport,
            offset,
            length: (wr.length - offset).min(mtu),
        })
    }

    /// Takes a response of this connection. Responses that make no sense (any more) are ignored.
    pub fn on_packet<E: RequesterEnv<Send = L>>(
        &mut self,
        packet: &Packet<'_>,
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        if self.dead {
            return Ok(());
        }
        let distance = packet.transport.bth.psn.since(self.psn(self.una));
        let Ok(distance) = u64::try_from(distance) else {
            return Ok(());
        };
        let at = self.una + distance;
        if at >= self.sent {
            return Ok(());
        }
        match (
            packet.opcode().op,
            packet.transport.aeth.map(|aeth| aeth.syndrome),
        ) {
            (Op::ReadResponse(position), None | Some(Syndrome::Ack(_))) => {
                self.acknowledge(at, now, env)?;
                if self.una < at {
                    return self.go_back_once(env);
                }
                self.read_response(position, packet.payload, now, env)
            }
            (Op::Ack, Some(Syndrome::Ack(_))) => {
                self.acknowledge(at + 1, now, env)?;
                if self.una <= at {
                    return self.go_back_once(env);
                }
                Ok(())
            }
            (Op::Ack, Some(syndrome)) => {
                self.acknowledge(at, now, env)?;
                if self.una < at {
                    return self.go_back_once(env);
                }
                match syndrome {
                    Syndrome::Rnr(timer) => self.not_ready(timer, now, env),
                    Syndrome::Nak(NakCode::InvalidRequest) => {
                        Err(self.fail(WcStatus::RemInvReqErr, env))
                    }
                    Syndrome::Nak(NakCode::RemoteAccess) => {
                        Err(self.fail(WcStatus::RemAccessErr, env))
                    }
                    Syndrome::Nak(NakCode::RemoteOperational) => {
                        Err(self.fail(WcStatus::RemOpErr, env))
                    }
                    Syndrome::Nak(NakCode::PsnSequence) | Syndrome::Ack(_) => {
                        self.go_back_once(env)
                    }
                }
            }
            _ => Ok(()),
        }
    }

    /// Takes packets before `end` as acknowledged, but none of a READ: where `una` stops short of `end`, READ
    /// responses got lost.
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
            .find(|pending| pending.is_read())
            .map_or(end, |read| read.first.max(self.una));
        if reached > self.una {
            self.progress(reached, now);
            self.settle(env)?;
        }
        Ok(())
    }

    /// Takes the READ response at `una`.
    fn read_response<E: RequesterEnv<Send = L>>(
        &mut self,
        position: Position,
        payload: &[u8],
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        let at = self.una;
        let Some(read) = self.queue.front().filter(|pending| pending.is_read()) else {
            return Err(self.fail(WcStatus::BadRespErr, env));
        };
        let mtu = self.connection.mtu.bytes();
        // A message has at most 2^23 packets.
        let offset = (at - read.first) as u32 * mtu;
        let ends = at + 1 == read.request_end(at);
        if position.ends() != ends {
            return Err(self.fail(WcStatus::BadRespErr, env));
        }
        let expected = (read.wr.length - offset).min(mtu);
        if payload.len() != expected as usize {
            return Err(self.fail(WcStatus::LocLenErr, env));
        }
        if !payload.is_empty() {
            let last = at + 1 == read.end;
            if let Err(status) = env.scatter_read(&read.wr.local, offset, payload, last) {
                return Err(self.fail(status, env));
            }
        }
        // Below zero if the request was to be repeated and its first answer came after all.
        self.reads = self.reads.saturating_sub(u32::from(ends));
        self.progress(at + 1, now);
        self.settle(env)
    }

    /// Moves `una` forward to `una`.
    fn progress(&mut self, una: u64, now: Instant) {
        self.una = una;
        if self.next < una {
            self.next = una;
        }
        self.restore_retries();
        self.rnr_deadline = None;
        self.ack_deadline = None;
        if self.una < self.next {
            self.start_ack_timer(now);
        }
    }

    /// Completes what is acknowledged, and what failed if it is its turn.
    fn settle<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> Result<(), QpError> {
        while self
            .queue
            .front()
            .is_some_and(|pending| pending.end <= self.una)
        {
            let Some(pending) = self.queue.pop_front() else {
                break;
            };
            self.cursor = self.cursor.saturating_sub(1);
            env.complete_send(pending.wr, WcStatus::Success);
        }
        match self.queue.front().and_then(|pending| pending.failed) {
            Some(status) => Err(self.fail(status, env)),
            None => Ok(()),
        }
    }

    /// Goes back in answer to a packet, unless another one already had us go back to the same place.
    fn go_back_once<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> Result<(), QpError> {
        if self.went_back == Some(self.una) {
            return Ok(());
        }
        self.went_back = Some(self.una);
        self.go_back(env)
    }

    /// Repeats everything that is not acknowledged, at the expense of a retry.
    fn go_back<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> Result<(), QpError> {
        let Some(left) = self.retries.checked_sub(1) else {
            return Err(self.fail(WcStatus::RetryExcErr, env));
        };
        self.retries = left;
        self.rewind();
        Ok(())
    }

    /// Waits as long as the responder asks for, then repeats.
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
                return Err(self.fail(WcStatus::RnrRetryExcErr, env));
            };
            self.rnr_retries = left;
        }
        self.rewind();
        self.rnr_deadline = Some(now + rnr_delay(timer));
        Ok(())
    }

    fn rewind(&mut self) {
        self.next = self.una;
        self.cursor = 0;
        self.reads = 0;
        self.ack_deadline = None;
    }

    /// Ends the oldest work request in error, and the connection with it.
    fn fail<E: RequesterEnv<Send = L>>(&mut self, status: WcStatus, env: &mut E) -> QpError {
        self.stop();
        if let Some(pending) = self.queue.pop_front() {
            env.complete_send(pending.wr, status);
        }
        QpError { event: None }
    }

    fn stop(&mut self) {
        self.dead = true;
        self.ack_deadline = None;
        self.rnr_deadline = None;
    }

    fn restore_retries(&mut self) {
        self.retries = self.attr.retry_cnt;
        self.rnr_retries = self.attr.rnr_retry;
    }

    fn start_ack_timer(&mut self, now: Instant) {
        self.ack_deadline = ack_timeout(self.attr.timeout).map(|after| now + after);
    }

    /// The PSN of a packet of the stream: its count modulo 2^24 after the first one.
    fn psn(&self, at: u64) -> Psn {
        Psn::new(self.attr.sq_psn).add((at & 0xff_ffff) as u32)
    }
}

/// The RETH for `length` bytes from `offset` of a remote range. The responder checks that it does not wrap.
fn reth(remote: Remote, offset: u32, length: u32) -> Reth {
    Reth {
        va: remote.va.wrapping_add(u64::from(offset)),
        rkey: remote.rkey,
        length,
    }
}
