// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! MODIFY_QP and QUERY_QP.

use std::sync::atomic::Ordering;

use recorder::Kind;
use roce::{rc, ud, Connection};
use scheduler::Flow;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{QpAttrMask, QpState, QpType, PORT};
use virtio_rdma_abi::qp::QpAttr;

use super::requester::{Pacer, RateLimitAttr};
use super::serve::FLUSH_LIMIT;
use super::{
    attr, state, Qp, Requester, RequesterMachine, RequesterTurn, Responder, ResponderMachine,
    ResponderTurn,
};
use crate::config::MAX_BURST;
use crate::direct::DirectRoute;
use crate::error::{at_most, defined, exactly, no_such, require, Reason, Result, What};
use crate::status::DataPath;
use crate::turn::Parked;
use crate::wqe::PostedRecv;
use crate::Hca;

/// The new parts of a connection, which a MODIFY_QP prepares.
struct Connected {
    connection: Connection,
    route: Option<DirectRoute>,
    /// See [`Requester::is_shunned`].
    is_shunned: bool,
    /// The machine of the new requester, if the QP goes to RTS from RTR or SQE.
    machine: Option<RequesterMachine>,
}

/// A transition of the QP's state.
#[derive(Clone, Copy)]
struct Step {
    current: QpState,
    next: QpState,
}

/// Proof that the QP's next turn is arranged: the QP waits for a MODIFY_QP, which gives it a turn.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForCommand(());

impl Qp {
    /// Parks a half of the QP that has nothing to do in the current state.
    pub(super) fn await_command(&self) -> Parked {
        debug_assert_ne!(self.state(), Some(QpState::Rts), "QP {}", self.number);
        ForCommand(()).into()
    }

    /// Executes MODIFY_QP: all of it, or nothing if it fails.
    pub(crate) fn modify(&self, hca: &Hca, mask: QpAttrMask, new: &QpAttr) -> Result<()> {
        self.flush_sqe(hca);
        let mut requester = self.requester.lock();
        let mut responder = self.responder.lock();
        let current = self.state().ok_or(no_such(What::Qpn, self.number))?;
        if mask.contains(QpAttrMask::CUR_STATE) {
            exactly(What::CurQpState, new.cur_qp_state, current.value())?;
        }
        let next = if mask.contains(QpAttrMask::STATE) {
            defined(What::QpState, new.qp_state)?
        } else {
            current
        };
        let rate_limits = hca.has_feature(Feature::RateLimit);
        state::check(self.init.qp_type, current, next, mask, rate_limits)?;
        attr::validate(hca, mask, new)?;
        if current == QpState::Sqd && next == QpState::Sqd {
            // Work requests in progress use the attributes (IBTA 10.3.1.5).
            let qpn = self.number.get();
            require(requester.is_drained(), Reason::NotDrained, What::Qpn, qpn)?;
        }
        if !matches!(next, QpState::Reset | QpState::Err) {
            // If a step of this branch fails, the QP is unchanged.
            let mut attributes = requester.attr;
            attr::merge(&mut attributes, mask, new);
            // The GSI QP's transitions do not set the port.
            attributes.port_num = PORT;
            let connection = match &requester.connection {
                _ if !self.is_connected() || next == QpState::Init => None,
                // The path is kept rather than made again: the driver may have removed the source
                // GID of the path from the GID table meanwhile.
                Some(connection) if !mask.contains(QpAttrMask::AV) => Some(connection.clone()),
                _ => Some(attr::connection(hca, self.number, &attributes)?),
            };
            let step = Step { current, next };
            let connected = connection
                .map(|connection| {
                    self.charge_answers(hca, &mut responder, &attributes, next)?;
                    self.prepare(hca, &mut requester, connection, &attributes, step)
                })
                .transpose()?;
            if current == QpState::Sqe {
                self.leave_sqe(hca, &mut requester);
            }
            match connected {
                Some(connected) => {
                    self.connect(&mut requester, &mut responder, connected, &attributes, next)
                }
                None => self.open(hca, &mut requester, &mut responder, &attributes, step),
            }
            if next == QpState::Sqd {
                requester.drained &= current == QpState::Sqd;
            }
            requester.attr = attributes;
            if mask.contains(QpAttrMask::RATE_LIMIT) {
                self.pace(hca, &mut requester, 0, 0);
            }
        } else if next == QpState::Reset {
            self.clear(hca, &mut requester, &mut responder);
        }
        self.state.store(next.value(), Ordering::Release);
        if next != current {
            let (to, from) = (next.value().into(), current.value().into());
            self.note(hca, Kind::Modified, to, from);
        }
        self.assign_worker(hca);
        if let Some(route) = &requester.route {
            route.request_turn();
        }
        hca.qp_ready(self.number);
        Ok(())
    }

    /// Chooses the home of a connected QP. On the direct path it is the peer's home, since turns of
    /// the two QPs exclude each other. On the wire path it is the worker that receives the port's
    /// frames.
    pub(super) fn assign_worker(&self, hca: &Hca) {
        if self.summary.peer().is_none() {
            return;
        }
        let flow = Flow::of(self.number);
        let home = match hca.direct_peer_of(flow) {
            Some(peer) => hca.runtime().home(peer),
            None => Some(hca.flows.port.home(Flow::FRAMES)),
        };
        if let Some(home) = home {
            hca.flows.port.set_home(flow, home);
        }
    }

    /// Executes SET_RATE_LIMIT.
    pub(crate) fn set_rate_limit(
        &self,
        hca: &Hca,
        rate: u32,
        burst: u32,
        packet: u16,
    ) -> Result<()> {
        let mut requester = self.requester.lock();
        // Management packets are not rate limited.
        let qp_type = self.init.qp_type;
        let has_rate = qp_type != QpType::Gsi;
        require(has_rate, Reason::Unsuitable, What::QpType, qp_type.value())?;
        let state = self.state().ok_or(no_such(What::Qpn, self.number))?;
        let sends = matches!(state, QpState::Rts | QpState::Sqd);
        require(sends, Reason::Unsuitable, What::QpState, state.value())?;
        attr::validate_rate(rate)?;
        at_most(What::MaxBurstSize, burst, MAX_BURST)?;
        if rate == 0 {
            exactly(What::MaxBurstSize, burst, 0u8)?;
            exactly(What::TypicalPacketSize, packet, 0u8)?;
        }
        requester.attr.rate_limit = rate;
        self.pace(hca, &mut requester, burst, packet);
        hca.qp_ready(self.number);
        Ok(())
    }

    /// Sets the QP's token bucket to the rate limit in `requester.attr`. `burst` and `packet` are
    /// lengths in bytes, or 0 for the defaults.
    fn pace(&self, hca: &Hca, requester: &mut Requester, burst: u32, packet: u16) {
        let now = hca.runtime().scheduler.clock.now();
        let limit = RateLimitAttr {
            rate: requester.attr.rate_limit,
            burst,
            packet: match packet {
                0 => hca.path_mtu().bytes(),
                given => given.into(),
            },
        };
        match &mut requester.io.pacer {
            _ if limit.rate == 0 => requester.io.pacer = None,
            Some(pacer) => pacer.change(limit, now),
            None => requester.io.pacer = Some(Pacer::new(limit, now)),
        }
        self.summary.set_rate(limit.rate);
    }

    /// Executes QUERY_QP.
    pub(crate) fn query(&self) -> Result<QpAttr> {
        let requester = self.requester.lock();
        let state = self.state().ok_or(no_such(What::Qpn, self.number))?;
        Ok(QpAttr {
            qp_state: state.value(),
            cur_qp_state: state.value(),
            sq_draining: u8::from(state == QpState::Sqd && !requester.is_drained()),
            cap: self.init.cap,
            ..requester.attr
        })
    }

    /// Charges the memory budget for the answers that an RC QP may owe its peer. The charge stays
    /// if a later step of the command fails.
    fn charge_answers(
        &self,
        hca: &Hca,
        responder: &mut Responder,
        attr: &QpAttr,
        next: QpState,
    ) -> Result<()> {
        if self.init.qp_type == QpType::Rc && (next == QpState::Rtr || responder.machine.is_some())
        {
            let bytes = rc::Responder::<PostedRecv>::queues(attr.max_dest_rd_atomic);
            responder.charge_answers(hca.budget(), bytes as u64)?;
        }
        Ok(())
    }

    /// Allocates the parts of a connection with the new attributes. If this fails, the QP is
    /// unchanged, except that it may have got memory for more WQEs in progress.
    fn prepare(
        &self,
        hca: &Hca,
        requester: &mut Requester,
        connection: Connection,
        attr: &QpAttr,
        Step { current, next }: Step,
    ) -> Result<Connected> {
        let budget = hca.budget();
        let sq_psn = match (current, next, &requester.machine) {
            (QpState::Rtr, QpState::Rts, _) => Some(attr.sq_psn),
            // The first PSN is the next PSN of the old requester, which the failed work request
            // has stopped.
            (QpState::Sqe, QpState::Rts, Some(old)) => Some(old.next_psn().value()),
            _ => None,
        };
        let mut machine = sq_psn.map(|sq_psn| {
            let attr = QpAttr { sq_psn, ..*attr };
            RequesterMachine::new(self.init.qp_type, connection.clone(), &attr)
        });
        let is_shunned = match next {
            QpState::Rtr => DirectRoute::is_shunned(hca, self.number, &connection),
            _ => requester.is_shunned,
        };
        let route = match is_shunned {
            true => None,
            false => DirectRoute::find(hca, self.number, &connection),
        };
        if route.is_none() {
            if let Some(packets) = machine.as_mut().or(requester.machine.as_mut()) {
                requester.io.make_room(budget, packets)?;
            }
        }
        Ok(Connected {
            connection,
            route,
            is_shunned,
            machine,
        })
    }

    /// Applies new attributes to the connection.
    fn connect(
        &self,
        requester: &mut Requester,
        responder: &mut Responder,
        connected: Connected,
        attr: &QpAttr,
        next: QpState,
    ) {
        let Connected {
            connection,
            route,
            is_shunned,
            machine,
        } = connected;
        if next == QpState::Rtr {
            let machine = ResponderMachine::connected(self.init.qp_type, connection.clone(), attr);
            responder.start(machine);
        } else if let Some(machine) = &mut responder.machine {
            machine.update(attr, connection.path);
        }
        let path = match &route {
            Some(_) => DataPath::Direct,
            None => DataPath::Wire,
        };
        responder.set_peer(&connection, path);
        match (machine, &mut requester.machine) {
            (Some(new), _) => {
                requester.machine = Some(new);
                responder.set_established();
            }
            (None, Some(machine)) => machine.update(attr, connection.path),
            (None, None) => {}
        }
        self.summary
            .set_peer(Some(&connection), route.as_ref().map(DirectRoute::port));
        requester.connection = Some(connection);
        requester.route = route;
        requester.is_shunned = is_shunned;
    }

    /// Applies new attributes to a UD or GSI QP, or to a QP that is not connected yet.
    fn open(
        &self,
        hca: &Hca,
        requester: &mut Requester,
        responder: &mut Responder,
        attr: &QpAttr,
        Step { current, next }: Step,
    ) {
        responder.qkey = attr.qkey;
        match (current, next) {
            (_, QpState::Rtr) => responder.start(ResponderMachine::Ud(ud::Receiver::default())),
            (QpState::Rtr, QpState::Rts) => {
                let mtu = hca.config().path_mtu();
                requester.sender = Some(ud::Sender::new(self.number, attr.sq_psn, mtu));
            }
            _ => {}
        }
    }

    /// If the QP is in SQE, flushes the work requests posted so far. Flushes no more of them at a
    /// time than a turn does, and releases the lock in between.
    fn flush_sqe(&self, hca: &Hca) {
        let mut left = None;
        loop {
            let mut requester = self.requester.lock();
            if self.state() != Some(QpState::Sqe) {
                return;
            }
            let view = hca.space.enter();
            let budget = hca.turn_budget();
            let turn = RequesterTurn::new(self, hca, &view, &budget);
            let left = left.get_or_insert(requester.io.queue.available(&turn.queue) as usize);
            let now = FLUSH_LIMIT.min(*left);
            *left -= now;
            if !turn.flush(&mut requester, now).is_again() || *left == 0 {
                return;
            }
        }
    }

    /// Completes the work requests that were in progress when the QP went to SQE. Work requests
    /// that are not yet fetched stay in the SQ, to be executed in RTS.
    fn leave_sqe(&self, hca: &Hca, requester: &mut Requester) {
        let view = hca.space.enter();
        let budget = hca.turn_budget();
        let _ = RequesterTurn::new(self, hca, &view, &budget).flush(requester, 0);
    }

    /// Empties the queues and drops the connection, for a QP that goes to RESET.
    fn clear(&self, hca: &Hca, requester: &mut Requester, responder: &mut Responder) {
        let view = hca.space.enter();
        self.acknowledge_last(hca, &view, responder);
        let budget = hca.turn_budget();
        RequesterTurn::new(self, hca, &view, &budget).reset(requester);
        requester.stop();
        requester.disarm(hca, self.number);
        requester.attr = QpAttr::default();
        requester.io.pacer = None;
        self.summary.set_peer(None, None);
        self.summary.set_rate(0);
        ResponderTurn::new(self, hca, &view, &budget).reset(responder);
        responder.put_back(self);
        responder.stop();
        self.let_completions_go(hca);
        self.failure_requested.store(false, Ordering::Release);
    }
}
