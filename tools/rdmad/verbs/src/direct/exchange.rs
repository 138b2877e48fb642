// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One step of a transfer: changes the responder's state and memory as the requester's packets
//! would.

use roce::env::{BadReceive, RemoteFault};
use roce::work::{
    AtomicOp, FlushOp, Mtu, RecvCompletion, Remote, SendWr, WcFault, With, ATOMIC_SIZE,
};
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, WcStatus};

use super::Stop;
use crate::counters::Counter;
use crate::memory::{transfer, Fault, KeyFault, Side};
use crate::qp::{solicits, Requester, RequesterTurn, Responder, ResponderMachine, ResponderTurn};
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
    pub turn: &'a RequesterTurn<'b>,
    pub requester: &'a mut Requester,
    pub receiver: &'a ResponderTurn<'c>,
    pub responder: &'a mut Responder,
}

impl Exchange<'_, '_, '_> {
    pub(super) fn send(&mut self, with: With) -> Result<(), Stop> {
        self.check_packets()?;
        if self.offset == 0 {
            if self.reliable && self.responder.io.incoming.is_some() {
                // An earlier requester on this connection left a message unfinished.
                return Err(self.refuse_request(RemoteFault::Invalid));
            }
            self.take()?;
        }
        let Some(incoming) = self.responder.io.incoming.take() else {
            return Err(Stop::Silence);
        };
        let mut completion = self.completion(false, with);
        if self.wr.length > incoming.length {
            if self.reliable {
                completion.result = Err(WcFault::RECEIVE_TOO_SHORT);
                self.receiver.complete(&incoming, &completion);
            } else {
                self.responder.io.incoming = Some(incoming);
            }
            return Err(self.refuse(WcFault::PEER_INVALID_REQUEST, None));
        }
        let moved = {
            let mut from = self.turn.message(
                &self.requester.io.snapshots,
                &self.wr.local,
                AccessFlags::NONE,
            );
            let mut to = self.receiver.message(&self.responder.io, &incoming.local);
            transfer(&mut from, &mut to, self.offset.into(), self.len, self.last)
        };
        match self.note(moved) {
            Ok(()) if self.last => {
                if let With::Inv(rkey) = with {
                    if let Err(KeyFault(reason)) = self.receiver.invalidate(rkey) {
                        let fault = WcFault::new(WcStatus::RemInvReqErr, reason);
                        completion.result = Err(fault);
                        self.receiver.complete(&incoming, &completion);
                        return Err(self.refuse_access(Fault::Key(reason)));
                    }
                }
                self.receiver.complete(&incoming, &completion);
            }
            Ok(()) => self.responder.io.incoming = Some(incoming),
            Err(Side::Source(fault)) => {
                self.responder.io.incoming = Some(incoming);
                return Err(Stop::Failed(fault.local()));
            }
            Err(Side::Target(fault)) => {
                completion.result = Err(fault.local());
                self.receiver.complete(&incoming, &completion);
                self.receiver.qp.fail(self.receiver.hca, None);
                return Err(self.refuse(WcFault::PEER_OPERATION, None));
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
        let mut from = self.turn.message(
            &self.requester.io.snapshots,
            &self.wr.local,
            AccessFlags::NONE,
        );
        let mut to = self.receiver.remote(remote, AccessFlags::REMOTE_WRITE);
        let moved = transfer(&mut from, &mut to, self.offset.into(), self.len, self.last);
        let moved = self.note(moved);
        if let Err(Side::Source(fault)) = moved {
            return Err(Stop::Failed(fault.local()));
        }
        if moved.is_ok() && !self.last {
            return Ok(());
        }
        if let Some(incoming) = imm.and_then(|_| self.responder.io.incoming.take()) {
            if moved.is_ok() || self.reliable {
                let mut completion = self.completion(true, imm.map_or(With::Nothing, With::Imm));
                if moved.is_err() {
                    completion.result = Err(WcFault::FLUSHED);
                }
                self.receiver.complete(&incoming, &completion);
            } else {
                self.responder.io.incoming = Some(incoming);
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
            &self.requester.io.snapshots,
            &self.wr.local,
            AccessFlags::LOCAL_WRITE,
        );
        let moved = transfer(&mut from, &mut to, self.offset.into(), self.len, self.last);
        match self.note(moved) {
            Ok(()) => Ok(()),
            Err(Side::Source(fault)) => Err(self.refuse_access(fault)),
            Err(Side::Target(fault)) => Err(Stop::Failed(fault.local())),
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
        self.admit_operation(remote.rkey, AccessFlags::REMOTE_ATOMIC)?;
        if remote.va % u64::from(ATOMIC_SIZE) != 0 {
            return Err(self.refuse_request(RemoteFault::Invalid));
        }
        let original = self
            .receiver
            .atomic(remote, op)
            .map_err(|fault| self.refuse_access(fault))?;
        let mut to = self.turn.message(
            &self.requester.io.snapshots,
            &self.wr.local,
            AccessFlags::LOCAL_WRITE,
        );
        to.write(0, &original.to_le_bytes(), true)
            .map_err(|fault| Stop::Failed(fault.local()))
    }

    pub(super) fn atomic_write(&mut self, remote: Remote, data: [u8; 8]) -> Result<(), Stop> {
        self.admit_operation(remote.rkey, AccessFlags::REMOTE_WRITE)?;
        if !self.has_room_for_answers() || remote.va % u64::from(ATOMIC_SIZE) != 0 {
            return Err(self.refuse_request(RemoteFault::Invalid));
        }
        self.receiver
            .write_word(remote, data)
            .map_err(|fault| self.refuse_access(fault))
    }

    pub(super) fn flush(&mut self, flush: &FlushOp) -> Result<(), Stop> {
        self.admit_operation(flush.remote.rkey, flush.access())?;
        self.receiver
            .place(flush)
            .map_err(|fault| self.refuse_access(fault))
    }

    /// The greater of both QPs' path MTUs, if these differ and the message is longer than the
    /// smaller of them.
    fn disagreement(&self) -> Option<Mtu> {
        let theirs = self
            .responder
            .machine
            .as_ref()
            .and_then(ResponderMachine::mtu)?;
        let differs = theirs != self.mtu && self.wr.length > self.mtu.min(theirs).bytes();
        differs.then(|| self.mtu.max(theirs))
    }

    /// Checks that the peer accepts packets of the requester's path MTU. On the wire the peer would
    /// refuse the first packet of an unexpected length.
    fn check_packets(&self) -> Result<(), Stop> {
        match self.disagreement() {
            None => Ok(()),
            Some(_) => Err(self.refuse_request(RemoteFault::Invalid)),
        }
    }

    /// Checks that the requester accepts responses of the peer's path MTU. If the path MTUs differ,
    /// the first response on the wire would have an unexpected opcode or length.
    fn check_responses(&self) -> Result<(), Stop> {
        match self.disagreement() {
            None => Ok(()),
            Some(greater) if self.wr.length <= greater.bytes() => {
                Err(Stop::Failed(WcFault::BAD_RESPONSE))
            }
            Some(_) => Err(Stop::Failed(WcFault::BAD_RESPONSE_LENGTH)),
        }
    }

    /// Checks, at the start of an RDMA operation, that the peer's QP and memory permit all of it.
    fn admit(&mut self, remote: Remote, access: AccessFlags) -> Result<(), Stop> {
        if self.offset > 0 {
            return Ok(());
        }
        self.admit_operation(remote.rkey, access)?;
        // In an empty range no address can be invalid (IBTA 9.7.4.1.3).
        let memory = self.receiver.memory();
        let length = self.wr.length.into();
        if length == 0 {
            return Ok(());
        }
        memory
            .keys
            .check_remote(remote.rkey, memory.by, remote.va, length, access)
            .map_err(|fault| self.refuse_access(fault.into()))
    }

    /// Checks, at the start of an operation, that the peer's QP permits one that needs `access` to
    /// the memory of `rkey`.
    fn admit_operation(&self, rkey: u32, access: AccessFlags) -> Result<(), Stop> {
        let to = &self.receiver;
        if let Some(fault) = to.qp.refused_on_order(to.hca, rkey, access) {
            return Err(self.refuse_request(fault));
        }
        let admitted = self.responder.machine.as_ref().is_some_and(|machine| {
            let limited = access.intersects(AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC);
            let room = !limited || has_room_for_answers(machine);
            room && machine.access().contains(access)
        });
        if admitted {
            Ok(())
        } else {
            Err(self.refuse_request(RemoteFault::Invalid))
        }
    }

    /// Whether the peer accepts one more READ or atomic operation: the number of outstanding ones
    /// is limited.
    fn has_room_for_answers(&self) -> bool {
        let machine = self.responder.machine.as_ref();
        machine.is_some_and(has_room_for_answers)
    }

    /// The CQE of the peer's receive for a message that succeeds.
    fn completion(&self, rdma_write: bool, with: With) -> RecvCompletion {
        RecvCompletion {
            result: Ok(()),
            rdma_write,
            byte_len: self.wr.length,
            with,
            solicited: solicits(self.wr),
            source: None,
        }
    }

    /// Takes the peer's next posted receive for this message.
    fn take(&mut self) -> Result<(), Stop> {
        match self.receiver.take_for_direct(self.responder) {
            Ok(Some(wr)) => {
                self.responder.io.incoming = Some(wr);
                Ok(())
            }
            Ok(None) => Err(match &self.responder.machine {
                Some(ResponderMachine::Rc(machine)) => {
                    self.receiver.count(Counter::RnrNaksSent, 1);
                    Stop::NotReady(machine.attr().min_rnr_timer)
                }
                _ => Stop::Lost,
            }),
            // A device that has failed sends no NAK.
            Err(BadReceive) if self.receiver.hca.has_failed() => Err(Stop::Silence),
            Err(BadReceive) => Err(self.refuse(WcFault::PEER_OPERATION, None)),
        }
    }

    /// Refuses an operation that the responder's memory does not permit.
    fn refuse_access(&self, fault: Fault) -> Stop {
        match fault {
            Fault::Key(reason) => {
                if let Some(at) = self.wr.op.remote() {
                    self.receiver.refused_key(&self.responder.io, at, reason);
                }
                self.refuse_request(RemoteFault::Access)
            }
            Fault::Memory => self.refuse_request(RemoteFault::Operational),
        }
    }

    /// Makes the responder refuse the message with the event that tells of this fault.
    fn refuse_request(&self, fault: RemoteFault) -> Stop {
        let (fault, event) = match fault {
            RemoteFault::Access => (WcFault::PEER_ACCESS, AsyncEvent::QpAccessErr),
            RemoteFault::Invalid => (WcFault::PEER_INVALID_REQUEST, AsyncEvent::QpReqErr),
            RemoteFault::Operational => (WcFault::PEER_OPERATION, AsyncEvent::QpFatal),
        };
        self.refuse(fault, Some(event))
    }

    /// Makes the responder refuse the message. On a reliable connection the responder goes to ERR
    /// and raises `event`, which is `None` if a completion reports the error.
    fn refuse(&self, fault: WcFault, event: Option<AsyncEvent>) -> Stop {
        if !self.reliable {
            return Stop::Lost;
        }
        self.receiver.qp.fail(self.receiver.hca, event);
        // On the wire the responder would send a NAK, which the requester would receive.
        self.receiver.count(Counter::NaksSent, 1);
        self.turn.count(Counter::NaksReceived, 1);
        Stop::Failed(fault)
    }
}

fn has_room_for_answers(machine: &ResponderMachine) -> bool {
    matches!(machine, ResponderMachine::Rc(machine) if machine.attr().max_dest_rd_atomic > 0)
}
