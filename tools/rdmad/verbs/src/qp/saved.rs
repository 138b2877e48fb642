// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Saved state of a QP: the part of its halves that must outlive the serving process.
//!
//! The saved state of each half is one plain structure. The remaining state of the half is
//! derived from that structure, from the commands (attributes, connection, shape of the rate limit)
//! and from the rings: WQEs that are not complete are read again. No code hands a QP over to
//! another process yet. Tests drop and recreate both halves after each turn, so a field that is
//! missing from the structures is noticed.
//!
//! Queues of virtqueue mode can't be handed over: their indices are in memory that the driver may
//! write.

use std::mem;

use budget::ChargedList;
use dma::DmaView;
use roce::saved::Epoch;
use roce::work::RecvWr;
use roce::{rc, uc, ud};
use virtio_rdma_abi::ib::WcStatus;
use virtio_rdma_abi::wqe::rq_wqe_size;
use virtio_rdma_ring::DevicePositions;

use super::send::{Pacer, PacerState};
use super::{attr, Qp, RecvSide, Requester, Responder, SendSide, SendTurn};
use crate::direct::{Transfer, TransferState};
use crate::memory::WorkConsumer;
use crate::wqe::{Fetched, PostedRecv, RecvOrigin};
use crate::Device;

/// Bytes of the longest receive WQE.
const RECV_WQE: usize = rq_wqe_size(32);

/// The saved state of a send half.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SendState {
    queue: DevicePositions,
    machine: SendMachine,
    under_way: UnderWay,
    /// State of the QP's rate limit.
    pacer: Pacing,
    /// 1 if the ring is corrupt.
    broken: u8,
    /// 1 if the SQ has drained since the QP went to SQD.
    drained: u8,
}

/// State of the protocol machine that sends.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendMachine {
    None,
    Rc(rc::RequesterState),
    Uc(uc::RequesterState),
    /// PSN of the next datagram.
    Ud(u32),
}

/// The work request in progress, if no protocol machine holds it. The QP then has no other
/// incomplete work request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnderWay {
    Nothing,
    Transfer(TransferState),
    /// A datagram that waits for room in the frame port or for a rate limit. The field is the
    /// status with which the datagram will fail, or 0.
    Blocked(u8),
}

/// State of the QP's rate limit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pacing {
    Nothing,
    Limited(PacerState),
}

/// The saved state of a receive half.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecvState {
    queue: DevicePositions,
    receive: ReceiveState,
    machine: RecvMachine,
    /// Number of R_Key violations by the peer.
    violations: u32,
    /// 1 if COMM_EST was raised or must not be raised any more.
    established: u8,
    /// 1 if QP_LAST_WQE_REACHED was raised.
    last_wqe_reached: u8,
    /// 1 if the ring is corrupt.
    broken: u8,
}

/// State of the protocol machine that receives.
#[allow(clippy::large_enum_variant)] // Plain data: a field can't be behind a pointer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecvMachine {
    None,
    Rc(rc::ResponderState),
    Uc(uc::ResponderState),
    /// Receiver of datagrams: 1 if it has stopped.
    Ud(u8),
}

/// The receive work request that was fetched and is not complete. Its slot may be reused already.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReceiveState {
    id: u64,
    length: u32,
    num_sge: u32,
    /// Slot of the SRQ, or `u32::MAX` if the work request is from the RQ.
    slot: u32,
    holder: Holder,
    wqe: [u8; RECV_WQE],
}

/// The part of the receive half that holds a receive work request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nobody,
    Half,
    Machine,
}

impl ReceiveState {
    fn of(side: &RecvSide, held: Option<&RecvWr<PostedRecv>>) -> Self {
        let (wr, holder) = match (&side.io.incoming, held) {
            (Some(wr), _) => (Some(wr), Holder::Half),
            (None, Some(wr)) => (Some(wr), Holder::Machine),
            (None, None) => (None, Holder::Nobody),
        };
        debug_assert!(side.io.incoming.is_none() || held.is_none(), "one buffer");
        let mut state = Self {
            id: 0,
            length: 0,
            num_sge: 0,
            slot: u32::MAX,
            holder,
            wqe: [0; RECV_WQE],
        };
        if let Some(wr) = wr {
            state.id = wr.id;
            state.length = wr.length;
            state.num_sge = wr.local.num_sge;
            if let RecvOrigin::Srq { slot } = wr.local.origin {
                state.slot = slot.into();
            }
            let size = rq_wqe_size(wr.local.num_sge as usize);
            state.wqe[..size].copy_from_slice(&side.io.buffer[..size]);
        }
        state
    }

    fn work_request(&self) -> RecvWr<PostedRecv> {
        RecvWr {
            id: self.id,
            length: self.length,
            local: PostedRecv {
                num_sge: self.num_sge,
                origin: match u16::try_from(self.slot) {
                    Ok(slot) => RecvOrigin::Srq { slot },
                    Err(_) => RecvOrigin::Rq,
                },
            },
        }
    }
}

impl SendState {
    /// The saved state of `side`, or `None` in virtqueue mode.
    fn of(side: &SendSide, epoch: Epoch) -> Option<Self> {
        Some(Self {
            queue: side.io.queue.save()?,
            machine: match (&side.requester, &side.sender) {
                (Some(Requester::Rc(requester)), _) => SendMachine::Rc(requester.save(epoch)),
                (Some(Requester::Uc(requester)), _) => SendMachine::Uc(requester.save()),
                (None, Some(sender)) => SendMachine::Ud(sender.next_psn().value()),
                (None, None) => SendMachine::None,
            },
            under_way: match (&side.transfer, &side.blocked) {
                (Some(transfer), _) => UnderWay::Transfer(transfer.save(epoch)),
                (None, Some(blocked)) => {
                    UnderWay::Blocked(blocked.failed.map_or(0, WcStatus::value))
                }
                (None, None) => UnderWay::Nothing,
            },
            pacer: match &side.io.pacer {
                Some(pacer) => Pacing::Limited(pacer.save(epoch)),
                None => Pacing::Nothing,
            },
            broken: side.io.broken.into(),
            drained: side.drained.into(),
        })
    }
}

impl RecvState {
    /// The saved state of `side`, or `None` in virtqueue mode.
    fn of(side: &RecvSide) -> Option<Self> {
        let (machine, held) = match &side.responder {
            None => (RecvMachine::None, None),
            Some(Responder::Rc(responder)) => (RecvMachine::Rc(responder.save()), responder.held()),
            Some(Responder::Uc(responder)) => (RecvMachine::Uc(responder.save()), responder.held()),
            Some(Responder::Ud(receiver)) => {
                let stopped = receiver.is_stopped().into();
                (RecvMachine::Ud(stopped), receiver.held())
            }
        };
        Some(Self {
            queue: side.io.queue.save()?,
            receive: ReceiveState::of(side, held),
            machine,
            violations: side.io.violations.get(),
            established: side.established.into(),
            last_wqe_reached: side.last_wqe_reached.into(),
            broken: side.io.broken.into(),
        })
    }
}

impl Qp {
    /// Drops both halves and recreates them from their saved state.
    pub(crate) fn rebuild(&self, device: &Device, epoch: Epoch) {
        let view = device.space.enter();
        let mut send = self.send.lock();
        let mut recv = self.recv.lock();
        if self.state().is_none() || device.has_failed() {
            return;
        }
        if let Some(state) = SendState::of(&send, epoch) {
            self.rebuild_send(device, &view, &mut send, &state, epoch);
            assert_eq!(SendState::of(&send, epoch), Some(state));
        }
        if let Some(state) = RecvState::of(&recv) {
            self.rebuild_recv(device, &send, &mut recv, &state);
            assert_eq!(RecvState::of(&recv), Some(state));
        }
    }

    fn rebuild_send(
        &self,
        device: &Device,
        view: &DmaView,
        side: &mut SendSide,
        state: &SendState,
        epoch: Epoch,
    ) {
        let snapshots = side.io.snapshots.take_room(device.budget());
        // These fields are kept: commands set the attributes, the connection and the route, and
        // the timers have an entry for the alarm.
        let SendSide {
            attr,
            io,
            connection,
            route,
            alarm,
            ..
        } = mem::replace(side, SendSide::new(&self.init.sq, snapshots));
        side.attr = attr;
        side.connection = connection;
        side.route = route;
        side.alarm = alarm;
        side.io.load = io.load;
        let limit = io.pacer.as_ref().map(Pacer::limit);
        side.io.broken = state.broken != 0;
        side.drained = state.drained != 0;
        side.io.queue = WorkConsumer::resumed(&self.init.sq, state.queue);
        let budget = device.turn_budget();
        let turn = SendTurn::new(self, device, view, &budget);
        if let (Pacing::Limited(pacer), Some(limit)) = (&state.pacer, limit) {
            side.io.pacer = Some(Pacer::restored(limit, pacer, epoch, turn.now));
        }
        side.requester = side.connection.clone().and_then(|connection| {
            let unused = Requester::new(self.init.qp_type, connection, &side.attr);
            (!matches!(state.machine, SendMachine::None)).then_some(unused)
        });
        if let Some(requester) = &mut side.requester {
            let elsewhere = u32::from(!matches!(state.under_way, UnderWay::Nothing));
            if side.route.is_none() || state.queue.outstanding() > elsewhere {
                let room = side.io.make_room(device.budget(), requester);
                room.expect("the old half had as much");
            }
        }
        let mut work = turn.fetch_again(&mut side.io, &side.attr).into_iter();
        match state.under_way {
            UnderWay::Nothing => {}
            UnderWay::Transfer(state) => {
                let Fetched { wr, .. } = work.next().expect("a work request");
                side.transfer = Some(Transfer::restored(wr, &state, epoch));
            }
            UnderWay::Blocked(status) => {
                let Fetched { wr, .. } = work.next().expect("a work request");
                let failed = WcStatus::try_from(status).ok();
                let failed = failed.filter(|status| *status != WcStatus::Success);
                side.blocked = Some(Fetched { wr, failed });
            }
        }
        let work = work.map(|fetched| fetched.wr);
        match (state.machine, &mut side.requester) {
            (SendMachine::Rc(state), Some(Requester::Rc(requester))) => {
                requester.restore(&state, epoch, work);
            }
            (SendMachine::Uc(state), Some(Requester::Uc(requester))) => {
                requester.restore(&state, work);
            }
            (SendMachine::Ud(next), _) => {
                let mtu = device.config().path_mtu();
                side.sender = Some(ud::Sender::new(self.number, next, mtu));
            }
            _ => {}
        }
    }

    fn rebuild_recv(
        &self,
        device: &Device,
        send: &SendSide,
        side: &mut RecvSide,
        state: &RecvState,
    ) {
        let nothing = ChargedList::new(device.budget(), 0);
        let mut buffer = mem::replace(&mut side.io.buffer, nothing);
        buffer.fill(0);
        let size = buffer.len().min(RECV_WQE);
        buffer[..size].copy_from_slice(&state.receive.wqe[..size]);
        // These fields are kept: commands set them.
        let RecvSide {
            answers,
            peer,
            path,
            qkey,
            ..
        } = mem::replace(side, RecvSide::new(&self.init.rq, buffer));
        side.answers = answers;
        side.peer = peer;
        side.path = path;
        side.qkey = qkey;
        side.io.queue = WorkConsumer::resumed(&self.init.rq, state.queue);
        side.io.broken = state.broken != 0;
        side.io.violations.set(state.violations);
        side.established = state.established != 0;
        side.last_wqe_reached = state.last_wqe_reached != 0;
        let receive = || Some(state.receive.work_request());
        let (incoming, held) = match state.receive.holder {
            Holder::Nobody => (None, None),
            Holder::Half => (receive(), None),
            Holder::Machine => (None, receive()),
        };
        side.io.incoming = incoming;
        side.responder = match (&state.machine, &send.connection) {
            (RecvMachine::Rc(state), Some(connection)) => {
                let attr = attr::responder(&send.attr);
                let mut responder = rc::Responder::new(connection.clone(), attr);
                responder.restore(state, held);
                Some(Responder::Rc(responder))
            }
            (RecvMachine::Uc(state), Some(connection)) => {
                let attr = attr::responder(&send.attr);
                let mut responder = uc::Responder::new(connection.mtu, attr.rq_psn, attr.access);
                responder.restore(state, held);
                Some(Responder::Uc(responder))
            }
            (RecvMachine::Ud(stopped), _) => {
                Some(Responder::Ud(ud::Receiver::restored(held, *stopped != 0)))
            }
            _ => None,
        };
    }
}
