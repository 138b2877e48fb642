// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The interface by which the protocol machines access their QP and its memory.

use std::time::Instant;

use roce::env::{BadReceive, Incident, Output, RemoteFault, RequesterEnv, ResponderEnv};
use roce::net::Mac;
use roce::work::{AtomicOp, FlushOp, RecvCompletion, RecvWr, Remote, SendWr};
use roce::Frame;
use virtio_rdma_abi::ib::{AccessFlags, WcStatus};

use crate::counters::Counter;
use crate::memory::Fault;
use crate::qp::{RecvIo, RecvTurn, SendIo, SendTurn};
use crate::wqe::{PostedRecv, PostedSend};

use super::burst::Burst;

/// The environment of a requester: access to the send side of its QP.
pub(crate) struct SendEnv<'a, 'b> {
    turn: &'a SendTurn<'b>,
    io: &'a mut SendIo,
    burst: Burst<'a>,
}

impl<'a, 'b> SendEnv<'a, 'b> {
    /// The environment of the requester whose send side has `io`.
    pub(crate) fn new(turn: &'a SendTurn<'b>, io: &'a mut SendIo) -> Self {
        Self {
            burst: Burst::new(turn.qp, turn.hca),
            turn,
            io,
        }
    }
}

impl Output for SendEnv<'_, '_> {
    fn frame(&mut self, to: &Mac, len: usize) -> Option<Frame> {
        // If memory of the VM is lost, the turn ends.
        if self.turn.view.has_lost() || !self.io.admit(self.turn.now, len) {
            return None;
        }
        let SendTurn { hca, now, .. } = self.turn;
        let taken = hca.pacer.take_bytes(*now, &mut self.io.port, len, len);
        self.io.passes(taken)?;
        match self.burst.frame(to, len) {
            Ok(frame) => Some(frame),
            Err(lane) => {
                hca.pacer.give_bytes_back(&mut self.io.port, len);
                self.io.full = lane;
                None
            }
        }
    }

    fn send(&mut self, frame: Frame) {
        if let Some(pacer) = &mut self.io.pacer {
            pacer.spend(frame.len());
            let bytes = frame.len() as u64;
            self.turn.count(Counter::PacedBytes, bytes);
        }
        self.turn.budget.charge_frame(frame.len());
        self.burst.send(frame);
    }

    fn is_spent(&self) -> bool {
        self.turn.budget.is_spent()
    }

    fn count(&mut self, what: Incident) {
        self.turn.count(what, 1);
    }
}

impl RequesterEnv for SendEnv<'_, '_> {
    type Send = PostedSend;

    fn gather(&mut self, local: &PostedSend, offset: u32, into: &mut [u8]) -> Result<(), WcStatus> {
        self.turn
            .message(&self.io.snapshots, local, AccessFlags::NONE)
            .read(offset.into(), into)
            .map_err(|_| WcStatus::LocProtErr)
    }

    fn scatter_read(
        &mut self,
        local: &PostedSend,
        offset: u32,
        from: &[u8],
        last: bool,
    ) -> Result<(), WcStatus> {
        self.turn
            .message(&self.io.snapshots, local, AccessFlags::LOCAL_WRITE)
            .write(offset.into(), from, last)
            .map_err(|_| WcStatus::LocProtErr)
    }

    fn execute_local(&mut self, local: &PostedSend) -> Result<(), WcStatus> {
        self.turn.execute_local(&self.io.snapshots, local)
    }

    fn is_slow(&self) -> bool {
        self.io.pacer.is_some() || self.turn.hca.pacer.has_limits()
    }

    fn may_request(&mut self, packets: u32) -> bool {
        let SendTurn { hca, qp, .. } = self.turn;
        let booked = hca.book_responses(qp, &mut self.io.load, packets);
        booked.map_err(|lane| self.io.full = lane).is_ok()
    }

    fn share(&self) -> u64 {
        self.turn.hca.share()
    }

    fn is_crowded(&self) -> bool {
        self.turn.hca.frames.is_crowded()
    }

    fn is_active(&self, peer: &Mac, since: Instant) -> bool {
        let hca = self.turn.hca;
        hca.heard.is_after(peer, since) || hca.frames.is_waiting(peer)
    }

    fn complete_send(&mut self, wr: SendWr<PostedSend>, status: WcStatus) {
        self.turn.complete(self.io, &wr, status);
    }
}

/// The environment of a responder: access to the receive side of its QP.
pub(crate) struct RecvEnv<'a, 'b> {
    turn: &'a RecvTurn<'b>,
    io: &'a mut RecvIo,
    burst: Burst<'a>,
}

impl<'a, 'b> RecvEnv<'a, 'b> {
    /// The environment of the responder whose receive side has `io`.
    pub(crate) fn new(turn: &'a RecvTurn<'b>, io: &'a mut RecvIo) -> Self {
        Self {
            burst: Burst::new(turn.qp, turn.hca),
            turn,
            io,
        }
    }
}

impl Output for RecvEnv<'_, '_> {
    fn frame(&mut self, to: &Mac, len: usize) -> Option<Frame> {
        // If memory of the VM is lost, the turn ends.
        if self.turn.view.has_lost() {
            return None;
        }
        let frame = self.burst.frame(to, len);
        frame.map_err(|lane| self.io.full = lane).ok()
    }

    fn ticket(&self, to: &Mac) -> u64 {
        self.burst.ticket(to)
    }

    fn is_waiting(&self, to: &Mac, ticket: u64) -> bool {
        self.turn.hca.frames.has(to, ticket)
    }

    fn send(&mut self, frame: Frame) {
        self.turn.budget.charge_frame(frame.len());
        self.burst.send(frame);
    }

    fn is_spent(&self) -> bool {
        self.turn.budget.is_spent()
    }

    fn count(&mut self, what: Incident) {
        self.turn.count(what, 1);
    }
}

impl ResponderEnv for RecvEnv<'_, '_> {
    type Recv = PostedRecv;

    fn take_receive(&mut self) -> Result<Option<RecvWr<PostedRecv>>, BadReceive> {
        self.turn.take(self.io)
    }

    fn scatter_recv(
        &mut self,
        local: &PostedRecv,
        offset: u32,
        from: &[u8],
        last: bool,
    ) -> Result<(), WcStatus> {
        self.turn
            .message(self.io, local)
            .write(offset.into(), from, last)
            .map_err(|_| WcStatus::LocProtErr)
    }

    fn complete_recv(&mut self, wr: RecvWr<PostedRecv>, how: RecvCompletion) {
        self.turn.complete(&wr, &how);
    }

    fn check(&mut self, at: Remote, len: u32, access: AccessFlags) -> Result<(), RemoteFault> {
        let memory = self.turn.memory();
        memory
            .keys
            .check_remote(at.rkey, memory.by, at.va, len.into(), access)
            .map_err(|_| self.refused(Fault::Key))
    }

    fn write(&mut self, at: Remote, from: &[u8], last: bool) -> Result<(), RemoteFault> {
        self.turn
            .remote(at, AccessFlags::REMOTE_WRITE)
            .write(0, from, last)
            .map_err(|fault| self.refused(fault))
    }

    fn read(&mut self, at: Remote, into: &mut [u8]) -> Result<(), RemoteFault> {
        self.turn
            .remote(at, AccessFlags::REMOTE_READ)
            .read(0, into)
            .map_err(|fault| self.refused(fault))
    }

    fn atomic(&mut self, at: Remote, op: AtomicOp) -> Result<u64, RemoteFault> {
        self.turn
            .atomic(at, op)
            .map_err(|fault| self.refused(fault))
    }

    fn write_word(&mut self, at: Remote, data: [u8; 8]) -> Result<(), RemoteFault> {
        self.turn
            .write_word(at, data)
            .map_err(|fault| self.refused(fault))
    }

    fn flush(&mut self, flush: &FlushOp) -> Result<(), RemoteFault> {
        self.turn.place(flush).map_err(|fault| self.refused(fault))
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), RemoteFault> {
        self.turn
            .invalidate(rkey)
            .map_err(|_| self.refused(Fault::Key))
    }
}

impl RecvEnv<'_, '_> {
    /// Handles a remote operation whose access to memory failed.
    fn refused(&self, fault: Fault) -> RemoteFault {
        match fault {
            Fault::Key => {
                self.turn.refused_key(self.io);
                RemoteFault::Access
            }
            Fault::Memory => RemoteFault::Operational,
        }
    }
}
