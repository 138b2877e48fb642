// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The direct path: data between two QPs of one process goes from guest memory to guest memory.
//!
//! The requester's worker does it all, with the send half of its own QP and the receive half of the
//! peer locked. PSN and MSN advance as packets would make them, and whatever goes wrong looks as it
//! would on the wire: the same status at the requester, the same event and state at the responder,
//! the same retries after the same time. A peer that does not answer is one whose QP is gone, in
//! the wrong state, connected elsewhere, or expects another PSN.
//!
//! A rate limit lets as much through as the frames would carry that the data does not travel in.
//!
//! On an unreliable connection nobody answers: a message that the peer does not take is lost, and
//! the requester does not know. A datagram is a message that is looked at once, in the turn in
//! which it is sent.

#[cfg(feature = "testing")]
mod committed;
mod datagram;
mod exchange;

use std::sync::{Arc, Weak};
use std::time::Instant;

use dma::DmaView;
use parking_lot::MutexGuard;

use roce::opcode::Service;
use roce::rc::{ack_timeout, rnr_delay, RNR_RETRY_FOREVER};
use roce::size::{frame_span, request_size};
use roce::work::{packets, Mtu, SendOp, SendWr};
use roce::{Connection, Psn};
use virtio_rdma_abi::ib::{QpType, WcStatus};
use virtio_rdma_abi::number::{PortId, Qpn};
use virtio_rdma_abi::qp::QpAttr;

#[cfg(feature = "testing")]
pub(crate) use self::committed::TransferState;
pub(crate) use self::datagram::{deliver, DatagramStep};
use self::exchange::Exchange;
use crate::counters::Counter;
use crate::qp::{Qp, RecvSide, RecvTurn, RemoteQp, Responder, SendSide, SendTurn};
use crate::wqe::{Fetched, Posted};
use crate::{Borrowed, Device};

/// The way to a QP of the same process.
#[derive(Debug)]
pub(crate) struct DirectRoute {
    device: Weak<Device>,
    port: PortId,
    qpn: Qpn,
    mtu: Mtu,
    /// How that QP names us, if it does.
    us: RemoteQp,
}

/// The device and the QP at the end of a route.
pub(crate) struct RouteEnd {
    pub device: Arc<Device>,
    pub qp: Arc<Qp>,
}

impl DirectRoute {
    /// The way that `connection` of QP `qpn` takes, or `None` if it needs packets.
    pub(crate) fn find(device: &Device, qpn: Qpn, connection: &Connection) -> Option<Self> {
        let group = device.config().group;
        let peer = device
            .runtime()
            .direct_peer(group, connection.path.dst_mac)?;
        Some(Self {
            device: Arc::downgrade(&peer),
            port: peer.port(),
            qpn: connection.dest_qpn,
            mtu: connection.mtu,
            us: RemoteQp::us(device.mac(), qpn, connection)?,
        })
    }

    /// The port where it ends.
    pub(crate) fn port(&self) -> PortId {
        self.port
    }

    /// Its end, if it is there.
    pub(crate) fn end(&self) -> Option<RouteEnd> {
        let device = self
            .device
            .upgrade()
            .filter(|device| !device.has_failed())?;
        let qp = device.qps.get(self.qpn)?;
        Some(RouteEnd { device, qp })
    }

    /// Gives the peer a turn: what it waits for may have come.
    pub(crate) fn request_turn(&self) {
        if let Some(device) = self.device.upgrade() {
            device.qp_ready(self.qpn);
        }
    }
}

/// The QP at the end of a route in the hands of the requester's worker, for as many work requests
/// as its turn has.
pub(crate) struct Target<'a> {
    // Its completions go before the lock.
    turn: RecvTurn<'a>,
    recv: MutexGuard<'a, RecvSide>,
    mtu: Mtu,
    _borrowed: Borrowed<'a>,
}

impl<'a> Target<'a> {
    /// Locks the receive half of the QP at the end of `route`, if it is connected to `from`, at
    /// which the route begins, by the same service.
    pub(crate) fn new(
        from: &Qp,
        route: &DirectRoute,
        RouteEnd { device, qp }: &'a RouteEnd,
        view: &'a DmaView,
    ) -> Option<Self> {
        if qp.init.qp_type != from.init.qp_type {
            return None;
        }
        let mut recv = qp.lock_recv();
        recv.responder_for(&route.us)?;
        Some(Self {
            turn: RecvTurn::new(qp, device, view),
            recv,
            mtu: route.mtu,
            _borrowed: Borrowed::new(device, qp.number),
        })
    }
}

/// Before a longer copy both sides get the completions of what is done.
const DELIVER_BEFORE_COPY_OF: usize = 8192;

/// The event that a transfer waits for.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Nothing,
    /// The end of the pause that the responder asked for.
    Pause(Instant),
    /// An answer, until the time when it counts as lost, if ever.
    Answer(Option<Instant>),
}

/// The peer, which does not answer, gives this QP a turn when its state changes.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForPeer(());

/// A send work request on the direct path.
#[derive(Debug)]
pub(crate) struct Transfer {
    wr: SendWr<Posted>,
    /// It is not to be executed.
    failed: Option<WcStatus>,
    /// Bytes of the message that are transferred.
    done: u32,
    retries: u8,
    rnr_retries: u8,
    wait: Wait,
}

/// The result of a step of a transfer.
pub(crate) enum TransferStep {
    /// Bytes were moved; there is more to do.
    Moved,
    /// Time has to pass.
    Waits,
    /// The work request ended.
    Done(WcStatus),
}

/// Why a step moved nothing.
enum Stop {
    /// The peer does not answer.
    Silence,
    /// The peer has no receive work request; code of the pause that it asks for.
    NotReady(u8),
    /// The peer does not take the message, and does not say so.
    Lost,
    /// The work request ends with this status.
    Failed(WcStatus),
    /// The rate limit holds the message back.
    Paced,
}

/// The amount that the rate limit lets through.
struct Allowance {
    /// Bytes of the message.
    len: usize,
    /// Bytes of the frames that would carry or ask for them, if a limit or counter needs them.
    spent: usize,
}

impl Transfer {
    /// A work request at its start.
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

    /// The work request.
    pub(crate) fn wr(&self) -> &SendWr<Posted> {
        &self.wr
    }

    /// When the next step is due if nothing else happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::Nothing => None,
            Wait::Pause(at) => Some(at),
            Wait::Answer(at) => at,
        }
    }

    /// The peer that an answer is awaited from, if one is.
    pub(crate) fn await_peer(&self) -> Option<ForPeer> {
        matches!(self.wait, Wait::Answer(_)).then_some(ForPeer(()))
    }

    /// Moves as many bytes of the message to or from `target` as the turn's budget has, if the peer
    /// is there.
    pub(crate) fn step(
        &mut self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        target: Option<&mut Target<'_>>,
    ) -> TransferStep {
        let now = turn.now;
        if let Some(status) = self.failed {
            return TransferStep::Done(status);
        }
        if matches!(self.wait, Wait::Pause(until) if now < until) {
            return TransferStep::Waits;
        }
        if let SendOp::Local { .. } = self.wr.op {
            let executed = turn.execute_local(&side.io.snapshots, &self.wr.local);
            return TransferStep::Done(executed.err().unwrap_or(WcStatus::Success));
        }
        let unreliable = turn.qp.init.qp_type == QpType::Uc;
        let moved = match target {
            Some(target) => self.exchange(turn, side, target),
            None => Err(Stop::Silence),
        };
        match moved {
            Err(Stop::Silence | Stop::NotReady(_)) if unreliable => self.lost(side),
            Err(Stop::Lost) => self.lost(side),
            Ok(done) => {
                self.wait = Wait::Nothing;
                self.retries = side.attr().retry_cnt;
                self.rnr_retries = side.attr().rnr_retry;
                if done {
                    TransferStep::Done(WcStatus::Success)
                } else {
                    TransferStep::Moved
                }
            }
            Err(Stop::Failed(status)) => TransferStep::Done(status),
            Err(Stop::Paced) => {
                // The event has come.
                self.wait = Wait::Nothing;
                TransferStep::Waits
            }
            Err(Stop::NotReady(code)) => {
                turn.device.counters.add(Counter::RnrNaksReceived, 1);
                if side.attr().rnr_retry != RNR_RETRY_FOREVER {
                    match self.rnr_retries.checked_sub(1) {
                        Some(left) => self.rnr_retries = left,
                        None => return TransferStep::Done(WcStatus::RnrRetryExcErr),
                    }
                }
                self.wait = Wait::Pause(now + rnr_delay(code));
                TransferStep::Waits
            }
            Err(Stop::Silence) => self.unanswered(turn, side.attr().timeout, now),
        }
    }

    /// The message went nowhere. To the requester it is sent.
    fn lost(&self, side: &mut SendSide) -> TransferStep {
        if let (Some(route), Some(requester)) = (&side.route, &mut side.requester) {
            requester.advance(packets(self.wr.length, route.mtu));
        }
        TransferStep::Done(WcStatus::Success)
    }

    fn unanswered(&mut self, turn: &SendTurn<'_>, timeout: u8, now: Instant) -> TransferStep {
        match self.wait {
            Wait::Answer(None) => return TransferStep::Waits,
            Wait::Answer(Some(until)) if now < until => return TransferStep::Waits,
            Wait::Answer(Some(_)) => {
                turn.device.counters.add(Counter::Timeouts, 1);
                match self.retries.checked_sub(1) {
                    Some(left) => self.retries = left,
                    None => return TransferStep::Done(WcStatus::RetryExcErr),
                }
            }
            Wait::Nothing | Wait::Pause(_) => {}
        }
        self.wait = Wait::Answer(ack_timeout(timeout).map(|after| now + after));
        TransferStep::Waits
    }

    /// Executes what the turn's budget allows. Returns whether the message is complete.
    fn exchange(
        &mut self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        target: &mut Target<'_>,
    ) -> Result<bool, Stop> {
        let Target {
            turn: target,
            recv,
            mtu,
            ..
        } = target;
        let links = turn.device.link_is_up() && target.device.link_is_up();
        if !links || !target.qp.receives() {
            return Err(Stop::Silence);
        }
        match (&recv.responder, &side.requester) {
            (Some(Responder::Rc(responder)), Some(requester))
                if responder.expected_psn() == requester.next_psn() => {}
            (Some(Responder::Uc(_)), Some(_)) => {}
            _ => return Err(Stop::Silence),
        }
        target.establish(recv);

        let left = self.wr.length - self.done;
        // The lesser of the two fits.
        let limit = match self.wr.op {
            // Not to be divided.
            SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } => left as usize,
            _ => (left as usize).min(turn.budget.left()),
        };
        let port = &turn.device.pacer;
        let limit = self.port_allowance(turn, side, limit)?;
        let Allowance { len, spent } = match self.allowance(turn, side, limit) {
            Ok(allowed) => allowed,
            Err(stop) => {
                port.give_bytes_back(&mut side.io.port, limit);
                return Err(stop);
            }
        };
        port.give_bytes_back(&mut side.io.port, limit - len);
        let last = len == left as usize;
        if len > DELIVER_BEFORE_COPY_OF {
            turn.completions.deliver();
            target.completions.deliver();
        }
        let mut exchange = Exchange {
            wr: &self.wr,
            offset: self.done,
            len,
            last,
            mtu: *mtu,
            reliable: turn.qp.init.qp_type != QpType::Uc,
            turn,
            side,
            target,
            recv,
        };
        let moved = match self.wr.op {
            SendOp::Send { with } => exchange.send(with),
            SendOp::Write { remote, imm } => exchange.write(remote, imm),
            SendOp::Read { remote } => exchange.read(remote),
            SendOp::Atomic { remote, op } => exchange.atomic(remote, op),
            SendOp::AtomicWrite { remote, data } => exchange.atomic_write(remote, data),
            SendOp::Flush(flush) => exchange.flush(&flush),
            // Executed before.
            SendOp::Local { .. } => Ok(()),
        };
        if let Some(pacer) = side.io.pacer.as_mut().filter(|_| moved.is_err()) {
            pacer.give_back(spent);
        }
        if moved.is_err() {
            port.give_bytes_back(&mut side.io.port, len);
        }
        moved?;
        self.count(turn, target, len, spent, last);
        turn.budget.charge_bytes(len);
        // At most the message's length.
        self.done += len as u32;
        if last {
            let packets = packets(self.wr.length, *mtu);
            if let Some(requester) = &mut side.requester {
                requester.advance(packets);
                advance(recv, packets, requester.next_psn());
            }
        }
        Ok(last)
    }
}

impl Transfer {
    /// How much of up to `limit` bytes the port's limit lets through, which is spent.
    fn port_allowance(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        limit: usize,
    ) -> Result<usize, Stop> {
        let least = match self.wr.op {
            // Not to be divided.
            SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } => limit,
            _ => limit.min(1),
        };
        let port = &turn.device.pacer;
        let taken = port.take_bytes(turn.now, &mut side.io.port, least, limit);
        side.io.passes(taken).ok_or(Stop::Paced)
    }

    /// How much of up to `limit` bytes the rate limit lets through, which is spent.
    fn allowance(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        limit: usize,
    ) -> Result<Allowance, Stop> {
        let mut allowed = Allowance {
            len: limit,
            spent: 0,
        };
        if side.io.pacer.is_none() {
            return Ok(allowed);
        }
        let Some(connection) = side.connection.clone() else {
            return Ok(allowed);
        };
        let service = match turn.qp.init.qp_type {
            QpType::Uc => Service::Uc,
            _ => Service::Rc,
        };
        let span = frame_span(&self.wr.op, connection.mtu);
        allowed.len = 0;
        loop {
            // A frame that began to be spent on before the limit was set counts once more.
            let index = (self.done + allowed.len as u32) / span;
            let bytes = request_size(service, &connection, &self.wr, index);
            if !side.io.admit(turn.now, bytes) {
                break;
            }
            if let Some(pacer) = &mut side.io.pacer {
                pacer.spend(bytes);
            }
            allowed.spent += bytes;
            // The end of the frame's span, or the limit.
            let end = u64::from(index + 1) * u64::from(span) - u64::from(self.done);
            allowed.len = usize::try_from(end).map_or(limit, |end| end.min(limit));
            if allowed.len == limit {
                return Ok(allowed);
            }
        }
        match allowed.spent {
            0 => Err(Stop::Paced),
            _ => Ok(allowed),
        }
    }

    /// Counts what was moved: `len` bytes, as which a rate limit counted `spent`, of this side's
    /// message or, by a READ, of the peer's.
    fn count(
        &self,
        turn: &SendTurn<'_>,
        target: &RecvTurn<'_>,
        len: usize,
        spent: usize,
        last: bool,
    ) {
        let (ours, theirs) = (&turn.device.counters, &target.device.counters);
        let (from, to) = match self.wr.op {
            SendOp::Read { .. } => (theirs, ours),
            _ => (ours, theirs),
        };
        from.add(Counter::DirectTxBytes, len as u64);
        to.add(Counter::DirectRxBytes, len as u64);
        if spent > 0 {
            ours.add(Counter::PacedBytes, spent as u64);
        }
        if last {
            ours.add(Counter::DirectTxMessages, 1);
            theirs.add(Counter::DirectRxMessages, 1);
        }
    }
}

/// Counts a message that came without packets; the one behind it begins with `next`.
fn advance(recv: &mut RecvSide, packets: u32, next: Psn) {
    match &mut recv.responder {
        Some(Responder::Rc(responder)) => responder.advance(packets, 1),
        Some(Responder::Uc(responder)) => responder.resume(next),
        Some(Responder::Ud(_)) | None => {}
    }
}
