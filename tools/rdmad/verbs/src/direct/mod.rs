// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The direct path: data between two QPs of one process is copied from guest memory to guest
//! memory.
//!
//! The requester's worker does all the work, with the requester of its own QP and the responder
//! of the peer QP locked. PSN and MSN advance as with packets, and errors look as on the wire: the
//! same status at the requester, the same event and state at the responder, the same retries after
//! the same delays. A peer does not answer if its QP is gone, in the wrong state, connected
//! elsewhere, or expects another PSN.
//!
//! A rate limit counts the bytes of the frames that would carry the data on the wire.
//!
//! On an unreliable connection the peer does not answer: a message that it does not accept is lost,
//! and completes at the requester as if it had arrived. A datagram is delivered or dropped in the
//! turn in which it is sent.

mod datagram;
mod exchange;
mod saved;

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use dma::DmaView;

use recorder::Kind;
use roce::opcode::Service;
use roce::rc::{ack_timeout, rnr_delay, RNR_RETRY_FOREVER};
use roce::size::{frame_span, request_size};
use roce::work::{packets, Mtu, SendOp, SendWr, WcFault, WcResult};
use roce::{Connection, Psn};
use scheduler::shared::MutexGuard;
use virtio_rdma_abi::ib::QpType;
use virtio_rdma_abi::number::{PortId, Qpn};
use virtio_rdma_abi::qp::QpAttr;

pub(crate) use self::datagram::{deliver, DatagramStep};
use self::exchange::Exchange;
pub(crate) use self::saved::{TransferState, ANSWER, PAUSE};
use crate::counters::Counter;
use crate::qp::{
    Qp, RemoteQp, Requester, RequesterTurn, Responder, ResponderMachine, ResponderTurn,
};
use crate::turn::TurnBudget;
use crate::wqe::{Fetched, PostedSend};
use crate::{DataPath, Hca};

/// The direct route to a QP of the same process.
#[derive(Debug)]
pub(crate) struct DirectRoute {
    hca: Weak<Hca>,
    port: PortId,
    qpn: Qpn,
    mtu: Mtu,
    /// This side of the connection: the QP that the peer must have as its remote QP.
    us: RemoteQp,
}

/// The HCA and the QP at the far end of a route.
pub(crate) struct RouteEnd {
    pub hca: Arc<Hca>,
    pub qp: Arc<Qp>,
}

impl DirectRoute {
    /// The direct route for `connection`, which belongs to QP `qpn`, or `None` if the connection
    /// needs packets.
    pub(crate) fn find(hca: &Hca, qpn: Qpn, connection: &Connection) -> Option<Self> {
        let group = hca.config().group;
        let hcas = &hca.runtime().hcas;
        let peer = hcas.direct_peer(group, connection.path.dst_mac)?;
        Self::to(&peer, hca, qpn, connection)
    }

    /// Whether `connection` sends packets although a direct route is possible: for a rule about
    /// packets. Both ends must have the same path, so the one that connects first decides.
    pub(crate) fn is_shunned(hca: &Hca, qpn: Qpn, connection: &Connection) -> bool {
        let hcas = &hca.runtime().hcas;
        let peer = hcas.direct_peer(hca.config().group, connection.path.dst_mac);
        let Some(peer) = peer else {
            return false;
        };
        let end = peer.objects.qps.get(connection.dest_qpn);
        let decided = end.and_then(|end| end.summary.peer());
        match decided.filter(|us| us.qpn == qpn) {
            Some(us) => us.path == DataPath::Wire,
            None => hca.wants_packets() || peer.wants_packets(),
        }
    }

    /// The direct route for `connection`, which had one in another process, even if the direct path
    /// is not enabled now.
    pub(crate) fn again(hca: &Hca, qpn: Qpn, connection: &Connection) -> Option<Self> {
        let group = hca.config().group;
        let peer = hca.runtime().hcas.peer(group, connection.path.dst_mac)?;
        Self::to(&peer, hca, qpn, connection)
    }

    fn to(peer: &Arc<Hca>, hca: &Hca, qpn: Qpn, connection: &Connection) -> Option<Self> {
        Some(Self {
            hca: Arc::downgrade(peer),
            port: peer.port(),
            qpn: connection.dest_qpn,
            mtu: connection.mtu,
            us: RemoteQp::us(hca.mac(), qpn, connection)?,
        })
    }

    /// The port at the far end.
    pub(crate) fn port(&self) -> PortId {
        self.port
    }

    /// The HCA and QP at the far end, if they exist and the HCA has not failed.
    #[inline]
    pub(crate) fn end(&self) -> Option<RouteEnd> {
        let hca = self.hca.upgrade().filter(|hca| !hca.has_failed())?;
        let qp = hca.objects.qps.get(self.qpn)?;
        Some(RouteEnd { hca, qp })
    }

    /// Requests a turn for the peer, since the event that the peer waits for may have occurred.
    pub(crate) fn request_turn(&self) {
        if let Some(hca) = self.hca.upgrade() {
            hca.qp_ready(self.qpn);
        }
    }
}

/// A worker's use of a QP of another port. If the worker panics, its work on the QP is half done,
/// so the QP fails.
struct Borrowed<'a> {
    hca: &'a Hca,
    qpn: Qpn,
}

impl<'a> Borrowed<'a> {
    /// Lends QP `qpn` of `hca`.
    fn new(hca: &'a Hca, qpn: Qpn) -> Self {
        Self { hca, qpn }
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.hca.fail_qp(self.qpn);
        }
    }
}

/// The responder of the QP at the far end of a route, locked by the requester's worker during a
/// turn.
pub(crate) struct Receiver<'a> {
    // Declared first: the completions are delivered before the lock is released.
    turn: ResponderTurn<'a>,
    responder: MutexGuard<'a, Responder>,
    mtu: Mtu,
    _borrowed: Borrowed<'a>,
}

impl<'a> Receiver<'a> {
    /// Locks the responder of the QP at the end of `route`, if it is connected to `from` and has
    /// the same QP type.
    #[inline]
    pub(crate) fn new(
        from: &Qp,
        route: &DirectRoute,
        RouteEnd { hca, qp }: &'a RouteEnd,
        view: &'a DmaView,
        budget: &'a TurnBudget<'a>,
    ) -> Option<Self> {
        if qp.init.qp_type != from.init.qp_type {
            return None;
        }
        let responder = qp.lock_responder();
        if !responder.is_connected_to(&route.us) {
            return None;
        }
        Some(Self {
            turn: ResponderTurn::new(qp, hca, view, budget),
            responder,
            mtu: route.mtu,
            _borrowed: Borrowed::new(hca, qp.number),
        })
    }
}

/// Before a step copies more bytes than this, the completions gathered so far are delivered to
/// both QPs.
const DELIVER_BEFORE_COPY_OF: usize = 8192;

/// The event that a transfer waits for.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Nothing,
    /// The end of the pause that the responder requested (RNR).
    Pause(Instant),
    /// An answer of the peer. The field is the time at which the answer counts as lost, if there is
    /// a timeout.
    Answer(Option<Instant>),
}

/// Proof that the QP, whose peer does not answer, gets a turn when the peer's state changes.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForPeer(());

/// A send work request on the direct path.
#[derive(Debug)]
pub(crate) struct Transfer {
    wr: SendWr<PostedSend>,
    /// The fault of a work request that is not to be executed.
    failed: Option<WcFault>,
    /// Bytes of the message transferred so far.
    done: u32,
    retries: u8,
    rnr_retries: u8,
    wait: Wait,
}

/// The result of a step of a transfer.
pub(crate) enum TransferStep {
    /// Bytes were transferred, but not all of the message's bytes.
    Moved,
    /// The transfer waits for the peer, a pause or a rate limit.
    Waits,
    /// The work request ends.
    Done(WcResult),
}

/// Reason why a step transferred nothing.
enum Stop {
    /// The peer does not answer.
    Silence,
    /// The peer has no posted receive. The field is the code of the RNR timer that the peer
    /// requests.
    NotReady(u8),
    /// The peer drops the message without an answer, on an unreliable connection.
    Lost,
    /// The work request ends with this fault.
    Failed(WcFault),
    /// The rate limit holds the message back.
    Paced,
}

/// The number of bytes that a step may transfer.
struct Allowance {
    /// Bytes of the message that may be transferred.
    len: usize,
    /// Bytes charged to the QP's rate limit: those of the frames that would carry or request the
    /// message's bytes. 0 without a rate limit.
    spent: usize,
}

impl Transfer {
    /// A transfer at its start.
    pub(crate) fn new(fetched: Fetched, attr: &QpAttr) -> Self {
        Self {
            wr: fetched.wr,
            failed: fetched.failed,
            done: 0,
            retries: attr.retry_cnt,
            rnr_retries: attr.rnr_retry,
            wait: Wait::Nothing,
        }
    }

    /// The work request that is transferred.
    pub(crate) fn wr(&self) -> &SendWr<PostedSend> {
        &self.wr
    }

    /// Time of the next step, unless an event occurs before. `None` if only an event can cause the
    /// next step.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::Nothing => None,
            Wait::Pause(at) => Some(at),
            Wait::Answer(at) => at,
        }
    }

    /// `Some` if the transfer waits for an answer of the peer.
    pub(crate) fn await_peer(&self) -> Option<ForPeer> {
        matches!(self.wait, Wait::Answer(_)).then_some(ForPeer(()))
    }

    /// Transfers as many bytes of the message to or from `receiver` as the turn's budget permits.
    /// `receiver` is `None` if the peer does not answer.
    #[inline]
    pub(crate) fn step(
        &mut self,
        turn: &RequesterTurn<'_>,
        requester: &mut Requester,
        receiver: Option<&mut Receiver<'_>>,
    ) -> TransferStep {
        let now = turn.now;
        if let Some(fault) = self.failed {
            return TransferStep::Done(Err(fault));
        }
        if matches!(self.wait, Wait::Pause(until) if now < until) {
            return TransferStep::Waits;
        }
        if let SendOp::Local { .. } = self.wr.op {
            let executed = turn.execute_local(&requester.io.snapshots, &self.wr.local);
            return TransferStep::Done(executed);
        }
        let unreliable = turn.qp.init.qp_type == QpType::Uc;
        let moved = match receiver {
            Some(receiver) => self.exchange(turn, requester, receiver),
            None => Err(Stop::Silence),
        };
        match moved {
            Err(Stop::Silence | Stop::NotReady(_)) if unreliable => self.lost(requester),
            Err(Stop::Lost) => self.lost(requester),
            Ok(done) => {
                self.wait = Wait::Nothing;
                self.retries = requester.attr().retry_cnt;
                self.rnr_retries = requester.attr().rnr_retry;
                if done {
                    TransferStep::Done(Ok(()))
                } else {
                    TransferStep::Moved
                }
            }
            Err(Stop::Failed(fault)) => TransferStep::Done(Err(fault)),
            Err(Stop::Paced) => {
                // The transfer waits neither for a pause nor for the peer any more.
                self.wait = Wait::Nothing;
                TransferStep::Waits
            }
            Err(Stop::NotReady(code)) => {
                turn.count(Counter::RnrNaksReceived, 1);
                self.note(turn, Kind::PeerNotReady, self.rnr_retries);
                if requester.attr().rnr_retry != RNR_RETRY_FOREVER {
                    match self.rnr_retries.checked_sub(1) {
                        Some(left) => self.rnr_retries = left,
                        None => return TransferStep::Done(Err(WcFault::PEER_NOT_READY)),
                    }
                }
                self.wait = Wait::Pause(now + rnr_delay(code));
                TransferStep::Waits
            }
            Err(Stop::Silence) => self.unanswered(turn, requester.attr().timeout, now),
        }
    }

    /// Notes that the peer keeps the transfer waiting, with the number of retries left.
    fn note(&self, turn: &RequesterTurn<'_>, kind: Kind, retries: u8) {
        let peer = turn.qp.summary.direct_peer();
        let peer = peer.map_or(0, |peer| peer.qpn.get());
        turn.qp.note(turn.hca, kind, peer, retries.into());
    }

    /// Completes a message that the peer did not accept, as if the message had arrived.
    fn lost(&self, requester: &mut Requester) -> TransferStep {
        if let (Some(route), Some(machine)) = (&requester.route, &mut requester.machine) {
            machine.advance(packets(self.wr.length, route.mtu));
        }
        TransferStep::Done(Ok(()))
    }

    fn unanswered(&mut self, turn: &RequesterTurn<'_>, timeout: u8, now: Instant) -> TransferStep {
        match self.wait {
            Wait::Answer(None) => return TransferStep::Waits,
            Wait::Answer(Some(until)) if now < until => return TransferStep::Waits,
            Wait::Answer(Some(_)) => {
                turn.count(Counter::Timeouts, 1);
                self.note(turn, Kind::PeerSilent, self.retries);
                match self.retries.checked_sub(1) {
                    Some(left) => self.retries = left,
                    None => return TransferStep::Done(Err(WcFault::PEER_SILENT)),
                }
            }
            Wait::Nothing | Wait::Pause(_) => {}
        }
        self.wait = Wait::Answer(ack_timeout(timeout).map(|after| now + after));
        TransferStep::Waits
    }

    /// Transfers as much of the message as the turn's budget permits. Returns whether the message
    /// is complete.
    fn exchange(
        &mut self,
        turn: &RequesterTurn<'_>,
        requester: &mut Requester,
        receiver: &mut Receiver<'_>,
    ) -> Result<bool, Stop> {
        let Receiver {
            turn: receiver,
            responder,
            mtu,
            ..
        } = receiver;
        let links = turn.hca.link_is_up() && receiver.hca.link_is_up();
        if !links || !receiver.qp.receives() {
            return Err(Stop::Silence);
        }
        match (&responder.machine, &requester.machine) {
            (Some(ResponderMachine::Rc(theirs)), Some(ours))
                if theirs.expected_psn() == ours.next_psn() => {}
            (Some(ResponderMachine::Uc(_)), Some(_)) => {}
            _ => return Err(Stop::Silence),
        }
        receiver.establish(responder);

        let left = self.wr.length - self.done;
        // `left` has 32 bits, so the casts can't truncate.
        let limit = match self.wr.op {
            // Atomic operations are executed in one step.
            SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } => left as usize,
            _ => turn.budget.left_for_message(left as usize),
        };
        let port = &turn.hca.pacer;
        let limit = self.port_allowance(turn, requester, limit)?;
        let Allowance { len, spent } = match self.allowance(turn, requester, limit) {
            Ok(allowed) => allowed,
            Err(stop) => {
                port.give_bytes_back(&mut requester.io.port, limit);
                return Err(stop);
            }
        };
        port.give_bytes_back(&mut requester.io.port, limit - len);
        let last = len == left as usize;
        if len > DELIVER_BEFORE_COPY_OF {
            turn.completions.deliver();
            receiver.completions.deliver();
        }
        let mut exchange = Exchange {
            wr: &self.wr,
            offset: self.done,
            len,
            last,
            mtu: *mtu,
            reliable: turn.qp.init.qp_type != QpType::Uc,
            turn,
            requester,
            receiver,
            responder,
        };
        let moved = match self.wr.op {
            SendOp::Send { with } => exchange.send(with),
            SendOp::Write { remote, imm } => exchange.write(remote, imm),
            SendOp::Read { remote } => exchange.read(remote),
            SendOp::Atomic { remote, op } => exchange.atomic(remote, op),
            SendOp::AtomicWrite { remote, data } => exchange.atomic_write(remote, data),
            SendOp::Flush(flush) => exchange.flush(&flush),
            // `step` executes local operations.
            SendOp::Local { .. } => Ok(()),
        };
        let allowed = len;
        let Exchange {
            len,
            last,
            requester,
            responder,
            ..
        } = exchange;
        let len = if moved.is_ok() { len } else { 0 };
        port.give_bytes_back(&mut requester.io.port, allowed - len);
        let unspent = match moved {
            Ok(()) => self.unspent(turn, requester, len, allowed),
            Err(_) => spent,
        };
        let spent = spent - unspent;
        if let Some(pacer) = requester.io.pacer.as_mut() {
            pacer.give_back(unspent);
        }
        moved?;
        self.count(turn, receiver, len, spent, last);
        // `len` is at most the length of the message, so the cast can't truncate.
        self.done += len as u32;
        if last {
            let packets = packets(self.wr.length, *mtu);
            if let Some(machine) = &mut requester.machine {
                machine.advance(packets);
                advance(responder, packets, machine.next_psn());
            }
        }
        Ok(last)
    }
}

impl Transfer {
    /// Spends up to `limit` bytes of the port's rate limit. Returns the number of bytes spent.
    fn port_allowance(
        &self,
        turn: &RequesterTurn<'_>,
        requester: &mut Requester,
        limit: usize,
    ) -> Result<usize, Stop> {
        let least = match self.wr.op {
            // Atomic operations are executed in one step.
            SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } => limit,
            _ => limit.min(1),
        };
        let port = &turn.hca.pacer;
        let taken = port.take_bytes(turn.now, &mut requester.io.port, least, limit);
        requester.io.passes(taken).ok_or(Stop::Paced)
    }

    /// Charges the QP's rate limit for the frames that would carry up to `limit` bytes of the
    /// message.
    fn allowance(
        &self,
        turn: &RequesterTurn<'_>,
        requester: &mut Requester,
        limit: usize,
    ) -> Result<Allowance, Stop> {
        let mut allowed = Allowance {
            len: limit,
            spent: 0,
        };
        if requester.io.pacer.is_none() {
            return Ok(allowed);
        }
        let Some(connection) = requester.connection.clone() else {
            return Ok(allowed);
        };
        let service = service(turn.qp);
        let span = frame_span(&self.wr.op, connection.mtu);
        // The frame within which the last step ended was charged in full then.
        let paid = self.done.next_multiple_of(span) - self.done;
        allowed.len = limit.min(paid as usize);
        if paid > 0 && allowed.len == limit {
            return Ok(allowed);
        }
        loop {
            let index = (self.done + allowed.len as u32) / span;
            let bytes = request_size(service, &connection, &self.wr, index);
            if !requester.io.admit(turn.now, bytes) {
                break;
            }
            if let Some(pacer) = &mut requester.io.pacer {
                pacer.spend(bytes);
            }
            allowed.spent += bytes;
            // The frame carries the message up to `end`, but at most `limit` bytes may be
            // transferred.
            let end = u64::from(index + 1) * u64::from(span) - u64::from(self.done);
            allowed.len = usize::try_from(end).map_or(limit, |end| end.min(limit));
            if allowed.len == limit {
                return Ok(allowed);
            }
        }
        match allowed.len {
            0 => Err(Stop::Paced),
            _ => Ok(allowed),
        }
    }

    /// Bytes that the QP's rate limit was charged for frames with none of the next `len` bytes, of
    /// the `allowed` bytes for which it was charged.
    fn unspent(
        &self,
        turn: &RequesterTurn<'_>,
        requester: &Requester,
        len: usize,
        allowed: usize,
    ) -> usize {
        let (Some(connection), true) = (&requester.connection, requester.io.pacer.is_some()) else {
            return 0;
        };
        let span = frame_span(&self.wr.op, connection.mtu);
        // Both are at most the length of the message, so the casts can't truncate.
        let frame = |bytes: usize| (self.done + bytes as u32).div_ceil(span);
        let frames = frame(len)..frame(allowed);
        let size = |index| request_size(service(turn.qp), connection, &self.wr, index);
        frames.map(size).sum()
    }

    /// Counts the transfer of `len` bytes of the message, for which the QP's rate limit was charged
    /// `spent` bytes. A READ moves data from the peer, other operations to the peer.
    fn count(
        &self,
        turn: &RequesterTurn<'_>,
        receiver: &ResponderTurn<'_>,
        len: usize,
        spent: usize,
        last: bool,
    ) {
        let bytes = len as u64;
        let (from_us, to_us) = (Counter::DirectTxBytes, Counter::DirectRxBytes);
        let (ours, theirs) = match self.wr.op {
            SendOp::Read { .. } => (to_us, from_us),
            _ => (from_us, to_us),
        };
        turn.count(ours, bytes);
        receiver.count(theirs, bytes);
        if spent > 0 {
            turn.count(Counter::PacedBytes, spent as u64);
        }
        if last {
            turn.count(Counter::DirectTxMessages, 1);
            receiver.count(Counter::DirectRxMessages, 1);
        }
    }
}

/// The transport service of a connection.
fn service(qp: &Qp) -> Service {
    match qp.init.qp_type {
        QpType::Uc => Service::Uc,
        _ => Service::Rc,
    }
}

/// Advances the responder's PSN and MSN past a message of `packets` packets, which was copied
/// directly. `next` is the first PSN of the next message.
fn advance(responder: &mut Responder, packets: u32, next: Psn) {
    match &mut responder.machine {
        Some(ResponderMachine::Rc(machine)) => machine.advance(packets, 1),
        Some(ResponderMachine::Uc(machine)) => machine.resume(next),
        Some(ResponderMachine::Ud(_)) | None => {}
    }
}
