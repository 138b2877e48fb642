// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One step of a transfer: what a requester's packets would do to the responder, done at once.

use roce::env::BadReceive;
use roce::work::{RecvCompletion, Remote, SendWr, With};
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, WcStatus};

use super::Stop;
use crate::memory::{transfer, Fault, Side};
use crate::qp::{solicits, RecvSide, RecvTurn, SendSide, SendTurn};
use crate::wqe::Posted;

/// One step with both sides at hand.
pub(super) struct Exchange<'a, 'b> {
    pub wr: &'a SendWr<Posted>,
    pub offset: u32,
    pub len: usize,
    /// The step ends the message.
    pub last: bool,
    pub turn: &'a SendTurn<'b>,
    pub side: &'a mut SendSide,
    pub target: &'a RecvTurn<'b>,
    pub recv: &'a mut RecvSide,
}

impl Exchange<'_, '_> {
    /// SEND.
    pub(super) fn send(&mut self, with: With) -> Result<(), Stop> {
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
            with,
            solicited: solicits(self.wr),
            source: None,
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

    /// RDMA WRITE.
    pub(super) fn write(&mut self, remote: Remote, imm: Option<[u8; 4]>) -> Result<(), Stop> {
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
                with: imm.map_or(With::Nothing, With::Imm),
                solicited: solicits(self.wr),
                source: None,
            };
            self.target.complete(&incoming, &completion);
        }
        match moved {
            Err(Side::Target(fault)) => Err(self.refuse_access(fault)),
            _ => Ok(()),
        }
    }

    /// RDMA READ.
    pub(super) fn read(&mut self, remote: Remote) -> Result<(), Stop> {
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
