// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The requester of a reliable connection: go-back-N over a bounded window (IBTA 9.7.5, 9.7.6,
//! 9.7.8).
//!
//! Packets are counted in 64 bits from 0; the PSN on the wire is that count plus the first PSN,
//! modulo 2^24. Nothing is kept of a packet once it is sent: to repeat it, its payload is gathered
//! again.
//!
//! A long READ is asked for in several requests, so that the responses on their way obey the same
//! window as everything else. The requests of one READ always divide it at the same packets,
//! whatever is repeated, because a responder recognizes a duplicate READ only if all of it was
//! requested before.
//!
//! Operations on local keys stand in the queue like the rest, but take no PSN: they are executed
//! where the next packet would be sent, and passed over when what follows is repeated.

mod committed;
mod probe;
mod response;
mod send;

use std::time::Instant;

use budget::{Budget, ChargedQueue, Exhausted};

use crate::connection::{Connection, QpError};
use crate::env::{Incident, RequesterEnv};
use crate::net::Path;
use crate::psn::Psn;
use crate::work::{packets, SendFlags, SendOp, SendWr, WcStatus, ATOMIC_SIZE, MAX_MESSAGE};

pub use self::committed::RequesterState;
use self::probe::{Probe, Prober};
use super::congestion::{capable, CongestionWindow};
use super::timer::ack_timeout;
use super::{RequesterAttr, WINDOW};

/// Packets of one READ request.
pub(crate) const READ_PACKETS: u64 = WINDOW as u64 / 2;

/// A work request with its place in the stream of packets.
#[derive(Debug)]
struct Pending<L> {
    wr: SendWr<L>,
    first: u64,
    end: u64,
    /// It can't be sent (any further) and ends with this status once all before it have ended.
    failed: Option<WcStatus>,
    /// It is an operation on local keys that has not been executed.
    local: bool,
}

impl<L> Pending<L> {
    /// Whether it ends with an answer of its own: all but SENDs, WRITEs and what is local.
    const fn is_answered(&self) -> bool {
        is_answered(&self.wr.op)
    }

    /// Whether it is an operation on local keys, executed or not.
    const fn is_local(&self) -> bool {
        matches!(self.wr.op, SendOp::Local { .. })
    }

    /// Beginning of the READ request that packet `at` belongs to.
    fn request_start(&self, at: u64) -> u64 {
        at - (at - self.first) % READ_PACKETS
    }

    /// End of the READ request that packet `at` belongs to.
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

/// Sends the work requests of one QP and receives the responses. `L` finds the local memory of a
/// work request.
#[derive(Debug)]
pub struct Requester<L> {
    connection: Connection,
    attr: RequesterAttr,
    queue: ChargedQueue<Pending<L>>,
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
    /// Requests with an answer of their own, sent and not answered.
    unanswered: u32,
    retries: u8,
    rnr_retries: u8,
    /// `una` when a packet last made us go back, so that its like does not do so again.
    went_back: Option<u64>,
    /// When to go back for lack of an answer.
    ack_deadline: Option<Instant>,
    prober: Prober,
    window: CongestionWindow,
    /// End of the pause that an RNR NAK asked for.
    rnr_deadline: Option<Instant>,
    dead: bool,
    /// No work request begins.
    held: bool,
}

impl<L> Requester<L> {
    /// A requester, which takes work requests when there is [room](Self::make_room) for them.
    pub fn new(mut connection: Connection, attr: RequesterAttr) -> Self {
        connection.path = capable(connection.path);
        Self {
            connection,
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
    pub fn make_room(&mut self, budget: &Budget, depth: usize) -> Result<(), Exhausted> {
        self.queue.make_room(budget, depth)
    }

    /// Whether [`post`](Self::post) would take a work request.
    pub fn has_room(&self) -> bool {
        !self.queue.is_full() && !self.dead
    }

    /// Whether every posted work request has ended.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether no work request is between its beginning and its end.
    pub fn is_drained(&self) -> bool {
        // Between two of its packets, all that was sent may be acknowledged.
        let front = self.queue.front();
        front.is_none_or(|pending| pending.first >= self.sent)
    }

    /// Keeps work requests from beginning, or no longer. Work requests that have begun go on.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether packets were sent that the peer has not acknowledged.
    pub fn is_unacknowledged(&self) -> bool {
        self.una < self.next
    }

    /// Queues a work request. Gives it back if there is no room or the connection has ended. A work
    /// request that is too long, or a READ or atomic operation where none are negotiated, fails as
    /// if by [`post_failed`](Self::post_failed).
    pub fn post(&mut self, wr: SendWr<L>) -> Result<(), SendWr<L>> {
        self.enqueue(wr, None)
    }

    /// Queues a work request that was found to be bad: it ends with `status` in its turn, and the
    /// connection with it.
    pub fn post_failed(&mut self, wr: SendWr<L>, status: WcStatus) -> Result<(), SendWr<L>> {
        self.enqueue(wr, Some(status))
    }

    fn enqueue(&mut self, wr: SendWr<L>, failed: Option<WcStatus>) -> Result<(), SendWr<L>> {
        if self.dead {
            return Err(wr);
        }
        let never_fits = is_answered(&wr.op) && self.attr.max_rd_atomic == 0;
        let fits = match wr.op {
            SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } => wr.length == ATOMIC_SIZE,
            _ => wr.length <= MAX_MESSAGE,
        };
        let failed = failed
            .or((!fits).then_some(WcStatus::LocLenErr))
            .or(never_fits.then_some(WcStatus::LocQpOpErr));
        self.append(wr, failed)
    }

    /// Queues a work request that was checked.
    fn append(&mut self, wr: SendWr<L>, failed: Option<WcStatus>) -> Result<(), SendWr<L>> {
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

    /// PSN of the next packet that is sent for the first time.
    pub fn next_psn(&self) -> Psn {
        self.psn(self.sent)
    }

    /// Counts `packets` packets as sent and acknowledged, which another path than this one carried.
    /// Only when [`is_empty`](Self::is_empty).
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

    /// Changes timeout, retry counts and the limit of READs; `sq_psn` stays what it was.
    pub fn set_attr(&mut self, attr: RequesterAttr) {
        self.attr = RequesterAttr {
            sq_psn: self.attr.sq_psn,
            ..attr
        };
        self.restore_retries();
    }

    /// Changes the path that packets take.
    pub fn set_path(&mut self, path: Path) {
        self.connection.path = capable(path);
    }

    /// Ends the connection and takes back what has not ended, in the order of posting.
    pub fn drain(&mut self) -> impl Iterator<Item = SendWr<L>> + '_ {
        self.stop();
        self.queue.drain().map(|pending| pending.wr)
    }

    /// When [`on_timer`](Self::on_timer) is to be called at the latest, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let answer = self.ack_deadline.into_iter().chain(self.prober.deadline());
        self.rnr_deadline.or(answer.min())
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
            // The reason to go back before is long past.
            self.went_back = None;
            env.count(Incident::Timeout);
            return self.go_back(env);
        }
        match self.prober.due(now) {
            Some(Probe::Last) => self.rewind_last(),
            Some(Probe::All) => {
                self.window.lost(self.una, self.sent);
                self.rewind();
            }
            None => {}
        }
        Ok(())
    }

    /// Completes what is acknowledged, and what failed if it is its turn.
    fn settle<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> Result<(), QpError> {
        while self
            .queue
            .front()
            .is_some_and(|pending| pending.end <= self.una && !pending.local)
        {
            let Some(pending) = self.queue.pop_front() else {
                break;
            };
            self.cursor = self.cursor.saturating_sub(1);
            env.complete_send(pending.wr, WcStatus::Success);
        }
        let front = self.queue.front().filter(|front| !self.holds(front));
        match front.and_then(|pending| pending.failed) {
            Some(status) => Err(self.fail(status, env)),
            None => Ok(()),
        }
    }

    /// Takes a step with work on local keys if its turn has come. Returns whether it did.
    fn execute_local<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> bool {
        let Some(&SendOp::Local { drained }) =
            self.queue.get(self.cursor).map(|pending| &pending.wr.op)
        else {
            return false;
        };
        // A work request that has ended is no longer in the queue.
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
                Err(status) => {
                    pending.failed = Some(status);
                    return true;
                }
            }
        }
        self.cursor += 1;
        true
    }

    /// Whether a work request is kept from beginning.
    fn holds(&self, pending: &Pending<L>) -> bool {
        self.held && pending.first >= self.sent
    }

    /// Whether a fence holds the work request at the cursor back.
    fn is_fenced(&self) -> bool {
        let has_fence = self
            .queue
            .get(self.cursor)
            .is_some_and(|pending| pending.wr.flags.contains(SendFlags::FENCE));
        has_fence && self.queue.range(..self.cursor).any(Pending::is_answered)
    }

    /// Goes back in answer to a packet, unless another one already had us go back to the same
    /// place.
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
        self.ack_deadline = None;
        self.window.lost(self.una, self.sent);
        self.rewind();
        Ok(())
    }

    /// Has everything that is not acknowledged sent again.
    fn rewind(&mut self) {
        self.next = self.una;
        self.cursor = 0;
        self.unanswered = 0;
        self.prober.repeat();
    }

    /// Has the last packet sent again: of a READ the request, for what is left of it.
    fn rewind_last(&mut self) {
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
        self.prober.rest();
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
