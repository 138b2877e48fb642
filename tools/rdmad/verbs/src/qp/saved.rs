// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Saved state of a QP: what another process needs to go on with it.
//!
//! The saved state of each half is one plain structure, and [`QpState`] has the rest: what commands
//! have set. The content of the rings is not saved:
//! WQEs that are not complete are read again.
//!
//! Queues of virtqueue mode can't be handed over: their indices are in memory that the driver may
//! write.

#[cfg(feature = "testing")]
mod forget;
mod qp;
mod restore;

use roce::saved::{Epoch, Fault};
use roce::work::RecvWr;
use roce::{rc, uc};
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::wqe::rq_wqe_size;
use virtio_rdma_ring::DevicePositions;

pub(crate) use self::qp::QpState;
use super::requester::PacerState;
use super::{Requester, RequesterMachine, Responder, ResponderMachine};
use crate::direct::TransferState;
use crate::encoding::bytes;
use crate::memory::PositionsDef;
use crate::wqe::{PostedRecv, RecvOrigin};

/// Bytes of the longest receive WQE.
const RECV_WQE: usize = rq_wqe_size(32);

/// The saved state of a requester.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequesterState {
    #[serde(with = "PositionsDef")]
    pub queue: DevicePositions,
    pub machine: RequesterMachineState,
    pub under_way: UnderWay,
    /// State of the QP's rate limit.
    pub pacer: Pacing,
    /// 1 if the ring is corrupt.
    pub broken: u8,
    /// 1 if the SQ has drained since the QP went to SQD.
    pub drained: u8,
}

/// State of the state machine of a requester.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RequesterMachineState {
    None,
    Rc(rc::RequesterState),
    Uc(uc::RequesterState),
    /// PSN of the next datagram.
    Ud(u32),
}

/// The work request in progress, if no state machine holds it. The QP then has no other
/// incomplete work request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UnderWay {
    Nothing,
    Transfer(TransferState),
    /// A datagram that waits for room in the frame port or for a rate limit, with the fault with
    /// which it will end.
    Blocked(Fault),
}

/// State of the QP's rate limit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pacing {
    Nothing,
    Limited(PacerState),
}

/// The saved state of a responder.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResponderState {
    #[serde(with = "PositionsDef")]
    pub queue: DevicePositions,
    pub receive: ReceiveState,
    pub machine: ResponderMachineState,
    /// Number of R_Key violations by the peer.
    pub violations: u32,
    /// 1 if COMM_EST was raised or must not be raised any more.
    pub established: u8,
    /// 1 if QP_LAST_WQE_REACHED was raised.
    pub last_wqe_reached: u8,
    /// 1 if the ring is corrupt.
    pub broken: u8,
}

/// State of the state machine of a responder.
#[allow(clippy::large_enum_variant)] // Plain data: a field can't be behind a pointer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ResponderMachineState {
    None,
    Rc(rc::ResponderState),
    Uc(uc::ResponderState),
    /// Receiver of datagrams: 1 if it has stopped.
    Ud(u8),
}

/// The receive work request that was fetched and is not complete. Its slot may be reused already.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReceiveState {
    pub id: u64,
    pub length: u32,
    pub num_sge: u32,
    /// Slot of the SRQ, or `u32::MAX` if the work request is from the RQ.
    pub slot: u32,
    pub holder: Holder,
    #[serde(with = "bytes")]
    pub wqe: [u8; RECV_WQE],
}

/// The part of the responder that holds a receive work request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Holder {
    Nobody,
    Responder,
    Machine,
}

impl ReceiveState {
    fn of(responder: &Responder, held: Option<&RecvWr<PostedRecv>>) -> Self {
        let (wr, holder) = match (&responder.io.incoming, held) {
            (Some(wr), _) => (Some(wr), Holder::Responder),
            (None, Some(wr)) => (Some(wr), Holder::Machine),
            (None, None) => (None, Holder::Nobody),
        };
        debug_assert!(
            responder.io.incoming.is_none() || held.is_none(),
            "one buffer"
        );
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
            state.wqe[..size].copy_from_slice(&responder.io.buffer[..size]);
        }
        state
    }
}

impl RequesterState {
    /// The saved state of `requester`.
    pub(crate) fn of(requester: &Requester, epoch: Epoch) -> Self {
        Self {
            queue: requester.io.queue.positions(),
            machine: match (&requester.machine, &requester.sender) {
                (Some(RequesterMachine::Rc(machine)), _) => {
                    RequesterMachineState::Rc(machine.save(epoch))
                }
                (Some(RequesterMachine::Uc(machine)), _) => {
                    RequesterMachineState::Uc(machine.save())
                }
                (None, Some(sender)) => RequesterMachineState::Ud(sender.next_psn().value()),
                (None, None) => RequesterMachineState::None,
            },
            under_way: match (&requester.transfer, &requester.blocked) {
                (Some(transfer), _) => UnderWay::Transfer(transfer.save(epoch)),
                (None, Some(blocked)) => UnderWay::Blocked(Fault::of(blocked.failed)),
                (None, None) => UnderWay::Nothing,
            },
            pacer: match &requester.io.pacer {
                Some(pacer) => Pacing::Limited(pacer.save(epoch)),
                None => Pacing::Nothing,
            },
            broken: requester.io.broken.into(),
            drained: requester.drained.into(),
        }
    }
}

impl ResponderState {
    /// The saved state of `responder`.
    pub(crate) fn of(responder: &Responder) -> Self {
        let (machine, held) = match &responder.machine {
            None => (ResponderMachineState::None, None),
            Some(ResponderMachine::Rc(machine)) => {
                (ResponderMachineState::Rc(machine.save()), machine.held())
            }
            Some(ResponderMachine::Uc(machine)) => {
                (ResponderMachineState::Uc(machine.save()), machine.held())
            }
            Some(ResponderMachine::Ud(receiver)) => {
                let stopped = receiver.is_stopped().into();
                (ResponderMachineState::Ud(stopped), receiver.held())
            }
        };
        Self {
            queue: responder.io.queue.positions(),
            receive: ReceiveState::of(responder, held),
            machine,
            violations: responder.io.violations.get(),
            established: responder.established.into(),
            last_wqe_reached: responder.last_wqe_reached.into(),
            broken: responder.io.broken.into(),
        }
    }
}
