// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Handling of received frames: finds the QP of each packet and passes the packet to it.

use std::cell::RefCell;
use std::slice;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use arrayvec::ArrayVec;
use dma::DmaView;
use recorder::Kind;
use roce::frame::{self, Frames, FRAMES_AT_ONCE};
use roce::headers::Body;
use roce::net::ip_to_gid;
use roce::opcode::Service;
use roce::ud::Verdict;
use roce::{Frame, Packet, QpError};
use scheduler::TurnEnd;
use virtio_rdma_abi::ib::{QpType, DEFAULT_PKEY, MULTICAST_QPN};
use virtio_rdma_abi::number::Qpn;

use super::backlog::{Backlog, GroupDelivery};
use super::{Arrived, RequesterEnv, ResponderEnv};
use crate::counters::Counter;
use crate::qp::{Qp, RequesterTurn, Responder, ResponderMachine, ResponderTurn};
use crate::turn::{done, TurnBudget};
use crate::Hca;

/// The bit of a P_Key that is set for full members and clear for limited members.
const FULL_MEMBER: u16 = 0x8000;

/// Handles received frames, as a turn of the port.
pub(crate) fn receive(hca: &Arc<Hca>, budget: &TurnBudget<'_>) -> TurnEnd {
    let view = hca.space.enter();
    let Backlog { mut frames, group } = hca.frames.arrivals.backlog.take();
    let receiver = Receiving {
        hca,
        view: &view,
        budget,
        group: RefCell::new(group),
    };
    let mut seen = frames.len();
    let mut more = true;
    while !receiver.is_over() && (more || !frames.is_empty()) {
        if more && !frames.is_full() {
            hca.frames.port.receive(FRAMES_AT_ONCE, &mut frames);
            more = frames.is_full();
        }
        let done = receiver.frames(&frames, seen);
        discard(&mut frames, done);
        seen = frames.len();
    }
    let group = receiver.group.into_inner();
    let cost = budget.cost();
    hca.runtime().note_turn(budget.spent());
    let again = hca.frames.arrivals.backlog.put(Backlog { frames, group }) || more;
    TurnEnd { again, cost }
}

/// Drops received frames of an HCA that has failed. Returns whether there may be more frames.
pub(crate) fn drop_frames(hca: &Hca) -> bool {
    drop(hca.frames.arrivals.backlog.take());
    let budget = hca.turn_budget();
    let mut frames = Frames::new();
    while !budget.is_spent() {
        hca.frames.port.receive(FRAMES_AT_ONCE, &mut frames);
        if frames.is_empty() {
            break;
        }
        frames.iter().for_each(|_| budget.charge_received());
        let count = frames.len();
        discard(&mut frames, count);
    }
    hca.runtime().note_turn(budget.spent());
    budget.is_spent()
}

/// Returns the buffers of the first `count` frames, which the turn has handled.
fn discard(frames: &mut Frames, count: usize) {
    done::received(count);
    frame::discard(frames, count);
}

/// A turn that handles received frames.
struct Receiving<'a> {
    hca: &'a Hca,
    view: &'a DmaView,
    /// Remaining budget of the turn.
    budget: &'a TurnBudget<'a>,
    /// The members of a group that have yet to receive the next datagram.
    group: RefCell<Option<GroupDelivery>>,
}

/// The destination of a packet within the HCA.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recipient {
    /// The requester of a QP.
    Requester(Qpn),
    /// The responder of a QP.
    Responder(Qpn),
    /// The QPs that are attached to the packet's multicast group.
    Group,
    /// No QP: the packet is invalid. It has a group's address and the QPN of a single QP, or a
    /// host's address and the multicast QPN.
    Nobody,
}

impl Recipient {
    fn of(packet: &Packet<'_>) -> Self {
        let qpn = packet.headers.bth.dest_qpn;
        if packet.path.addresses.dst().is_multicast() {
            return if qpn == MULTICAST_QPN {
                Self::Group
            } else {
                Self::Nobody
            };
        }
        match packet.headers.body {
            _ if qpn == MULTICAST_QPN => Self::Nobody,
            Body::Response(_) => Self::Requester(qpn),
            Body::Request(_) | Body::Uc(_) | Body::Ud { .. } => Self::Responder(qpn),
        }
    }
}

impl Receiving<'_> {
    /// Whether the turn must end: its budget is spent, or memory of the VM is lost.
    fn is_over(&self) -> bool {
        self.budget.is_spent() || self.view.has_lost()
    }

    /// Handles frames, as far as the budget permits, and returns the number of frames handled. The
    /// first `seen` frames were passed to an earlier call, which has counted them.
    fn frames(&self, frames: &[Frame], seen: usize) -> usize {
        let mut places = ArrayVec::<usize, FRAMES_AT_ONCE>::new();
        let mut packets = ArrayVec::<Arrived<'_>, FRAMES_AT_ONCE>::new();
        let mut heard = None;
        for (place, frame) in frames.iter().enumerate() {
            match self.parse(frame, place < seen) {
                Some(packet) => {
                    let peer = packet.packet.path.src_mac;
                    if heard.replace(peer) != Some(peer) {
                        self.hca.heard.note(&peer, self.budget.start());
                    }
                    places.push(place);
                    packets.push(packet);
                }
                None => self.budget.charge_received(),
            }
        }
        let mut left = &packets[..];
        while let Some(first) = left.first().filter(|_| !self.is_over()) {
            let to = Recipient::of(&first.packet);
            let follow = |arrived: &&Arrived<'_>| Recipient::of(&arrived.packet) == to;
            let run = &left[..left.iter().take_while(follow).count()];
            let taken = match to {
                Recipient::Requester(qpn) => match self.hca.objects.qps.get(qpn) {
                    Some(qp) => self.responses(&qp, run),
                    None => self.ignore(run),
                },
                Recipient::Responder(qpn) => match self.hca.objects.qps.get(qpn) {
                    Some(qp) => self.requests(&qp, run),
                    None => self.ignore(run),
                },
                Recipient::Group => self.datagram_for_group(first),
                Recipient::Nobody => self.ignore(run),
            };
            left = &left[taken..];
        }
        places
            .get(packets.len() - left.len())
            .map_or(frames.len(), |&place| place)
    }

    /// Drops packets that have no recipient, but charges them to the turn. Returns their number.
    fn ignore(&self, packets: &[Arrived<'_>]) -> usize {
        if let Some(first) = packets.first() {
            let bth = &first.packet.headers.bth;
            self.hca.note_packet(Kind::NoQp, bth.dest_qpn, bth.psn);
        }
        packets.iter().for_each(|_| self.budget.charge_received());
        self.count(None, packets);
        packets.len()
    }

    /// Counts packets for the QP that they name, or for the port if they name none.
    fn count(&self, qp: Option<&Qp>, packets: &[Arrived<'_>]) {
        let bytes = packets.iter().map(|arrived| arrived.len as u64).sum();
        let values = [
            (Counter::RxPackets, packets.len() as u64),
            (Counter::RxBytes, bytes),
        ];
        for (counter, value) in values {
            match qp {
                Some(qp) => qp.count(self.hca, counter, value),
                None => self.hca.counters.add(counter, value),
            }
        }
    }

    /// Parses the packet in a frame. Returns `None` if the link is down or the frame is invalid.
    /// Counts an invalid frame unless it was counted before (`seen`).
    fn parse<'f>(&self, frame: &'f Frame, seen: bool) -> Option<Arrived<'f>> {
        let hca = self.hca;
        if !hca.link_is_up() {
            return None;
        }
        match Packet::parse_frame(frame) {
            Ok(packet) => Some(Arrived {
                len: packet.frame_size(),
                packet,
                is_routed: frame.is_routed(),
            }),
            Err(error) => {
                tracing::trace!(%error, "frame dropped");
                if !seen {
                    hca.counters.add(Counter::BadPackets, 1);
                    hca.note(Kind::BadFrame, frame.len() as u32, 0);
                }
                None
            }
        }
    }

    /// Delivers a datagram to the QPs that are attached to its group, as far as the budget permits.
    /// Returns the number of packets handled: 1, or 0 if members are left for the next turn.
    fn datagram_for_group(&self, arrived: &Arrived<'_>) -> usize {
        let hca = self.hca;
        let packet = &arrived.packet;
        let group = ip_to_gid(packet.path.addresses.dst());
        let members = hca.objects.groups.members(&group).unwrap_or_default();
        let mut delivery = match self.group.take() {
            Some(begun) => begun.among(members),
            None => {
                self.budget.charge_received();
                self.count(None, slice::from_ref(arrived));
                GroupDelivery::new(members)
            }
        };
        let is_own = packet.path.src_mac == hca.mac();
        let source = match packet.headers.body {
            Body::Ud { deth, .. } => Some(deth.src_qpn),
            Body::Request(_) | Body::Response(_) | Body::Uc(_) => None,
        };
        while let Some(qpn) = delivery.next() {
            let _ = self.budget.charge_work_request();
            self.budget.charge_bytes(packet.payload.len());
            let echo = is_own && source == Some(qpn);
            let Some(qp) = hca.objects.qps.get(qpn) else {
                continue;
            };
            if !(echo && qp.init.blocks_loopback) {
                self.take_requests(&qp, slice::from_ref(arrived), || {});
            }
            if self.is_over() && !delivery.is_over() {
                self.group.replace(Some(delivery));
                return 0;
            }
        }
        1
    }

    /// Whether a packet has the QP's transport service and partition.
    fn admits(&self, qp: &Qp, packet: &Packet<'_>) -> bool {
        let bth = &packet.headers.bth;
        let is_ours = same_partition(bth.pkey, DEFAULT_PKEY);
        let fits = packet.headers.body.service() == service(qp.init.qp_type);
        if fits && !is_ours {
            self.hca.violations.pkey.fetch_add(1, Ordering::Relaxed);
        }
        if !fits || !is_ours {
            qp.note(self.hca, Kind::Mismatched, bth.psn.value(), bth.pkey.into());
        }
        fits && is_ours
    }

    /// Passes packets to the requester of a QP, as far as the budget permits. Returns the number of
    /// packets handled.
    fn responses(&self, qp: &Qp, packets: &[Arrived<'_>]) -> usize {
        let hca = self.hca;
        let requester = &mut *qp.lock_requester();
        let turn = RequesterTurn::new(qp, hca, self.view, self.budget);
        let mut served = false;
        let mut taken = 0;
        for arrived in packets {
            // Checked before each packet, since a packet may complete many work requests.
            if self.is_over() {
                break;
            }
            taken += 1;
            done::delivery();
            self.budget.charge_received();
            self.count(Some(qp), slice::from_ref(arrived));
            if !self.admits(qp, &arrived.packet) {
                continue;
            }
            if !qp.awaits_responses() {
                qp.note_unreceived(hca, &arrived.packet);
                continue;
            }
            if !requester.is_from_peer(arrived, hca) {
                let psn = arrived.packet.headers.bth.psn.value();
                qp.note(hca, Kind::NotPeer, psn, 0);
                continue;
            }
            let Some(machine) = &mut requester.machine else {
                continue;
            };
            let mut env = RequesterEnv::new(&turn, &mut requester.io);
            if let Err(error) = machine.on_packet(&arrived.packet, turn.now, &mut env) {
                qp.fail(hca, error.event);
            }
            served = true;
        }
        if served {
            requester.update_load(hca, turn.now);
            hca.qp_ready(qp.number);
        }
        taken
    }

    /// Passes packets to the responder of a QP, as far as the budget permits. Returns the number of
    /// packets handled.
    fn requests(&self, qp: &Qp, packets: &[Arrived<'_>]) -> usize {
        let taken = self.take_requests(qp, packets, || self.budget.charge_received());
        self.count(Some(qp), &packets[..taken]);
        taken
    }

    /// Passes packets to the responder of a QP, as far as the budget permits, but at least one.
    /// `charge` charges a packet. Returns the number of packets handled.
    fn take_requests(&self, qp: &Qp, packets: &[Arrived<'_>], charge: impl Fn()) -> usize {
        let hca = self.hca;
        let responder = &mut *qp.lock_responder();
        let turn = ResponderTurn::new(qp, hca, self.view, self.budget);
        let mut handled = 0;
        for arrived in packets {
            // Checked before each packet, since its bytes may go to many pieces of memory.
            if handled > 0 && self.is_over() {
                break;
            }
            handled += 1;
            charge();
            done::delivery();
            if !self.admits(qp, &arrived.packet) {
                continue;
            }
            if !qp.receives() {
                qp.note_unreceived(hca, &arrived.packet);
                continue;
            }
            let taken = match responder.machine {
                Some(ResponderMachine::Rc(_) | ResponderMachine::Uc(_)) => {
                    receive_connected(&turn, responder, arrived, self.budget.start())
                }
                Some(ResponderMachine::Ud(_)) => {
                    receive_datagram(&turn, responder, &arrived.packet)
                }
                None => Ok(()),
            };
            if let Err(error) = taken {
                qp.fail(hca, error.event);
            }
        }
        let answers = responder
            .machine
            .as_ref()
            .is_some_and(ResponderMachine::has_output);
        if answers {
            hca.qp_ready(qp.number);
        }
        handled
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

/// Whether two P_Keys permit communication: they have the same partition, and at least one is a
/// full member's (IBTA 10.9.1.2, 10.9.3).
fn same_partition(a: u16, b: u16) -> bool {
    (a ^ b) & !FULL_MEMBER == 0 && (a | b) & FULL_MEMBER != 0
}

fn receive_connected(
    turn: &ResponderTurn<'_>,
    responder: &mut Responder,
    arrived: &Arrived<'_>,
    now: Instant,
) -> Result<(), QpError> {
    let packet = &arrived.packet;
    if !responder.is_from_peer(arrived, turn.hca) {
        let psn = packet.headers.bth.psn.value();
        turn.qp.note(turn.hca, Kind::NotPeer, psn, 0);
        return Ok(());
    }
    let Responder { io, machine, .. } = responder;
    let executed = match machine {
        // A message is in progress on the direct path: packets must not change its receive.
        Some(ResponderMachine::Rc(_)) if io.incoming.is_some() => return Ok(()),
        Some(ResponderMachine::Rc(machine)) => {
            let expected = machine.expected_psn();
            machine
                .on_packet(packet, now, &mut ResponderEnv::new(turn, io))
                .map(|()| machine.expected_psn() != expected)
        }
        Some(ResponderMachine::Uc(machine)) => {
            machine.on_packet(packet, &mut ResponderEnv::new(turn, io))
        }
        Some(ResponderMachine::Ud(_)) | None => return Ok(()),
    };
    if executed? {
        turn.establish(responder);
    }
    Ok(())
}

fn receive_datagram(
    turn: &ResponderTurn<'_>,
    responder: &mut Responder,
    packet: &Packet<'_>,
) -> Result<(), QpError> {
    let Some(ResponderMachine::Ud(receiver)) = &mut responder.machine else {
        return Ok(());
    };
    let hca = turn.hca;
    let (to, tag) = (packet.path.addresses.dst(), packet.path.vlan);
    // A multicast GID has no entry in the GID table. It is valid in all VLANs of the port.
    let ours = if to.is_multicast() {
        hca.objects.gids.have_vlan(tag)
    } else {
        hca.objects.gids.contains(ip_to_gid(to), tag)
    };
    if !ours {
        return Ok(());
    }
    let mut env = ResponderEnv::new(turn, &mut responder.io);
    if receiver.on_packet(packet, responder.qkey, &mut env)? == Verdict::BadQkey {
        hca.violations.qkey.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // abi: R-791
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
