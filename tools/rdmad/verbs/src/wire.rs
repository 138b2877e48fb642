// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The wire path: RoCEv2 packets between the QPs and the frame port.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use dma::DmaView;
use roce::env::{BadReceive, Incident, Output, RemoteFault, RequesterEnv, ResponderEnv};
use roce::net::ip_to_gid;
use roce::opcode::Service;
use roce::ud::{Receiver, Verdict};
use roce::work::{AtomicOp, FlushOp, RecvCompletion, RecvWr, Remote, SendWr};
use roce::{Frame, Packet, QpError};
use virtio_rdma_abi::ib::{AccessFlags, QpType, WcStatus, DEFAULT_PKEY, MULTICAST_QPN};

use crate::counters::Counter;
use crate::memory::Fault;
use crate::qp::{Parts, Qp, RecvSide, RecvTurn, Responder, SendSide, SendTurn};
use crate::wqe::{Posted, Received};
use crate::Device;

/// Frames that are taken in at a time.
const FRAMES_A_TURN: usize = 64;
/// The membership bit of a P_Key: full, not limited.
const FULL_MEMBER: u16 = 0x8000;

/// Takes frames in. Returns whether there may be more.
pub(crate) fn receive(device: &Arc<Device>) -> bool {
    let mut receiver = Receiving {
        device,
        view: device.space.enter(),
        now: device.fabric().clock.now(),
        recent: None,
    };
    let mut left = FRAMES_A_TURN;
    while left > 0 {
        let Some(frame) = device.frames.receive() else {
            return false;
        };
        let copies = match device.link_is_up() {
            true => receiver.frame(&frame),
            false => 0,
        };
        left = left.saturating_sub(copies.max(1));
    }
    true
}

/// A turn at the frames of a device.
struct Receiving<'a> {
    device: &'a Device,
    view: DmaView,
    /// When the turn began.
    now: Instant,
    /// The QP that the last frame was for: often the next one is, too.
    recent: Option<Arc<Qp>>,
}

impl Receiving<'_> {
    /// Takes a frame in. Returns for how many QPs it was.
    fn frame(&mut self, frame: &[u8]) -> usize {
        let device = self.device;
        let packet = match Packet::parse(frame) {
            Ok(packet) => packet,
            Err(error) => {
                tracing::trace!(%error, "frame dropped");
                device.counters.add(Counter::BadPackets, 1);
                return 0;
            }
        };
        device.counters.add(Counter::RxPackets, 1);
        device.counters.add(Counter::RxBytes, frame.len() as u64);
        let to = packet.path.addresses.dst();
        match (packet.transport.bth.dest_qpn, to.is_multicast()) {
            (MULTICAST_QPN, true) => self.frame_of_group(to, &packet),
            (MULTICAST_QPN, false) | (_, true) => 0,
            (qpn, false) => {
                if self.recent.as_ref().is_none_or(|qp| qp.number != qpn) {
                    self.recent = device.qps.get(qpn);
                }
                if let Some(qp) = &self.recent {
                    self.packet_for(qp, &packet);
                }
                1
            }
        }
    }

    /// Gives a datagram to each QP that is attached to a group. Returns how many these are.
    fn frame_of_group(&self, group: IpAddr, packet: &Packet<'_>) -> usize {
        let device = self.device;
        let Some(members) = device.groups.members(&ip_to_gid(group)) else {
            return 0;
        };
        let is_own = packet.path.src_mac == device.mac();
        let source = packet.transport.deth.map(|deth| deth.src_qpn);
        for &qpn in &*members {
            let echo = is_own && source == Some(qpn);
            let Some(qp) = device.qps.get(qpn) else {
                continue;
            };
            if !(echo && qp.blocks_loopback) {
                self.packet_for(&qp, packet);
            }
        }
        members.len()
    }

    fn packet_for(&self, qp: &Qp, packet: &Packet<'_>) {
        if packet.opcode().service != service(qp.qp_type) {
            return;
        }
        if !same_partition(packet.transport.bth.pkey, DEFAULT_PKEY) {
            self.device.violations.pkey.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if packet.opcode().is_response() {
            self.response(qp, packet);
        } else {
            self.request(qp, packet);
        }
    }

    fn response(&self, qp: &Qp, packet: &Packet<'_>) {
        let device = self.device;
        let mut side = qp.lock_send();
        if !qp.awaits_responses() || !side.is_from_peer(&packet.path) {
            return;
        }
        let Some(mut requester) = side.requester.take() else {
            return;
        };
        let turn = SendTurn::at(qp, device, &self.view, self.now);
        let taken = requester.on_packet(packet, self.now, &mut SendEnv::new(&turn, &mut side));
        side.requester = Some(requester);
        if let Err(error) = taken {
            qp.fail(device, error.event);
        }
        device.qp_ready(qp.number);
    }

    fn request(&self, qp: &Qp, packet: &Packet<'_>) {
        let device = self.device;
        let mut side = qp.lock_recv();
        if !qp.receives() {
            return;
        }
        let Some(mut responder) = side.responder.take() else {
            return;
        };
        let turn = RecvTurn::new(qp, device, &self.view);
        let taken = match &mut responder {
            Responder::Ud(receiver) => receive_datagram(&turn, &mut side, receiver, packet),
            connected => receive_connected(&turn, &mut side, connected, packet),
        };
        let answers = responder.has_output();
        side.responder = Some(responder);
        if let Err(error) = taken {
            qp.fail(device, error.event);
        }
        if answers {
            device.qp_ready(qp.number);
        }
    }
}

/// The transport service of QPs of this type.
fn service(qp_type: QpType) -> Service {
    match qp_type {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::Ud | QpType::Gsi | QpType::Smi => Service::Ud,
    }
}

/// Whether these P_Keys let their holders talk: they name one partition, and not both as limited members (IBTA
/// 10.9.1.2, 10.9.3).
fn same_partition(a: u16, b: u16) -> bool {
    (a ^ b) & !FULL_MEMBER == 0 && (a | b) & FULL_MEMBER != 0
}

fn receive_connected(
    turn: &RecvTurn<'_>,
    side: &mut RecvSide,
    responder: &mut Responder,
    packet: &Packet<'_>,
) -> Result<(), QpError> {
    if !side.is_from_peer(&packet.path) {
        return Ok(());
    }
    let executed = match responder {
        // A message that comes without packets is not interrupted by packets.
        Responder::Rc(_) if side.incoming.is_some() => return Ok(()),
        Responder::Rc(responder) => {
            let expected = responder.expected_psn();
            responder
                .on_packet(packet, &mut RecvEnv::new(turn, side))
                .map(|()| responder.expected_psn() != expected)
        }
        Responder::Uc(responder) => responder.on_packet(packet, &mut RecvEnv::new(turn, side)),
        Responder::Ud(_) => return Ok(()),
    };
    if executed? {
        turn.establish(side);
    }
    Ok(())
}

fn receive_datagram(
    turn: &RecvTurn<'_>,
    side: &mut RecvSide,
    receiver: &mut Receiver<Received>,
    packet: &Packet<'_>,
) -> Result<(), QpError> {
    let device = turn.device;
    let (to, tag) = (packet.path.addresses.dst(), packet.path.vlan);
    // A group that the QP is attached to has no entry, and is in all VLANs of the port.
    let ours = match to.is_multicast() {
        true => device.gids.have_vlan(tag),
        false => device.gids.contains(ip_to_gid(to), tag),
    };
    if !ours {
        return Ok(());
    }
    let qkey = side.qkey;
    if receiver.on_packet(packet, qkey, &mut RecvEnv::new(turn, side))? == Verdict::BadQkey {
        device.violations.qkey.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// What a requester sees of its QP.
pub(crate) struct SendEnv<'a, 'b> {
    turn: &'a SendTurn<'b>,
    parts: Parts<'a>,
}

impl<'a, 'b> SendEnv<'a, 'b> {
    /// The send half `side`, whose requester was taken out.
    pub(crate) fn new(turn: &'a SendTurn<'b>, side: &'a mut SendSide) -> Self {
        Self {
            turn,
            parts: side.parts(),
        }
    }
}

impl Output for SendEnv<'_, '_> {
    fn frame(&mut self, len: usize) -> Option<Frame> {
        if !self.parts.admit(self.turn.now, len) {
            return None;
        }
        self.turn.device.frames.frame(len)
    }

    fn send(&mut self, frame: Frame) {
        if let Some(pacer) = &mut self.parts.pacer {
            pacer.spend(frame.len());
            let bytes = frame.len() as u64;
            self.turn.device.counters.add(Counter::PacedBytes, bytes);
        }
        send_frame(self.turn.device, frame);
    }

    fn count(&mut self, what: Incident) {
        self.turn.device.counters.add(what, 1);
    }
}

impl RequesterEnv for SendEnv<'_, '_> {
    type Send = Posted;

    fn gather(&mut self, local: &Posted, offset: u32, into: &mut [u8]) -> Result<(), WcStatus> {
        self.turn
            .message(self.parts.snapshots, local, AccessFlags::NONE)
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
            .message(self.parts.snapshots, local, AccessFlags::LOCAL_WRITE)
            .write(offset.into(), from, last)
            .map_err(|_| WcStatus::LocProtErr)
    }

    fn execute_local(&mut self, local: &Posted) -> Result<(), WcStatus> {
        self.turn.execute_local(self.parts.snapshots, local)
    }

    fn is_slow(&self) -> bool {
        self.parts.pacer.is_some()
    }

    fn complete_send(&mut self, wr: SendWr<Posted>, status: WcStatus) {
        let Parts {
            queue, snapshots, ..
        } = &mut self.parts;
        self.turn.complete(queue, snapshots, &wr, status);
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

    fn count(&mut self, what: Incident) {
        self.turn.device.counters.add(what, 1);
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
    /// Memory refused a remote operation.
    fn refused(&self, fault: Fault) -> RemoteFault {
        match fault {
            Fault::Key => {
                self.turn.device.counters.add(Counter::RkeyViolations, 1);
                RemoteFault::Access
            }
            Fault::Memory => RemoteFault::Operational,
        }
    }
}

/// Sends a frame, unless the link is down.
fn send_frame(device: &Device, frame: Frame) {
    if device.link_is_up() {
        device.counters.add(Counter::TxPackets, 1);
        device.counters.add(Counter::TxBytes, frame.len() as u64);
        device.frames.send(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions() {
        for (a, b, same) in [
            (0xffff, 0xffff, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0xffff, true),
            (0x7fff, 0x7fff, false),
            (0x8001, 0xffff, false),
            (0x8001, 0x0001, true),
            (0x0001, 0x8001, true),
            (0x0001, 0x0001, false),
        ] {
            assert_eq!(same_partition(a, b), same, "{a:#x} and {b:#x}");
        }
    }
}
