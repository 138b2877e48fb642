// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The requester of a reliable connection: go-back-N over a bounded window (IBTA 9.7.5, 9.7.6,
//! 9.7.8).
//!
//! Packets have 64-bit positions from 0. The PSN of a packet is the first PSN plus its position,
//! modulo 2^24. The requester stores no packets: to retransmit one, it gathers the payload again.
//!
//! A long READ is split into several requests, so that the window limits READ responses in flight
//! too. Retransmissions split a READ at the same packets as the first transmission: a responder
//! recognizes a duplicate READ only if one earlier request covered all of it.
//!
//! Operations on local keys are queued like other work requests, but take no PSN. They are executed
//! when they reach the cursor, and skipped when later packets are retransmitted.

mod probe;
mod response;
mod saved;
mod send;

use std::time::Instant;

use budget::{ChargedQueue, Exhausted, MemoryBudget};

use crate::connection::{Connection, QpError, TemplatedConnection};
use crate::env::{Incident, RequesterEnv};
use crate::net::Path;
use crate::psn::Psn;
use crate::work::{packets, SendFlags, SendOp, SendWr, WcFault, ATOMIC_SIZE, MAX_MESSAGE};

use self::probe::{Probe, Prober};
pub use self::saved::RequesterState;
use super::congestion::{capable, CongestionWindow};
use super::timer::ack_timeout;
use super::{RequesterAttr, WINDOW};

/// Maximum number of packets of one READ request.
pub(crate) const READ_PACKETS: u64 = WINDOW as u64 / 2;

/// Number of successive ACK timeouts that use up no retry if the peer's host is [active]. The next
/// one uses up a retry: the peer's QP may be gone although its host sends other packets.
///
/// [active]: RequesterEnv::is_active
const EXCUSES: u8 = 3;

/// A work request that has not ended, and the positions of its packets: `first..end`.
#[derive(Debug)]
struct Pending<L> {
    wr: SendWr<L>,
    first: u64,
    end: u64,
    /// `Some` if the work request can't be executed completely. When all earlier work requests have
    /// ended, this one ends with the given fault.
    failed: Option<WcFault>,
    /// Whether the work request is an operation on local keys that has not been executed.
    local: bool,
}

impl<L> Pending<L> {
    /// Whether the operation has a response of its own: all but SENDs, WRITEs and operations on
    /// local keys.
    const fn is_answered(&self) -> bool {
        is_answered(&self.wr.op)
    }

    /// Whether the work request is an operation on local keys, executed or not.
    const fn is_local(&self) -> bool {
        matches!(self.wr.op, SendOp::Local { .. })
    }

    /// Position of the first packet of the READ request that packet `at` belongs to.
    fn request_start(&self, at: u64) -> u64 {
        at - (at - self.first) % READ_PACKETS
    }

    /// Position after the last packet of the READ request that packet `at` belongs to.
    fn request_end(&self, at: u64) -> u64 {
        let request = (at - self.first) / READ_PACKETS;
        self.end.min(self.first + (request + 1) * READ_PACKETS)
    }
}

const fn is_answered(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Read { .. } | SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush(_)
    )
}

/// Sends the work requests of one QP and receives the responses. `L` describes the local memory of
/// a work request.
#[derive(Debug)]
pub struct Requester<L> {
    connection: TemplatedConnection,
    attr: RequesterAttr,
    queue: ChargedQueue<Pending<L>>,
    /// Index in `queue` of the work request that `next` belongs to.
    cursor: usize,
    /// Position of the oldest unacknowledged packet. Packets of a READ are acknowledged by their
    /// responses.
    una: u64,
    /// Position of the packet to send next, `una <= next`.
    next: u64,
    /// Position after the last packet that was ever sent, `next <= sent`.
    sent: u64,
    /// Position after the last packet of the posted work requests.
    posted: u64,
    /// Number of requests in flight that have a response of their own: READs, atomic operations and
    /// FLUSHes.
    unanswered: u32,
    retries: u8,
    rnr_retries: u8,
    /// Number of ACK timeouts since the last progress or retry that used up no retry.
    excuses: u8,
    /// Whether the packet at `next` is a probe, which the window does not hold back.
    probing: bool,
    /// Value of `una` when a response last made the requester go back. Later responses do not make
    /// it go back to the same packet again.
    went_back: Option<u64>,
    /// End of the local ACK timeout.
    ack_deadline: Option<Instant>,
    prober: Prober,
    window: CongestionWindow,
    /// End of the delay that an RNR NAK requested.
    rnr_deadline: Option<Instant>,
    dead: bool,
    /// Whether the requester starts no further work requests. Work requests that have begun
    /// continue.
    held: bool,
}

impl<L> Requester<L> {
    /// A requester without room for work requests. [`make_room`](Self::make_room) adds room.
    pub fn new(mut connection: Connection, attr: RequesterAttr) -> Self {
        connection.path = capable(connection.path);
        Self {
            connection: TemplatedConnection::new(connection),
            attr,
            queue: ChargedQueue::default(),
            cursor: 0,
            una: 0,
            next: 0,
            sent: 0,
            posted: 0,
            unanswered: 0,
            retries: attr.retry_cnt,
            rnr_retries: attr.rnr_retry,
            excuses: 0,
            probing: false,
            went_back: None,
            ack_deadline: None,
            prober: Prober::default(),
            window: CongestionWindow::new(),
            rnr_deadline: None,
            dead: false,
            held: false,
        }
    }

    /// Makes room for `depth` work requests at a time, charged to `budget`.
    pub fn make_room(&mut self, budget: &MemoryBudget, depth: usize) -> Result<(), Exhausted> {
        self.queue.make_room(budget, depth)
    }

    /// Number of packets that may be unacknowledged: the congestion window.
    pub fn window(&self) -> u64 {
        self.window.packets()
    }

    /// Whether [`post`](Self::post) would accept a work request.
    pub fn has_room(&self) -> bool {
        !self.queue.is_full() && !self.dead
    }

    /// Whether every posted work request has ended.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether every work request that has begun has ended.
    pub fn is_drained(&self) -> bool {
        // `una == sent` does not suffice: the oldest work request may have more packets to send.
        let front = self.queue.front();
        front.is_none_or(|pending| pending.first >= self.sent)
    }

    /// Pauses (`held`) or resumes the start of work requests. Work requests that have begun
    /// continue.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether packets were sent that the peer has not acknowledged.
    pub fn is_unacknowledged(&self) -> bool {
        self.una < self.next
    }

    /// Number of packets that the peer has ever acknowledged. Packets of a READ are acknowledged by
    /// their responses.
    pub fn acknowledged(&self) -> u64 {
        self.una
    }

    /// Queues a work request. Returns it if there is no room or the connection has ended. A work
    /// request that is too long is queued to fail, as by [`post_failed`](Self::post_failed). If
    /// `max_rd_atomic` is 0, READs, atomic operations and FLUSHes are queued to fail too.
    pub fn post(&mut self, wr: SendWr<L>) -> Result<(), SendWr<L>> {
        self.enqueue(wr, None)
    }

    /// Queues an invalid work request. When all earlier work requests have ended, it ends with
    /// `fault` and ends the connection.
    pub fn post_failed(&mut self, wr: SendWr<L>, fault: WcFault) -> Result<(), SendWr<L>> {
        self.enqueue(wr, Some(fault))
    }

    fn enqueue(&mut self, wr: SendWr<L>, failed: Option<WcFault>) -> Result<(), SendWr<L>> {
        if self.dead {
            return Err(wr);
        }
        let never_fits = is_answered(&wr.op) && self.attr.max_rd_atomic == 0;
        let misfit = match wr.op {
            SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } => {
                (wr.length != ATOMIC_SIZE).then_some(WcFault::BAD_ATOMIC_LENGTH)
            }
            _ => (wr.length > MAX_MESSAGE).then_some(WcFault::TOO_LONG),
        };
        let failed = failed
            .or(misfit)
            .or(never_fits.then_some(WcFault::NO_READS));
        self.append(wr, failed)
    }

    /// Queues a work request after its checks.
    fn append(&mut self, wr: SendWr<L>, failed: Option<WcFault>) -> Result<(), SendWr<L>> {
        let local = matches!(wr.op, SendOp::Local { .. });
        let first = self.posted;
        let end = if local {
            first
        } else {
            first + u64::from(packets(wr.length, self.connection.mtu))
        };
        let pending = Pending {
            wr,
            first,
            end,
            failed,
            local,
        };
        self.queue
            .push_back(pending)
            .map_err(|pending| pending.wr)?;
        self.posted = end;
        Ok(())
    }

    /// PSN of the next packet that is not a retransmission.
    pub fn next_psn(&self) -> Psn {
        self.psn(self.sent)
    }

    /// Skips the PSNs of `packets` packets whose messages were transferred without packets. Call
    /// this only if [`is_empty`](Self::is_empty).
    pub fn advance(&mut self, packets: u32) {
        debug_assert!(self.is_empty());
        self.posted += u64::from(packets);
        self.una = self.posted;
        self.next = self.posted;
        self.sent = self.posted;
    }

    /// Current attributes.
    pub fn attr(&self) -> &RequesterAttr {
        &self.attr
    }

    /// Changes timeout, retry counts and `max_rd_atomic`. `sq_psn` does not change.
    pub fn set_attr(&mut self, attr: RequesterAttr) {
        self.attr = RequesterAttr {
            sq_psn: self.attr.sq_psn,
            ..attr
        };
        self.restore_retries();
    }

    /// Changes the path of packets to the peer.
    pub fn set_path(&mut self, path: Path) {
        self.connection.set_path(capable(path));
    }

    /// Ends the connection and returns the work requests that have not ended, in the order of
    /// posting.
    pub fn drain(&mut self) -> impl Iterator<Item = SendWr<L>> + '_ {
        self.stop();
        self.queue.drain().map(|pending| pending.wr)
    }

    /// Time at which the caller must call [`on_timer`](Self::on_timer).
    pub fn next_deadline(&self) -> Option<Instant> {
        let answer = self.ack_deadline.into_iter().chain(self.prober.deadline());
        self.rnr_deadline.or(answer.min())
    }

    /// Handles the timers that expired before `now`. Call [`transmit`](Self::transmit) afterwards.
    pub fn on_timer<E: RequesterEnv<Send = L>>(
        &mut self,
        now: Instant,
        env: &mut E,
    ) -> Result<(), QpError> {
        if self.rnr_deadline.is_some_and(|at| at <= now) {
            self.rnr_deadline = None;
        }
        if let Some(at) = self.ack_deadline.filter(|at| *at <= now) {
            if self.is_excused(at, env) {
                env.note(Incident::Probe, self.psn(self.una), 0);
                self.start_ack_timer(now);
                self.prober.repeat();
                self.rewind_last();
                return Ok(());
            }
            // Responses that arrive after the timeout may make the requester go back again.
            self.went_back = None;
            env.note(Incident::Timeout, self.psn(self.una), self.retries.into());
            return self.go_back(env);
        }
        let Some(probe) = self.prober.due(now) else {
            return Ok(());
        };
        env.note(Incident::Probe, self.psn(self.una), 0);
        match probe {
            Probe::Last => self.rewind_last(),
            Probe::All => {
                self.window.lost(self.una, self.sent, env.is_crowded());
                self.rewind();
            }
        }
        Ok(())
    }

    /// Whether an ACK timeout that ended at `at` uses up no retry: the response may wait somewhere,
    /// since the host of the peer is active.
    fn is_excused<E: RequesterEnv<Send = L>>(&mut self, at: Instant, env: &E) -> bool {
        let timeout = ack_timeout(self.attr.timeout);
        let since = timeout.and_then(|timeout| at.checked_sub(timeout));
        let peer = &self.connection.path.dst_mac;
        let excused =
            self.excuses < EXCUSES && since.is_some_and(|since| env.is_active(peer, since));
        self.excuses = if excused { self.excuses + 1 } else { 0 };
        excused
    }

    /// Number of packets of outstanding responses to READs, atomic operations and FLUSHes.
    pub fn requested(&self) -> u32 {
        if self.unanswered == 0 {
            return 0;
        }
        let begun = self.queue.range(..self.queue.len().min(self.cursor + 1));
        let packets = begun
            .filter(|pending| pending.is_answered())
            .map(|pending| {
                let (first, end) = (pending.first.max(self.una), pending.end.min(self.next));
                end.saturating_sub(first)
            });
        // The window limits the sum, so the cast does not truncate.
        packets.sum::<u64>() as u32
    }

    /// Completes acknowledged work requests. If the work request after them has failed, ends the
    /// connection.
    fn complete_acked<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> Result<(), QpError> {
        while self
            .queue
            .front()
            .is_some_and(|pending| pending.end <= self.una && !pending.local)
        {
            let Some(pending) = self.queue.pop_front() else {
                break;
            };
            self.cursor = self.cursor.saturating_sub(1);
            env.complete_send(pending.wr, Ok(()));
        }
        let front = self.queue.front().filter(|front| !self.holds(front));
        match front.and_then(|pending| pending.failed) {
            Some(fault) => Err(self.fail(fault, env)),
            None => Ok(()),
        }
    }

    /// Executes the operation on local keys at the cursor, or skips it if it was executed before.
    /// Returns false if no such operation is at the cursor or the operation has to wait.
    fn execute_local<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> bool {
        let Some(&SendOp::Local { drained }) =
            self.queue.get(self.cursor).map(|pending| &pending.wr.op)
        else {
            return false;
        };
        // The queue holds only work requests that have not ended. All entries before the cursor
        // were posted earlier than this one.
        let waits = self.is_fenced() || (drained && self.cursor > 0);
        let Some(pending) = self.queue.get_mut(self.cursor) else {
            return false;
        };
        if pending.local {
            if waits || self.held || pending.failed.is_some() {
                return false;
            }
            match env.execute_local(&pending.wr.local) {
                Ok(()) => pending.local = false,
                Err(fault) => {
                    pending.failed = Some(fault);
                    return true;
                }
            }
        }
        self.cursor += 1;
        true
    }

    /// Whether [`hold`](Self::hold) keeps `pending` from being started: none of its packets was
    /// sent.
    fn holds(&self, pending: &Pending<L>) -> bool {
        self.held && pending.first >= self.sent
    }

    /// Whether the work request at the cursor has a fence and has to wait for earlier responses.
    fn is_fenced(&self) -> bool {
        let has_fence = self
            .queue
            .get(self.cursor)
            .is_some_and(|pending| pending.wr.flags.contains(SendFlags::FENCE));
        has_fence && self.queue.range(..self.cursor).any(Pending::is_answered)
    }

    /// Goes back because of a response, unless an earlier response made the requester go back to
    /// the same packet.
    fn go_back_once<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> Result<(), QpError> {
        if self.went_back == Some(self.una) {
            return Ok(());
        }
        self.went_back = Some(self.una);
        self.go_back(env)
    }

    /// Retransmits all unacknowledged packets and uses up one retry. Without a retry left, ends the
    /// connection.
    fn go_back<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> Result<(), QpError> {
        let Some(left) = self.retries.checked_sub(1) else {
            return Err(self.fail(WcFault::PEER_SILENT, env));
        };
        self.retries = left;
        self.ack_deadline = None;
        self.window.lost(self.una, self.sent, env.is_crowded());
        self.rewind();
        Ok(())
    }

    /// Makes `transmit` retransmit all unacknowledged packets.
    fn rewind(&mut self) {
        self.next = self.una;
        self.cursor = 0;
        self.unanswered = 0;
        self.probing = false;
        self.prober.repeat();
    }

    /// Makes `transmit` retransmit the last packet. For a READ, this is the last request, without
    /// the responses that have arrived.
    fn rewind_last(&mut self) {
        if self.next == self.una {
            // All packets will be retransmitted anyway.
            return;
        }
        let sent = self.queue.range(..self.queue.len().min(self.cursor + 1));
        let last = sent
            .enumerate()
            .rev()
            .find(|(_, pending)| pending.first < self.next && !pending.is_local());
        let Some((cursor, pending)) = last else {
            return;
        };
        self.next = match pending.wr.op {
            SendOp::Read { .. } => pending.request_start(self.next - 1).max(self.una),
            _ => self.next - 1,
        };
        self.unanswered -= u32::from(pending.is_answered() && self.unanswered > 0);
        self.cursor = cursor;
        self.probing = true;
    }

    /// Ends the connection and completes the oldest work request with `fault`.
    fn fail<E: RequesterEnv<Send = L>>(&mut self, fault: WcFault, env: &mut E) -> QpError {
        self.stop();
        if let Some(pending) = self.queue.pop_front() {
            env.complete_send(pending.wr, Err(fault));
        }
        QpError { event: None }
    }

    fn stop(&mut self) {
        self.dead = true;
        self.ack_deadline = None;
        self.prober.rest();
        self.rnr_deadline = None;
    }

    fn restore_retries(&mut self) {
        self.excuses = 0;
        self.retries = self.attr.retry_cnt;
        self.rnr_retries = self.attr.rnr_retry;
    }

    fn start_ack_timer(&mut self, now: Instant) {
        self.ack_deadline = ack_timeout(self.attr.timeout).map(|after| now + after);
    }

    /// The PSN of the packet at position `at`.
    fn psn(&self, at: u64) -> Psn {
        Psn::new(self.attr.sq_psn).add((at & 0xff_ffff) as u32)
    }
}
