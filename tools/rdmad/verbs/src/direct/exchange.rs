// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One step of a transfer: changes the responder's state and memory as the requester's packets
//! would.

use roce::env::BadReceive;
use roce::work::{AtomicOp, FlushOp, Mtu, RecvCompletion, Remote, SendWr, With, ATOMIC_SIZE};
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, WcStatus};

use super::Stop;
use crate::counters::Counter;
use crate::memory::{transfer, Fault, Side};
use crate::qp::{solicits, RecvSide, RecvTurn, Responder, SendSide, SendTurn};
use crate::wqe::PostedSend;

/// One step of a transfer, with both QPs locked.
pub(super) struct Exchange<'a, 'b, 'c> {
    pub wr: &'a SendWr<PostedSend>,
    pub offset: u32,
    /// Number of bytes to transfer. The operation reduces it to those that it has transferred.
    pub len: usize,
    /// Whether the step ends the message.
    pub last: bool,
    /// Path MTU of the requester.
    pub mtu: Mtu,
    /// Whether the connection is reliable: the responder reports errors of a message and goes to
    /// ERR.
    pub reliable: bool,
    pub turn: &'a SendTurn<'b>,
    pub side: &'a mut SendSide,
    pub receiver: &'a RecvTurn<'c>,
    pub recv: &'a mut RecvSide,
}

impl Exchange<'_, '_, '_> {
    /// SEND.
    pub(super) fn send(&mut self, with: With) -> Result<(), Stop> {
        self.check_packets()?;
        if self.offset == 0 {
            if self.reliable && self.recv.io.incoming.is_some() {
                // An earlier requester on this connection left a message unfinished.
                return Err(self.refuse(WcStatus::RemInvReqErr, Some(AsyncEvent::QpReqErr)));
            }
            self.take()?;
        }
        let Some(incoming) = self.recv.io.incoming.take() else {
            return Err(Stop::Silence);
        };
        let mut completion = self.completion(false, with);
        if self.wr.length > incoming.length {
            if self.reliable {
                completion.status = WcStatus::LocLenErr;
                self.receiver.complete(&incoming, &completion);
            } else {
                self.recv.io.incoming = Some(incoming);
            }
            return Err(self.refuse(WcStatus::RemInvReqErr, None));
        }
        let moved = {
            let mut from =
                self.turn
                    .message(&self.side.io.snapshots, &self.wr.local, AccessFlags::NONE);
            let mut to = self.receiver.message(&self.recv.io, &incoming.local);
            transfer(&mut from, &mut to, self.offset.into(), self.len, self.last)
        };
        match self.note(moved) {
            Ok(()) if self.last => {
                if let With::Inv(rkey) = with {
                    if self.receiver.invalidate(rkey).is_err() {
                        completion.status = WcStatus::RemInvReqErr;
                        self.receiver.complete(&incoming, &completion);
                        return Err(self.refuse_access(Fault::Key));
                    }
                }
                self.receiver.complete(&incoming, &completion);
            }
            Ok(()) => self.recv.io.incoming = Some(incoming),
            Err(Side::Source(_)) => {
                self.recv.io.incoming = Some(incoming);
                return Err(Stop::Failed(WcStatus::LocProtErr));
            }
            Err(Side::Target(_)) => {
                completion.status = WcStatus::LocProtErr;
                self.receiver.complete(&incoming, &completion);
                self.receiver.qp.fail(self.receiver.hca, None);
                return Err(self.refuse(WcStatus::RemOpErr, None));
            }
        }
        Ok(())
    }

    /// RDMA WRITE.
    pub(super) fn write(&mut self, remote: Remote, imm: Option<[u8; 4]>) -> Result<(), Stop> {
        self.check_packets()?;
        self.admit(remote, AccessFlags::REMOTE_WRITE)?;
        let imm = imm.filter(|_| self.last);
        if imm.is_some() {
            // A message without a posted receive must not write data.
            self.take()?;
        }
        let mut from =
            self.turn
                .message(&self.side.io.snapshots, &self.wr.local, AccessFlags::NONE);
        let mut to = self.receiver.remote(remote, AccessFlags::REMOTE_WRITE);
        let moved = transfer(&mut from, &mut to, self.offset.into(), self.len, self.last);
        let moved = self.note(moved);
        if let Err(Side::Source(_)) = moved {
            return Err(Stop::Failed(WcStatus::LocProtErr));
        }
        if moved.is_ok() && !self.last {
            return Ok(());
        }
        if let Some(incoming) = imm.and_then(|_| self.recv.io.incoming.take()) {
            if moved.is_ok() || self.reliable {
                let mut completion = self.completion(true, imm.map_or(With::Nothing, With::Imm));
                if moved.is_err() {
                    completion.status = WcStatus::WrFlushErr;
                }
                self.receiver.complete(&incoming, &completion);
            } else {
                self.recv.io.incoming = Some(incoming);
            }
        }
        match moved {
            Err(Side::Target(fault)) => Err(self.refuse_access(fault)),
            _ => Ok(()),
        }
    }

    /// RDMA READ.
    pub(super) fn read(&mut self, remote: Remote) -> Result<(), Stop> {
        self.admit(remote, AccessFlags::REMOTE_READ)?;
        self.check_responses()?;
        let mut from = self.receiver.remote(remote, AccessFlags::REMOTE_READ);
        let mut to = self.turn.message(
            &self.side.io.snapshots,
            &self.wr.local,
            AccessFlags::LOCAL_WRITE,
        );
        let moved = transfer(&mut from, &mut to, self.offset.into(), self.len, self.last);
        match self.note(moved) {
            Ok(()) => Ok(()),
            Err(Side::Source(fault)) => Err(self.refuse_access(fault)),
            Err(Side::Target(_)) => Err(Stop::Failed(WcStatus::LocProtErr)),
        }
    }

    /// Records the number of bytes that a transfer has moved. The turn's budget may have ended it.
    fn note(&mut self, moved: Result<usize, Side>) -> Result<(), Side> {
        moved.map(|moved| {
            self.last &= moved == self.len;
            self.len = moved;
        })
    }

    /// Atomic operation.
    pub(super) fn atomic(&mut self, remote: Remote, op: AtomicOp) -> Result<(), Stop> {
        self.admit_operation(AccessFlags::REMOTE_ATOMIC)?;
        if remote.va % u64::from(ATOMIC_SIZE) != 0 {
            return Err(self.refuse(WcStatus::RemInvReqErr, Some(AsyncEvent::QpReqErr)));
        }
        let original = self
            .receiver
            .atomic(remote, op)
            .map_err(|fault| self.refuse_access(fault))?;
        let mut to = self.turn.message(
            &self.side.io.snapshots,
            &self.wr.local,
            AccessFlags::LOCAL_WRITE,
        );
        to.write(0, &original.to_le_bytes(), true)
            .map_err(|_| Stop::Failed(WcStatus::LocProtErr))
    }

    /// Atomic WRITE.
    pub(super) fn atomic_write(&mut self, remote: Remote, data: [u8; 8]) -> Result<(), Stop> {
        self.admit_operation(AccessFlags::REMOTE_WRITE)?;
        if !self.has_room_for_answers() || remote.va % u64::from(ATOMIC_SIZE) != 0 {
            return Err(self.refuse(WcStatus::RemInvReqErr, Some(AsyncEvent::QpReqErr)));
        }
        self.receiver
            .write_word(remote, data)
            .map_err(|fault| self.refuse_access(fault))
    }

    /// FLUSH.
    pub(super) fn flush(&mut self, flush: &FlushOp) -> Result<(), Stop> {
        self.admit_operation(flush.access())?;
        self.receiver
            .place(flush)
            .map_err(|fault| self.refuse_access(fault))
    }

    /// The greater of both QPs' path MTUs, if these differ and the message is longer than the
    /// smaller of them.
    fn disagreement(&self) -> Option<Mtu> {
        let theirs = self.recv.responder.as_ref().and_then(Responder::mtu)?;
        let differs = theirs != self.mtu && self.wr.length > self.mtu.min(theirs).bytes();
        differs.then(|| self.mtu.max(theirs))
    }

    /// Checks that the peer accepts packets of the requester's path MTU. On the wire the peer would
    /// refuse the first packet of an unexpected length.
    fn check_packets(&self) -> Result<(), Stop> {
        match self.disagreement() {
            None => Ok(()),
            Some(_) => Err(self.refuse(WcStatus::RemInvReqErr, Some(AsyncEvent::QpReqErr))),
        }
    }

    /// Checks that the requester accepts responses of the peer's path MTU. If the path MTUs differ,
    /// the first response on the wire would have an unexpected opcode or length.
    fn check_responses(&self) -> Result<(), Stop> {
        match self.disagreement() {
            None => Ok(()),
            Some(greater) if self.wr.length <= greater.bytes() => {
                Err(Stop::Failed(WcStatus::BadRespErr))
            }
            Some(_) => Err(Stop::Failed(WcStatus::LocLenErr)),
        }
    }

    /// Checks, at the start of an RDMA operation, that the peer's QP and memory permit all of it.
    fn admit(&mut self, remote: Remote, access: AccessFlags) -> Result<(), Stop> {
        if self.offset > 0 {
            return Ok(());
        }
        self.admit_operation(access)?;
        // In an empty range no address can be invalid (IBTA 9.7.4.1.3).
        let memory = self.receiver.memory();
        let length = self.wr.length.into();
        if length > 0
            && memory
                .keys
                .check_remote(remote.rkey, memory.by, remote.va, length, access)
                .is_err()
        {
            return Err(self.refuse_access(Fault::Key));
        }
        Ok(())
    }

    /// Checks that the peer's QP permits an operation that needs `access`.
    fn admit_operation(&self, access: AccessFlags) -> Result<(), Stop> {
        let admitted = self.recv.responder.as_ref().is_some_and(|responder| {
            let limited = access.intersects(AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC);
            let room = !limited || has_room_for_answers(responder);
            room && responder.access().contains(access)
        });
        if admitted {
            Ok(())
        } else {
            Err(self.refuse(WcStatus::RemInvReqErr, Some(AsyncEvent::QpReqErr)))
        }
    }

    /// Whether the peer accepts one more READ or atomic operation: the number of outstanding ones
    /// is limited.
    fn has_room_for_answers(&self) -> bool {
        let responder = self.recv.responder.as_ref();
        responder.is_some_and(has_room_for_answers)
    }

    /// The CQE of the peer's receive for a message that succeeds.
    fn completion(&self, rdma_write: bool, with: With) -> RecvCompletion {
        RecvCompletion {
            status: WcStatus::Success,
            rdma_write,
            byte_len: self.wr.length,
            with,
            solicited: solicits(self.wr),
            source: None,
        }
    }

    /// Takes the peer's next posted receive for this message.
    fn take(&mut self) -> Result<(), Stop> {
        match self.receiver.take_for_direct(self.recv) {
            Ok(Some(wr)) => {
                self.recv.io.incoming = Some(wr);
                Ok(())
            }
            Ok(None) => Err(match &self.recv.responder {
                Some(Responder::Rc(responder)) => {
                    self.receiver.count(Counter::RnrNaksSent, 1);
                    Stop::NotReady(responder.attr().min_rnr_timer)
                }
                _ => Stop::Lost,
            }),
            Err(BadReceive) => Err(self.refuse(WcStatus::RemOpErr, None)),
        }
    }

    /// Refuses an operation that the responder's memory does not permit.
    fn refuse_access(&self, fault: Fault) -> Stop {
        match fault {
            Fault::Key => {
                self.receiver.refused_key(&self.recv.io);
                self.refuse(WcStatus::RemAccessErr, Some(AsyncEvent::QpAccessErr))
            }
            Fault::Memory => self.refuse(WcStatus::RemOpErr, Some(AsyncEvent::QpFatal)),
        }
    }

    /// Makes the responder refuse the message. On a reliable connection the responder goes to ERR
    /// and raises `event`, which is `None` if a completion reports the error.
    fn refuse(&self, status: WcStatus, event: Option<AsyncEvent>) -> Stop {
        if !self.reliable {
            return Stop::Lost;
        }
        self.receiver.qp.fail(self.receiver.hca, event);
        // On the wire the responder would send a NAK, which the requester would receive.
        self.receiver.count(Counter::NaksSent, 1);
        self.turn.count(Counter::NaksReceived, 1);
        Stop::Failed(status)
    }
}

fn has_room_for_answers(responder: &Responder) -> bool {
    matches!(responder, Responder::Rc(responder) if responder.attr().max_dest_rd_atomic > 0)
}
