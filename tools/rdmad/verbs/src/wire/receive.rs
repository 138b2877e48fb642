// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frames that came: whom they are for, and what is done with them.

use std::iter;
use std::slice;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use arrayvec::ArrayVec;
use dma::DmaView;
use roce::net::ip_to_gid;
use roce::opcode::{Service, CONGESTION_NOTIFICATION};
use roce::packet::PacketError;
use roce::ud::{Receiver, Verdict};
use roce::{Frame, Packet, QpError};
use virtio_rdma_abi::ib::{QpType, DEFAULT_PKEY, MULTICAST_QPN};

use super::{RecvEnv, SendEnv};
use crate::counters::Counter;
use crate::qp::{Qp, RecvSide, RecvTurn, Responder, SendTurn};
use crate::turn::Budget;
use crate::wqe::Received;
use crate::Device;

/// Frames that are looked at together: those for the same half of a QP that follow each other are one run. Between the look at
/// their ICRC and the copy of what they carry a second-level cache has room for so many.
const FRAMES_AT_ONCE: usize = 16;
/// The membership bit of a P_Key: full, not limited.
const FULL_MEMBER: u16 = 0x8000;

/// Takes frames in. Returns whether there may be more.
pub(crate) fn receive(device: &Arc<Device>) -> bool {
    let receiver = Receiving {
        device,
        view: device.space.enter(),
        now: device.fabric().clock.now(),
        budget: Budget::default(),
    };
    let mut more = true;
    while more && !receiver.budget.is_spent() {
        let next = iter::from_fn(|| device.frames.receive());
        let frames: ArrayVec<Frame, FRAMES_AT_ONCE> = next.take(FRAMES_AT_ONCE).collect();
        receiver.frames(&frames);
        more = frames.is_full();
    }
    device.fabric().note_turn(receiver.budget.spent());
    more
}

/// Drops frames that came for a device that has failed. Returns whether there may be more.
pub(crate) fn drop_frames(device: &Device) -> bool {
    let budget = Budget::default();
    while !budget.is_spent() && device.frames.receive().is_some() {
        budget.charge_received();
    }
    device.fabric().note_turn(budget.spent());
    budget.is_spent()
}

/// A turn at the frames of a device.
struct Receiving<'a> {
    device: &'a Device,
    view: DmaView,
    /// When the turn began.
    now: Instant,
    /// What it may still cost.
    budget: Budget,
}

/// A packet that came.
pub(crate) struct Arrived<'f> {
    pub(crate) packet: Packet<'f>,
    /// It may have come through a router: its source MAC address says nothing about the sender.
    pub(crate) is_routed: bool,
}

/// Whom a packet is for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Recipient {
    qpn: u32,
    half: Half,
    is_group: bool,
}

/// A half of a QP.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Requester,
    Responder,
}

impl Recipient {
    fn of(packet: &Packet<'_>) -> Self {
        Self {
            qpn: packet.transport.bth.dest_qpn,
            half: match packet.opcode().is_response() {
                true => Half::Requester,
                false => Half::Responder,
            },
            is_group: packet.path.addresses.dst().is_multicast(),
        }
    }
}

impl Receiving<'_> {
    /// Takes frames in.
    fn frames(&self, frames: &[Frame]) {
        let packets: ArrayVec<Arrived<'_>, FRAMES_AT_ONCE> = frames
            .iter()
            .filter_map(|frame| self.parse(frame))
            .collect();
        for _ in frames {
            self.budget.charge_received();
        }
        let recipient = |arrived: &Arrived<'_>| Recipient::of(&arrived.packet);
        for run in packets.chunk_by(|one, next| recipient(one) == recipient(next)) {
            let to = recipient(&run[0]);
            match (to.qpn, to.is_group) {
                (MULTICAST_QPN, true) => self.run_for_group(run),
                (MULTICAST_QPN, false) | (_, true) => {}
                (qpn, false) => {
                    if let Some(qp) = self.device.qps.get(qpn) {
                        self.run(&qp, to.half, run);
                    }
                }
            }
        }
    }

    /// The packet in a frame, if the link is up and the frame is sound.
    fn parse<'f>(&self, frame: &'f Frame) -> Option<Arrived<'f>> {
        let device = self.device;
        if !device.link_is_up() {
            return None;
        }
        match Packet::parse(frame) {
            Ok(packet) => {
                device.counters.add(Counter::RxPackets, 1);
                device.counters.add(Counter::RxBytes, frame.len() as u64);
                Some(Arrived {
                    packet,
                    is_routed: frame.is_routed(),
                })
            }
            // Nothing is wrong with it, but nothing here slows down for it either.
            Err(PacketError::Opcode(CONGESTION_NOTIFICATION)) => None,
            Err(error) => {
                tracing::trace!(%error, "frame dropped");
                device.counters.add(Counter::BadPackets, 1);
                None
            }
        }
    }

    /// Gives datagrams to each QP that is attached to their group.
    fn run_for_group(&self, packets: &[Arrived<'_>]) {
        let device = self.device;
        for arrived in packets {
            let packet = &arrived.packet;
            let group = ip_to_gid(packet.path.addresses.dst());
            let Some(members) = device.groups.members(&group) else {
                continue;
            };
            let is_own = packet.path.src_mac == device.mac();
            let source = packet.transport.deth.map(|deth| deth.src_qpn);
            for &qpn in &*members {
                self.budget.charge_received();
                let echo = is_own && source == Some(qpn);
                let Some(qp) = device.qps.get(qpn) else {
                    continue;
                };
                if !(echo && qp.blocks_loopback) {
                    self.run(&qp, Half::Responder, slice::from_ref(arrived));
                }
            }
        }
    }

    /// Gives packets to one half of a QP, which is locked once for all of them.
    fn run(&self, qp: &Qp, half: Half, packets: &[Arrived<'_>]) {
        let admitted = packets
            .iter()
            .filter(|arrived| self.admits(qp, &arrived.packet));
        match half {
            Half::Requester => self.responses(qp, admitted),
            Half::Responder => self.requests(qp, admitted),
        }
    }

    /// Whether a packet is of the QP's transport service and partition.
    fn admits(&self, qp: &Qp, packet: &Packet<'_>) -> bool {
        if packet.opcode().service != service(qp.qp_type) {
            return false;
        }
        let is_ours = same_partition(packet.transport.bth.pkey, DEFAULT_PKEY);
        if !is_ours {
            self.device.violations.pkey.fetch_add(1, Ordering::Relaxed);
        }
        is_ours
    }

    fn responses<'f>(&self, qp: &Qp, packets: impl Iterator<Item = &'f Arrived<'f>>) {
        let device = self.device;
        let mut side = qp.lock_send();
        let mut requester = side.requester.take();
        let turn = SendTurn::at(qp, device, &self.view, self.now);
        let mut taken = false;
        for arrived in packets {
            let Some(requester) = &mut requester else {
                continue;
            };
            if !qp.awaits_responses() || !side.is_from_peer(arrived, device) {
                continue;
            }
            let mut env = SendEnv::new(&turn, &mut side);
            if let Err(error) = requester.on_packet(&arrived.packet, self.now, &mut env) {
                qp.fail(device, error.event);
            }
            taken = true;
        }
        self.budget.charge_bytes(turn.budget.spent());
        side.requester = requester;
        if taken {
            device.qp_ready(qp.number);
        }
    }

    fn requests<'f>(&self, qp: &Qp, packets: impl Iterator<Item = &'f Arrived<'f>>) {
        let device = self.device;
        let mut side = qp.lock_recv();
        let mut responder = side.responder.take();
        let turn = RecvTurn::new(qp, device, &self.view);
        for arrived in packets {
            let Some(responder) = &mut responder else {
                continue;
            };
            if !qp.receives() {
                continue;
            }
            let taken = match responder {
                Responder::Ud(receiver) => {
                    receive_datagram(&turn, &mut side, receiver, &arrived.packet)
                }
                connected => receive_connected(&turn, &mut side, connected, arrived),
            };
            if let Err(error) = taken {
                qp.fail(device, error.event);
            }
        }
        let answers = responder.as_ref().is_some_and(Responder::has_output);
        side.responder = responder;
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
    arrived: &Arrived<'_>,
) -> Result<(), QpError> {
    if !side.is_from_peer(arrived, turn.device) {
        return Ok(());
    }
    let packet = &arrived.packet;
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
