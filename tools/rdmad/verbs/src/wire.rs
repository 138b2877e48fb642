// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The wire path: RoCEv2 packets between the QPs and the frame port.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use roce::env::{BadReceive, Output, RemoteFault, RequesterEnv, ResponderEnv};
use roce::work::{AtomicOp, RecvCompletion, RecvWr, Remote, SendWr};
use roce::{Frame, Packet};
use virtio_rdma_abi::ib::{AccessFlags, WcStatus, DEFAULT_PKEY};
use virtio_rdma_ring::DeviceQueue;

use crate::memory::Fault;
use crate::qp::{RecvSide, RecvTurn, SendSide, SendTurn};
use crate::wqe::{Posted, Received, Snapshots};
use crate::Device;

/// Frames that are taken in at a time.
const FRAMES_A_TURN: usize = 64;
/// The P_Key without its membership bit.
const PKEY_MASK: u16 = 0x7fff;

/// Takes frames in. Returns whether there may be more.
pub(crate) fn receive(device: &Arc<Device>) -> bool {
    for _ in 0..FRAMES_A_TURN {
        let Some(frame) = device.frames.receive() else {
            return false;
        };
        if device.link_is_up() {
            receive_frame(device, &frame);
        }
    }
    true
}

fn receive_frame(device: &Device, frame: &[u8]) {
    let packet = match Packet::parse(frame) {
        Ok(packet) => packet,
        Err(error) => {
            tracing::trace!(%error, "frame dropped");
            return;
        }
    };
    let bth = &packet.transport.bth;
    let Some(qp) = device.qps.get(bth.dest_qpn) else {
        return;
    };
    if bth.pkey & PKEY_MASK != DEFAULT_PKEY & PKEY_MASK {
        device.bad_pkeys.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let view = device.space.enter();
    if packet.opcode().is_response() {
        let mut side = qp.lock_send();
        if !qp.awaits_responses() || !side.is_from_peer(&packet.path.addresses) {
            return;
        }
        let Some(mut requester) = side.requester.take() else {
            return;
        };
        let turn = SendTurn::new(&qp, device, &view);
        let taken =
            requester.on_packet(&packet, Instant::now(), &mut SendEnv::new(&turn, &mut side));
        side.requester = Some(requester);
        if let Err(error) = taken {
            qp.fail(device, error.event);
        }
    } else {
        let mut side = qp.lock_recv();
        // A message that comes without packets is not interrupted by packets.
        if !qp.receives() || !side.is_from_peer(&packet.path.addresses) || side.incoming.is_some() {
            return;
        }
        let Some(mut responder) = side.responder.take() else {
            return;
        };
        let turn = RecvTurn::new(&qp, device, &view);
        let expected = responder.expected_psn();
        let taken = responder.on_packet(&packet, &mut RecvEnv::new(&turn, &mut side));
        if responder.expected_psn() != expected {
            turn.establish(&mut side);
        }
        side.responder = Some(responder);
        if let Err(error) = taken {
            qp.fail(device, error.event);
        }
    }
    device.qp_ready(qp.number);
}

/// What a requester sees of its QP.
pub(crate) struct SendEnv<'a, 'b> {
    turn: &'a SendTurn<'b>,
    queue: &'a mut DeviceQueue,
    snapshots: &'a mut Snapshots,
}

impl<'a, 'b> SendEnv<'a, 'b> {
    /// The send half `side`, whose requester was taken out.
    pub(crate) fn new(turn: &'a SendTurn<'b>, side: &'a mut SendSide) -> Self {
        let (queue, snapshots) = side.queues();
        Self {
            turn,
            queue,
            snapshots,
        }
    }
}

impl Output for SendEnv<'_, '_> {
    fn frame(&mut self, len: usize) -> Option<Frame> {
        self.turn.device.frames.frame(len)
    }

    fn send(&mut self, frame: Frame) {
        send_frame(self.turn.device, frame);
    }
}

impl RequesterEnv for SendEnv<'_, '_> {
    type Send = Posted;

    fn gather(&mut self, local: &Posted, offset: u32, into: &mut [u8]) -> Result<(), WcStatus> {
        self.turn
            .message(self.snapshots, local, AccessFlags::NONE)
            .read(offset.into(), into)
            .map_err(|_| WcStatus::LocProtErr)
    }

    fn scatter_read(
        &mut self,
        local: &Posted,
        offset: u32,
        from: &[u8],
        last: bool,
    ) -> Result<(), WcStatus> {
        self.turn
            .message(self.snapshots, local, AccessFlags::LOCAL_WRITE)
            .write(offset.into(), from, last)
            .map_err(|_| WcStatus::LocProtErr)
    }

    fn execute_local(&mut self, _: &Posted) -> Result<(), WcStatus> {
        // No WQE becomes such a work request.
        Err(WcStatus::LocQpOpErr)
    }

    fn complete_send(&mut self, wr: SendWr<Posted>, status: WcStatus) {
        self.turn.complete(self.queue, self.snapshots, &wr, status);
    }
}

/// What a responder sees of its QP.
pub(crate) struct RecvEnv<'a, 'b> {
    turn: &'a RecvTurn<'b>,
    side: &'a mut RecvSide,
}

impl<'a, 'b> RecvEnv<'a, 'b> {
    /// The receive half `side`, whose responder was taken out.
    pub(crate) fn new(turn: &'a RecvTurn<'b>, side: &'a mut RecvSide) -> Self {
        Self { turn, side }
    }
}

impl Output for RecvEnv<'_, '_> {
    fn frame(&mut self, len: usize) -> Option<Frame> {
        self.turn.device.frames.frame(len)
    }

    fn send(&mut self, frame: Frame) {
        send_frame(self.turn.device, frame);
    }
}

impl ResponderEnv for RecvEnv<'_, '_> {
    type Recv = Received;

    fn take_receive(&mut self) -> Result<Option<RecvWr<Received>>, BadReceive> {
        self.turn.take(self.side)
    }

    fn scatter_recv(
        &mut self,
        local: &Received,
        offset: u32,
        from: &[u8],
        last: bool,
    ) -> Result<(), WcStatus> {
        self.turn
            .message(self.side, local)
            .write(offset.into(), from, last)
            .map_err(|_| WcStatus::LocProtErr)
    }

    fn complete_recv(&mut self, wr: RecvWr<Received>, how: RecvCompletion) {
        self.turn.complete(&wr, &how);
    }

    fn check(&mut self, at: Remote, len: u32, access: AccessFlags) -> Result<(), RemoteFault> {
        let memory = self.turn.memory();
        memory
            .mrs
            .check(at.rkey, memory.pdn, at.va, len.into(), access)
            .map_err(|_| RemoteFault::Access)
    }

    fn write(&mut self, at: Remote, from: &[u8], last: bool) -> Result<(), RemoteFault> {
        self.turn
            .remote(at, AccessFlags::REMOTE_WRITE)
            .write(0, from, last)
            .map_err(remote_fault)
    }

    fn read(&mut self, at: Remote, into: &mut [u8]) -> Result<(), RemoteFault> {
        self.turn
            .remote(at, AccessFlags::REMOTE_READ)
            .read(0, into)
            .map_err(remote_fault)
    }

    fn atomic(&mut self, _: Remote, _: AtomicOp) -> Result<u64, RemoteFault> {
        // The device offers no atomic operations.
        Err(RemoteFault::Access)
    }

    fn invalidate(&mut self, _: u32) -> Result<(), RemoteFault> {
        // No key can be invalidated.
        Err(RemoteFault::Access)
    }
}

fn remote_fault(fault: Fault) -> RemoteFault {
    match fault {
        Fault::Key => RemoteFault::Access,
        Fault::Memory => RemoteFault::Operational,
    }
}

/// Sends a frame, unless the link is down.
fn send_frame(device: &Device, frame: Frame) {
    if device.link_is_up() {
        device.frames.send(frame);
    }
}
