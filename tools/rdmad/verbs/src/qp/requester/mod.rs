// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The requester of a QP: it executes the send queue.
//!
//! [`RequesterTurn`] fetches and completes work requests. It executes them in one of three ways:
//! [`direct`] copies, [`wire`] sends packets, and [`datagram`] copies or sends a packet for each
//! work request. When no more can be done, [`park`] arranges the next turn. [`machine`] wraps the
//! state machines of the transport services, and [`pace`] applies the QP's rate limit.

mod datagram;
mod direct;
mod keys;
mod machine;
mod pace;
mod park;
mod turn;
mod wire;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Instant;

use budget::Exhausted;
use chaos::Applied;
use roce::frame::Lane;
use roce::{ud, Connection};
use scheduler::{Alarm, Flow, Until};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;

use super::{Qp, RemoteQp};
use crate::direct::{DirectRoute, Transfer};
use crate::memory::{QueueMem, WorkConsumer};
use crate::port_load::QpLoad;
use crate::port_pace::PortShare;
use crate::turn::{Charged, Parked};
use crate::wire::{Arrived, PacketsOnOrder};
use crate::wqe::{Fetched, Snapshots};
use crate::Hca;

pub(crate) use machine::{ForAnswer, RequesterMachine};
pub(super) use pace::{Pacer, PacerState, RateLimitAttr};
pub(crate) use turn::{solicits, RequesterTurn};

/// Maximum number of WQEs in progress at a time on the wire path. Large enough that many small
/// messages can be in flight.
const DEPTH: u16 = 128;

/// The result of a step: `Continue` if work was done and charged, and more may follow; `Break` if
/// the requester parks.
pub(super) type Progress = ControlFlow<Parked, Charged>;

/// The requester of a QP: its state, which a lock protects.
#[derive(Debug)]
pub(crate) struct Requester {
    /// All attributes as set by MODIFY_QP.
    pub(in crate::qp) attr: QpAttr,
    pub(crate) io: RequesterIo,
    /// The state machine that sends requests on a connection; `Some` from RTS on.
    pub(crate) machine: Option<RequesterMachine>,
    /// The state machine that sends datagrams; `Some` from RTS on.
    pub(crate) sender: Option<ud::Sender>,
    /// A datagram that waits for room in the frame port or for a rate limit.
    pub(in crate::qp) blocked: Option<Fetched>,
    /// Route of the connection, if the connection uses the direct path.
    pub(crate) route: Option<DirectRoute>,
    /// Whether the connection sends packets although the direct path is possible.
    pub(in crate::qp) is_shunned: bool,
    /// The connection of an RC or UC QP; `Some` from RTR on.
    pub(crate) connection: Option<Connection>,
    /// The transfer of the current work request on the direct path.
    pub(in crate::qp) transfer: Option<Transfer>,
    /// Whether the SQ has drained since the QP went to SQD, so SQ_DRAINED is not raised again.
    pub(in crate::qp) drained: bool,
    /// The QP's entry in the runtime's timers.
    pub(in crate::qp) alarm: Alarm,
    /// The end of the QP's last turn.
    pub(in crate::qp) stopped: Option<Stopped>,
}

/// The end of a turn.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct Stopped {
    /// When the turn began.
    pub at: Instant,
    /// Causes of the requester's next turn.
    pub requester: Parked,
    /// Causes of the responder's next turn.
    pub responder: Parked,
}

/// The part of the requester that the state machines borrow.
#[derive(Debug)]
pub(crate) struct RequesterIo {
    pub(in crate::qp) queue: WorkConsumer,
    pub(crate) snapshots: Snapshots,
    /// Whether the ring is corrupt: it is not read again before RESET.
    pub(in crate::qp) broken: bool,
    /// Number of WQEs fetched since the device last requested a doorbell. RESET does not clear it.
    pub(in crate::qp) fetched: u32,
    /// The QP's rate limit, if it has one.
    pub(crate) pacer: Option<Pacer>,
    /// The QP's bookings at the rate limits of the port.
    pub(crate) port: PortShare,
    /// Time until which a rate limit holds the QP back.
    pub(in crate::qp) paced: Option<Instant>,
    /// The snapshot of the work request that a rule of a scenario lets fail, until the QP is
    /// reset: the QP meets no other rule about work requests.
    pub(in crate::qp) ordered: Option<(u16, Applied)>,
    /// Effects of rules about packets; `None` if there was no such rule.
    pub(crate) packets: Option<Box<PacketsOnOrder>>,
    /// The QP's part in the load of the port.
    pub(crate) load: QpLoad,
    /// The lane that had no room for the last frame that was refused.
    pub(crate) full: Lane,
}

impl Requester {
    pub(in crate::qp) fn new(queue: &QueueMem, snapshots: Snapshots) -> Self {
        Self {
            attr: QpAttr::ZERO,
            io: RequesterIo {
                queue: WorkConsumer::new(queue),
                snapshots,
                broken: false,
                fetched: 0,
                pacer: None,
                port: PortShare::default(),
                ordered: None,
                packets: None,
                paced: None,
                load: QpLoad::default(),
                full: Lane::default(),
            },
            machine: None,
            sender: None,
            blocked: None,
            route: None,
            is_shunned: false,
            connection: None,
            transfer: None,
            drained: false,
            alarm: Alarm::default(),
            stopped: None,
        }
    }

    /// Drops all work and the connection.
    pub(in crate::qp) fn stop(&mut self) {
        self.io.stop();
        self.machine = None;
        self.sender = None;
        self.blocked = None;
        self.route = None;
        self.connection = None;
        self.transfer = None;
    }

    /// Whether every work request whose execution was started is complete.
    pub(in crate::qp) fn is_drained(&self) -> bool {
        self.transfer.is_none()
            && self.blocked.is_none()
            && self
                .machine
                .as_ref()
                .is_none_or(RequesterMachine::is_drained)
    }

    /// Whether every fetched work request is complete.
    pub(in crate::qp) fn is_empty(&self) -> bool {
        self.transfer.is_none()
            && self.blocked.is_none()
            && self.machine.as_ref().is_none_or(RequesterMachine::is_empty)
    }

    /// Attributes as set by MODIFY_QP.
    pub(crate) fn attr(&self) -> &QpAttr {
        &self.attr
    }

    /// Whether a packet is from the peer.
    pub(crate) fn is_from_peer(&self, arrived: &Arrived<'_>, hca: &Hca) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| RemoteQp::of(connection).sent(arrived, hca.runtime()))
    }

    /// Time at which the QP needs a turn even if no event occurs.
    fn deadline(&self) -> Option<Instant> {
        let transfer = self.transfer.as_ref().and_then(Transfer::deadline);
        let machine = self
            .machine
            .as_ref()
            .and_then(RequesterMachine::next_deadline);
        [transfer, machine, self.io.paced, self.io.load.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Enters the QP's deadline in the runtime's timers, if the QP has one. If not, the QP has no
    /// entry: a worker that sleeps would wake up for it.
    pub(in crate::qp) fn arm(&mut self, hca: &Hca, qp: &Qp) -> Option<Until> {
        if qp.timer_expired.swap(false, Ordering::AcqRel) {
            self.alarm.expired();
        }
        let key = hca.key(qp.number);
        let scheduler = &hca.runtime().scheduler;
        let Some(deadline) = self.deadline() else {
            self.alarm.clear(scheduler, key.into());
            return None;
        };
        let home = hca.flows.port.home(Flow::of(qp.number));
        Some(self.alarm.set(scheduler, key.into(), home, deadline))
    }

    /// Records the load of the requester.
    pub(crate) fn update_load(&mut self, hca: &Hca, now: Instant) {
        if let Some(machine) = &self.machine {
            hca.frames
                .update_load(&hca.flows, &mut self.io.load, now, machine.outstanding());
        }
    }

    /// Removes the QP's entry from the timers and its load from the port.
    pub(in crate::qp) fn disarm(&mut self, hca: &Hca, qpn: Qpn) {
        hca.frames.release_load(&hca.flows, &mut self.io.load);
        self.alarm
            .clear(&hca.runtime().scheduler, hca.key(qpn).into());
    }
}

impl RequesterIo {
    /// Allocates memory for the work requests that `requester` may have in progress. Not needed on
    /// the direct path, which executes one work request at a time.
    pub(in crate::qp) fn make_room(
        &mut self,
        budget: &budget::MemoryBudget,
        machine: &mut RequesterMachine,
    ) -> Result<(), Exhausted> {
        let slots = u16::try_from(self.queue.slots()).unwrap_or(DEPTH);
        // At least 1, even if there is no SQ.
        let depth = slots.clamp(1, DEPTH);
        self.snapshots.make_room(budget, depth)?;
        machine.make_room(budget, depth.into())
    }

    /// Drops all work.
    fn stop(&mut self) {
        self.snapshots.clear();
        self.paced = None;
        self.ordered = None;
        self.packets = None;
        self.broken = false;
    }

    /// Whether the QP's rate limit permits a frame of `bytes` now. If not, the QP gets a turn when
    /// the rate limit permits the frame.
    #[inline]
    pub(crate) fn admit(&mut self, now: Instant, bytes: usize) -> bool {
        let admitted = self.pacer.as_mut().map(|pacer| pacer.admit(now, bytes));
        self.passes(admitted.unwrap_or(Ok(()))).is_some()
    }

    /// Converts the result of a rate limit to an `Option`. If the limit returned the time of the
    /// next attempt, the QP gets a turn at that time.
    #[inline]
    pub(crate) fn passes<T>(&mut self, admitted: Result<T, Instant>) -> Option<T> {
        match admitted {
            Ok(admitted) => Some(admitted),
            Err(at) => {
                self.paced = Some(at);
                None
            }
        }
    }
}
