// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The interface by which the state machines of the services access their QP and its memory.

use std::mem;
use std::time::Instant;

use roce::env::{self, BadReceive, Incident, Output, RemoteFault};
use roce::net::Mac;
use roce::work::{AtomicOp, FlushOp, RecvCompletion, RecvWr, Remote, SendWr, WcReason, WcResult};
use roce::{Frame, Psn};
use virtio_rdma_abi::ib::AccessFlags;

use crate::counters::Counter;
use crate::memory::{Fault, KeyFault};
use crate::qp::{RequesterIo, RequesterTurn, ResponderIo, ResponderTurn};
use crate::wqe::{PostedRecv, PostedSend};

use super::burst::Burst;

/// The environment of a requester: access to the state of its half of the QP.
pub(crate) struct RequesterEnv<'a, 'b> {
    turn: &'a RequesterTurn<'b>,
    io: &'a mut RequesterIo,
    burst: Burst<'a>,
    /// Whether the next packet was sent before.
    is_again: bool,
}

impl<'a, 'b> RequesterEnv<'a, 'b> {
    /// The environment of the requester with `io`.
    pub(crate) fn new(turn: &'a RequesterTurn<'b>, io: &'a mut RequesterIo) -> Self {
        Self {
            burst: Burst::new(turn.qp, turn.hca),
            turn,
            io,
            is_again: false,
        }
    }
}

impl Drop for RequesterEnv<'_, '_> {
    fn drop(&mut self) {
        if let Some(packets) = &mut self.io.packets {
            packets.end_turn();
        }
    }
}

impl Output for RequesterEnv<'_, '_> {
    fn frame(&mut self, to: &Mac, len: usize) -> Option<Frame> {
        // If memory of the VM is lost, the turn ends.
        if self.turn.view.has_lost() || !self.io.admit(self.turn.now, len) {
            return None;
        }
        let RequesterTurn { hca, now, .. } = self.turn;
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
        let is_again = mem::take(&mut self.is_again);
        let RequesterTurn { qp, hca, .. } = self.turn;
        if hca.wants_packets() || self.io.packets.is_some() {
            let packets = self.io.packets.get_or_insert_default();
            packets.send(qp, hca, frame, is_again, &mut self.burst);
        } else {
            self.burst.send(frame);
        }
    }

    fn is_spent(&self) -> bool {
        self.turn.budget.is_spent()
    }

    fn note(&mut self, what: Incident, psn: Psn, number: u32) {
        self.is_again |= matches!(what, Incident::Retransmission);
        self.turn.qp.incident(self.turn.hca, what, psn, number);
    }
}

impl env::RequesterEnv for RequesterEnv<'_, '_> {
    type Send = PostedSend;

    fn gather(&mut self, local: &PostedSend, offset: u32, into: &mut [u8]) -> WcResult {
        self.turn
            .message(&self.io.snapshots, local, AccessFlags::NONE)
            .read(offset.into(), into)
            .map_err(Fault::local)
    }

    fn scatter_read(
        &mut self,
        local: &PostedSend,
        offset: u32,
        from: &[u8],
        last: bool,
    ) -> WcResult {
        self.turn
            .message(&self.io.snapshots, local, AccessFlags::LOCAL_WRITE)
            .write(offset.into(), from, last)
            .map_err(Fault::local)
    }

    fn execute_local(&mut self, local: &PostedSend) -> WcResult {
        self.turn.execute_local(&self.io.snapshots, local)
    }

    fn is_slow(&self) -> bool {
        self.io.pacer.is_some() || self.turn.hca.pacer.has_limits()
    }

    fn may_request(&mut self, packets: u32) -> bool {
        let RequesterTurn { hca, qp, .. } = self.turn;
        let is_next = qp.take_precedence();
        let booked = hca
            .frames
            .book_responses(&mut self.io.load, packets, is_next);
        booked.map_err(|lane| self.io.full = lane).is_ok()
    }

    fn share(&self) -> u64 {
        self.turn.hca.frames.share()
    }

    fn is_crowded(&self) -> bool {
        self.turn.hca.frames.port.is_crowded()
    }

    fn is_active(&self, peer: &Mac, since: Instant) -> bool {
        let hca = self.turn.hca;
        hca.heard.is_after(peer, since) || hca.frames.port.is_waiting(peer)
    }

    fn complete_send(&mut self, wr: SendWr<PostedSend>, result: WcResult) {
        self.turn.complete(self.io, &wr, result);
    }
}

/// The environment of a responder: access to the state of its half of the QP.
pub(crate) struct ResponderEnv<'a, 'b> {
    turn: &'a ResponderTurn<'b>,
    io: &'a mut ResponderIo,
    burst: Burst<'a>,
}

impl<'a, 'b> ResponderEnv<'a, 'b> {
    /// The environment of the responder with `io`.
    pub(crate) fn new(turn: &'a ResponderTurn<'b>, io: &'a mut ResponderIo) -> Self {
        Self {
            burst: Burst::new(turn.qp, turn.hca),
            turn,
            io,
        }
    }
}

impl Output for ResponderEnv<'_, '_> {
    fn frame(&mut self, to: &Mac, len: usize) -> Option<Frame> {
        // If memory of the VM is lost, the turn ends. A device that has failed answers nothing.
        if self.turn.view.has_lost() || self.turn.hca.has_failed() {
            return None;
        }
        let frame = self.burst.frame(to, len);
        frame.map_err(|lane| self.io.full = lane).ok()
    }

    fn ticket(&self, to: &Mac) -> u64 {
        self.burst.ticket(to)
    }

    fn is_waiting(&self, to: &Mac, ticket: u64) -> bool {
        self.turn.hca.frames.port.has(to, ticket)
    }

    fn send(&mut self, frame: Frame) {
        self.turn.budget.charge_frame(frame.len());
        self.burst.send(frame);
    }

    fn is_spent(&self) -> bool {
        self.turn.budget.is_spent()
    }

    fn note(&mut self, what: Incident, psn: Psn, number: u32) {
        self.turn.qp.incident(self.turn.hca, what, psn, number);
    }
}

impl env::ResponderEnv for ResponderEnv<'_, '_> {
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
    ) -> WcResult {
        self.turn
            .message(self.io, local)
            .write(offset.into(), from, last)
            .map_err(Fault::local)
    }

    fn complete_recv(&mut self, wr: RecvWr<PostedRecv>, how: RecvCompletion) {
        self.turn.complete(&wr, &how);
    }

    fn begin(&mut self, rkey: u32, access: AccessFlags) -> Result<(), RemoteFault> {
        let refused = self.turn.qp.refused_on_order(self.turn.hca, rkey, access);
        refused.map_or(Ok(()), Err)
    }

    fn check(&mut self, at: Remote, len: u32, access: AccessFlags) -> Result<(), RemoteFault> {
        let memory = self.turn.memory();
        memory
            .keys
            .check_remote(at.rkey, memory.by, at.va, len.into(), access)
            .map_err(|fault| self.refused(fault.into(), at))
    }

    fn write(&mut self, at: Remote, from: &[u8], last: bool) -> Result<(), RemoteFault> {
        self.turn
            .remote(at, AccessFlags::REMOTE_WRITE)
            .write(0, from, last)
            .map_err(|fault| self.refused(fault, at))
    }

    fn read(&mut self, at: Remote, into: &mut [u8]) -> Result<(), RemoteFault> {
        self.turn
            .remote(at, AccessFlags::REMOTE_READ)
            .read(0, into)
            .map_err(|fault| self.refused(fault, at))
    }

    fn atomic(&mut self, at: Remote, op: AtomicOp) -> Result<u64, RemoteFault> {
        self.turn
            .atomic(at, op)
            .map_err(|fault| self.refused(fault, at))
    }

    fn write_word(&mut self, at: Remote, data: [u8; 8]) -> Result<(), RemoteFault> {
        self.turn
            .write_word(at, data)
            .map_err(|fault| self.refused(fault, at))
    }

    fn flush(&mut self, flush: &FlushOp) -> Result<(), RemoteFault> {
        self.turn
            .place(flush)
            .map_err(|fault| self.refused(fault, flush.remote))
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), WcReason> {
        self.turn.invalidate(rkey).map_err(|KeyFault(reason)| {
            self.refused(Fault::Key(reason), Remote { va: 0, rkey });
            reason
        })
    }
}

impl ResponderEnv<'_, '_> {
    /// Handles a remote operation whose access to memory at `at` failed.
    fn refused(&self, fault: Fault, at: Remote) -> RemoteFault {
        match fault {
            Fault::Key(reason) => {
                self.turn.refused_key(self.io, at, reason);
                RemoteFault::Access
            }
            Fault::Memory => RemoteFault::Operational,
        }
    }
}
