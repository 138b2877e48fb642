// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The direct path: data between two QPs of one process goes from guest memory to guest memory.
//!
//! The requester's worker does it all, with the send half of its own QP and the receive half of the peer locked. PSN and
//! MSN advance as packets would make them, and whatever goes wrong looks as it would on the wire: the same status at
//! the requester, the same event and state at the responder, the same retries after the same time. A peer that does not
//! answer is one whose QP is gone, in the wrong state, connected elsewhere, or expects another PSN.

use std::sync::{Arc, Weak};
use std::time::Instant;

use roce::rc::{ack_timeout, rnr_delay, BadReceive, Connection};
use roce::work::{packets, Mtu, RecvCompletion, Remote, SendOp, SendWr};
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, WcStatus};
use virtio_rdma_abi::qp::QpAttr;

use crate::memory::{transfer, Fault, Side};
use crate::qp::{solicits, Peer, RecvSide, RecvTurn, SendSide, SendTurn};
use crate::wqe::{Fetched, Posted};
use crate::Device;

/// `rnr_retry` without a limit.
const RNR_RETRY_FOREVER: u8 = 7;

/// The way to a QP of the same process.
#[derive(Debug)]
pub(crate) struct Route {
    device: Weak<Device>,
    qpn: u32,
    mtu: Mtu,
    /// How that QP names us, if it does.
    us: Peer,
}

impl Route {
    /// The way that `connection` of QP `qpn` takes, or `None` if it needs packets.
    pub(crate) fn find(device: &Device, qpn: u32, connection: &Connection) -> Option<Self> {
        let peer = device.fabric().direct_peer(connection.path.dst_mac)?;
        Some(Self {
            device: Arc::downgrade(&peer),
            qpn: connection.dest_qpn,
            mtu: connection.mtu,
            us: Peer::us(device.mac(), qpn, connection)?,
        })
    }

    /// Gives the peer a turn: what it waits for may have come.
    pub(crate) fn nudge(&self) {
        if let Some(device) = self.device.upgrade() {
            device.qp_ready(self.qpn);
        }
    }
}

/// What a transfer waits for.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Nothing,
    /// The end of the pause that the responder asked for.
    Pause(Instant),
    /// An answer, until the time when it counts as lost, if ever.
    Answer(Option<Instant>),
}

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

/// What a step of a transfer came to.
pub(crate) enum Step {
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
    /// The work request ends with this status.
    Failed(WcStatus),
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

    /// Moves up to `budget` bytes of the message.
    pub(crate) fn step(
        &mut self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        budget: &mut usize,
        now: Instant,
    ) -> Step {
        if let Some(status) = self.failed {
            return Step::Done(status);
        }
        if matches!(self.wait, Wait::Pause(until) if now < until) {
            return Step::Waits;
        }
        match self.exchange(turn, side, budget) {
            Ok(done) => {
                self.wait = Wait::Nothing;
                self.retries = side.attr().retry_cnt;
                self.rnr_retries = side.attr().rnr_retry;
                if done {
                    Step::Done(WcStatus::Success)
                } else {
                    Step::Moved
                }
            }
            Err(Stop::Failed(status)) => Step::Done(status),
            Err(Stop::NotReady(code)) => {
                if side.attr().rnr_retry != RNR_RETRY_FOREVER {
                    match self.rnr_retries.checked_sub(1) {
                        Some(left) => self.rnr_retries = left,
                        None => return Step::Done(WcStatus::RnrRetryExcErr),
                    }
                }
                self.wait = Wait::Pause(now + rnr_delay(code));
                Step::Waits
            }
            Err(Stop::Silence) => self.unanswered(side.attr().timeout, now),
        }
    }

    fn unanswered(&mut self, timeout: u8, now: Instant) -> Step {
        match self.wait {
            Wait::Answer(None) => return Step::Waits,
            Wait::Answer(Some(until)) if now < until => return Step::Waits,
            Wait::Answer(Some(_)) => match self.retries.checked_sub(1) {
                Some(left) => self.retries = left,
                None => return Step::Done(WcStatus::RetryExcErr),
            },
            Wait::Nothing | Wait::Pause(_) => {}
        }
        self.wait = Wait::Answer(ack_timeout(timeout).map(|after| now + after));
        Step::Waits
    }

    /// Executes what the budget allows. Returns whether the message is complete.
    fn exchange(
        &mut self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        budget: &mut usize,
    ) -> Result<bool, Stop> {
        let (Some(route), Some(requester)) = (&side.route, &side.requester) else {
            return Err(Stop::Silence);
        };
        let device = route.device.upgrade().ok_or(Stop::Silence)?;
        if !turn.device.link_is_up() || !device.link_is_up() {
            return Err(Stop::Silence);
        }
        let peer = device.qps.get(route.qpn).ok_or(Stop::Silence)?;
        let mut recv = peer.lock_recv();
        if !peer.receives() {
            return Err(Stop::Silence);
        }
        match recv.responder_for(&route.us) {
            Some(responder) if responder.expected_psn() == requester.next_psn() => {}
            _ => return Err(Stop::Silence),
        }
        let mtu = route.mtu;
        let view = device.space.enter();
        let target = RecvTurn::new(&peer, &device, &view);
        target.establish(&mut recv);

        let left = self.wr.length - self.done;
        // The lesser of the two fits.
        let len = (left as usize).min(*budget);
        let last = len == left as usize;
        let mut exchange = Exchange {
            wr: &self.wr,
            offset: self.done,
            len,
            last,
            turn,
            side,
            target: &target,
            recv: &mut recv,
        };
        match self.wr.op {
            SendOp::Send { imm } => exchange.send(imm)?,
            SendOp::Write { remote, imm } => exchange.write(remote, imm)?,
            SendOp::Read { remote } => exchange.read(remote)?,
        }
        *budget -= len;
        // At most the message's length.
        self.done += len as u32;
        if last {
            let packets = packets(self.wr.length, mtu);
            if let Some(responder) = &mut recv.responder {
                responder.advance(packets, 1);
            }
            if let Some(requester) = &mut side.requester {
                requester.advance(packets);
            }
        }
        Ok(last)
    }
}

/// One step with both sides at hand.
struct Exchange<'a, 'b> {
    wr: &'a SendWr<Posted>,
    offset: u32,
    len: usize,
    /// The step ends the message.
    last: bool,
    turn: &'a SendTurn<'b>,
    side: &'a mut SendSide,
    target: &'a RecvTurn<'b>,
    recv: &'a mut RecvSide,
}

impl Exchange<'_, '_> {
    fn send(&mut self, imm: Option<[u8; 4]>) -> Result<(), Stop> {
        if self.offset == 0 {
            if self.recv.incoming.is_some() {
                // An earlier requester of ours left a message unfinished.
                return Err(self.refuse(WcStatus::RemInvReqErr, Some(AsyncEvent::QpReqErr)));
            }
            self.take()?;
        }
        let Some(incoming) = self.recv.incoming.take() else {
            return Err(Stop::Silence);
        };
        let mut completion = RecvCompletion {
            status: WcStatus::Success,
            rdma_write: false,
            byte_len: self.wr.length,
            imm,
            solicited: solicits(self.wr),
        };
        if self.wr.length > incoming.length {
            completion.status = WcStatus::LocLenErr;
            self.target.complete(&incoming, &completion);
            return Err(self.refuse(WcStatus::RemInvReqErr, None));
        }
        let mut from = self
            .turn
            .message(&self.side.snapshots, &self.wr.local, AccessFlags::NONE);
        let mut to = self.target.message(self.recv, &incoming.local);
        match transfer(&mut from, &mut to, self.offset.into(), self.len, self.last) {
            Ok(()) if self.last => self.target.complete(&incoming, &completion),
            Ok(()) => self.recv.incoming = Some(incoming),
            Err(Side::Source(_)) => {
                self.recv.incoming = Some(incoming);
                return Err(Stop::Failed(WcStatus::LocProtErr));
            }
            Err(Side::Target(_)) => {
                completion.status = WcStatus::LocProtErr;
                self.target.complete(&incoming, &completion);
                return Err(self.refuse(WcStatus::RemOpErr, None));
            }
        }
        Ok(())
    }

    fn write(&mut self, remote: Remote, imm: Option<[u8; 4]>) -> Result<(), Stop> {
        self.admit(remote, AccessFlags::REMOTE_WRITE)?;
        let imm = imm.filter(|_| self.last);
        if imm.is_some() {
            // Before the data is in place, so that a message without a receive leaves no trace.
            self.take()?;
        }
        let mut from = self
            .turn
            .message(&self.side.snapshots, &self.wr.local, AccessFlags::NONE);
        let mut to = self.target.remote(remote, AccessFlags::REMOTE_WRITE);
        let moved = transfer(&mut from, &mut to, self.offset.into(), self.len, self.last);
        if let Err(Side::Source(_)) = moved {
            return Err(Stop::Failed(WcStatus::LocProtErr));
        }
        if let Some(incoming) = imm.and_then(|_| self.recv.incoming.take()) {
            let completion = RecvCompletion {
                status: if moved.is_ok() {
                    WcStatus::Success
                } else {
                    WcStatus::WrFlushErr
                },
                rdma_write: true,
                byte_len: self.wr.length,
                imm,
                solicited: solicits(self.wr),
            };
            self.target.complete(&incoming, &completion);
        }
        match moved {
            Err(Side::Target(fault)) => Err(self.refuse_access(fault)),
            _ => Ok(()),
        }
    }

    fn read(&mut self, remote: Remote) -> Result<(), Stop> {
        self.admit(remote, AccessFlags::REMOTE_READ)?;
        let mut from = self.target.remote(remote, AccessFlags::REMOTE_READ);
        let mut to = self.turn.message(
            &self.side.snapshots,
            &self.wr.local,
            AccessFlags::LOCAL_WRITE,
        );
        match transfer(&mut from, &mut to, self.offset.into(), self.len, self.last) {
            Ok(()) => Ok(()),
            Err(Side::Source(fault)) => Err(self.refuse_access(fault)),
            Err(Side::Target(_)) => Err(Stop::Failed(WcStatus::LocProtErr)),
        }
    }

    /// Checks, at the start of an RDMA operation, whether QP and memory of the peer admit all of it.
    fn admit(&mut self, remote: Remote, access: AccessFlags) -> Result<(), Stop> {
        if self.offset > 0 {
            return Ok(());
        }
        let admitted = self
            .recv
            .responder
            .as_ref()
            .is_some_and(|responder| responder.attr().access.contains(access));
        if !admitted {
            return Err(self.refuse(WcStatus::RemInvReqErr, Some(AsyncEvent::QpReqErr)));
        }
        // An empty range has no address that could be wrong (IBTA 9.7.4.1.3).
        let memory = self.target.memory();
        let length = self.wr.length.into();
        if length > 0
            && memory
                .mrs
                .check(remote.rkey, memory.pdn, remote.va, length, access)
                .is_err()
        {
            return Err(self.refuse_access(Fault::Key));
        }
        Ok(())
    }

    /// Takes the receive work request of this message.
    fn take(&mut self) -> Result<(), Stop> {
        match self.target.take(self.recv) {
            Ok(Some(wr)) => {
                self.recv.incoming = Some(wr);
                Ok(())
            }
            Ok(None) => {
                let code = self
                    .recv
                    .responder
                    .as_ref()
                    .map_or(0, |responder| responder.attr().min_rnr_timer);
                Err(Stop::NotReady(code))
            }
            Err(BadReceive) => Err(self.refuse(WcStatus::RemOpErr, None)),
        }
    }

    /// The responder's memory refuses the operation.
    fn refuse_access(&self, fault: Fault) -> Stop {
        match fault {
            Fault::Key => self.refuse(WcStatus::RemAccessErr, Some(AsyncEvent::QpAccessErr)),
            Fault::Memory => self.refuse(WcStatus::RemOpErr, Some(AsyncEvent::QpFatal)),
        }
    }

    /// The responder refuses the message: it goes to ERR, with `event` unless a completion tells why.
    fn refuse(&self, status: WcStatus, event: Option<AsyncEvent>) -> Stop {
        self.target.qp.fail(self.target.device, event);
        Stop::Failed(status)
    }
}
