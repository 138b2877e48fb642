// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! MODIFY_QP and QUERY_QP.

use std::sync::atomic::Ordering;

use budget::Charge;
use roce::{rc, ud, Connection};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{QpAttrMask, QpState, QpType, PORT};
use virtio_rdma_abi::qp::QpAttr;

use super::send::{Pacer, Shape};
use super::serve::FLUSH_LIMIT;
use super::{attr, state, Qp, RecvSide, RecvTurn, Requester, Responder, SendSide, SendTurn};
use crate::config::MAX_BURST;
use crate::direct::DirectRoute;
use crate::error::{require, Errno, Result};
use crate::runtime::Flow;
use crate::status::DataPath;
use crate::turn::Parked;
use crate::wqe::Received;
use crate::Device;

/// The parts of a connection from a MODIFY_QP on.
struct Connected {
    connection: Connection,
    route: Option<DirectRoute>,
    /// A new one, if the QP starts to send.
    requester: Option<Requester>,
    /// For a responder that starts.
    answers: Option<Charge>,
}

/// A step of the state table.
#[derive(Clone, Copy)]
struct Step {
    current: QpState,
    next: QpState,
}

/// A command changes the QP's state: each gives it a turn.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForCommand(());

impl Qp {
    /// Parks a half that does nothing in this state.
    pub(super) fn await_command(&self) -> Parked {
        debug_assert_ne!(self.state(), Some(QpState::Rts), "QP {}", self.number);
        ForCommand(()).into()
    }

    /// Executes MODIFY_QP: all of it or, on an error, nothing.
    pub(crate) fn modify(&self, device: &Device, mask: QpAttrMask, new: &QpAttr) -> Result<()> {
        self.flush_sqe(device);
        let mut send = self.send.lock();
        let mut recv = self.recv.lock();
        let current = self.state().ok_or(Errno::INVAL)?;
        if mask.contains(QpAttrMask::CUR_STATE) {
            require(new.cur_qp_state == current.value())?;
        }
        let next = if mask.contains(QpAttrMask::STATE) {
            QpState::try_from(new.qp_state).map_err(|_| Errno::INVAL)?
        } else {
            current
        };
        let rate_limits = device.has_feature(Feature::RateLimit);
        state::check(self.init.qp_type, current, next, mask, rate_limits)?;
        attr::validate(device, mask, new)?;
        if current == QpState::Sqd && next == QpState::Sqd {
            // Work that is still under way uses the attributes (IBTA 10.3.1.5).
            require(send.is_drained())?;
        }
        if !matches!(next, QpState::Reset | QpState::Err) {
            // Nothing changes if this fails.
            let mut attributes = send.attr;
            attr::merge(&mut attributes, mask, new);
            // The GSI QP is not told that there is one port.
            attributes.port_num = PORT;
            let connection = match &send.connection {
                _ if !self.is_connected() || next == QpState::Init => None,
                // Its GID may be gone from the table by now.
                Some(connection) if !mask.contains(QpAttrMask::AV) => Some(connection.clone()),
                _ => Some(attr::connection(device, self.number, &attributes)?),
            };
            let step = Step { current, next };
            let connected = connection
                .map(|connection| self.prepare(device, &mut send, connection, &attributes, step))
                .transpose()?;
            if current == QpState::Sqe {
                self.leave_sqe(device, &mut send);
            }
            match connected {
                Some(connected) => self.connect(&mut send, &mut recv, connected, &attributes, next),
                None => self.open(device, &mut send, &mut recv, &attributes, step),
            }
            if next == QpState::Sqd {
                send.drained &= current == QpState::Sqd;
            }
            send.attr = attributes;
            if mask.contains(QpAttrMask::RATE_LIMIT) {
                self.pace(device, &mut send, 0, 0);
            }
        } else if next == QpState::Reset {
            self.clear(device, &mut send, &mut recv);
        }
        self.state.store(next.value(), Ordering::Release);
        self.settle(device);
        if let Some(route) = &send.route {
            route.request_turn();
        }
        device.qp_ready(self.number);
        Ok(())
    }

    /// Chooses the worker of a connection's turns: the one of the peer on the direct path, where
    /// the turns of both ends exclude each other; on the wire the one that takes the frames.
    fn settle(&self, device: &Device) {
        if self.summary.peer().is_none() {
            return;
        }
        let flow = Flow::of(self.number);
        let home = match device.direct_peer_of(flow) {
            Some(peer) => device.runtime().home(peer),
            None => Some(device.flows().home(Flow::PORT)),
        };
        if let Some(home) = home {
            device.flows().set_home(flow, home);
        }
    }

    /// Executes SET_RATE_LIMIT.
    pub(crate) fn set_rate_limit(
        &self,
        device: &Device,
        rate: u32,
        burst: u32,
        packet: u16,
    ) -> Result<()> {
        let mut send = self.send.lock();
        // Management is not to be held back.
        require(self.init.qp_type != QpType::Gsi)?;
        require(matches!(self.state(), Some(QpState::Rts | QpState::Sqd)))?;
        attr::validate_rate(rate)?;
        // Without a limit, burst and packet length mean nothing.
        require(burst <= MAX_BURST && (rate != 0 || (burst, packet) == (0, 0)))?;
        send.attr.rate_limit = rate;
        self.pace(device, &mut send, burst, packet);
        device.qp_ready(self.number);
        Ok(())
    }

    /// Brings the bucket in line with the rate limit, for bursts and packets of these lengths or,
    /// where they are 0, the defaults.
    fn pace(&self, device: &Device, send: &mut SendSide, burst: u32, packet: u16) {
        let now = device.runtime().scheduler.clock.now();
        let shape = Shape {
            rate: send.attr.rate_limit,
            burst,
            packet: match packet {
                0 => device.config().path_mtu().bytes(),
                given => given.into(),
            },
        };
        match &mut send.io.pacer {
            _ if shape.rate == 0 => send.io.pacer = None,
            Some(pacer) => pacer.change(shape, now),
            None => send.io.pacer = Some(Pacer::new(shape, now)),
        }
        self.summary.set_rate(shape.rate);
    }

    /// Executes QUERY_QP.
    pub(crate) fn query(&self) -> Result<QpAttr> {
        let send = self.send.lock();
        let state = self.state().ok_or(Errno::INVAL)?;
        Ok(QpAttr {
            qp_state: state.value(),
            cur_qp_state: state.value(),
            sq_draining: u8::from(state == QpState::Sqd && !send.is_drained()),
            cap: self.init.cap,
            ..send.attr
        })
    }

    /// Gets what a connection needs for new attributes. On an error nothing has changed but that
    /// there may be more room than is needed.
    fn prepare(
        &self,
        device: &Device,
        send: &mut SendSide,
        connection: Connection,
        attr: &QpAttr,
        Step { current, next }: Step,
    ) -> Result<Connected> {
        let budget = device.budget();
        let answers = match (self.init.qp_type, next) {
            (QpType::Rc, QpState::Rtr) => {
                let limit = device.config().limits.max_rd_atomic;
                let bytes = rc::Responder::<Received>::queues(limit);
                Some(budget.charge(bytes as u64)?)
            }
            _ => None,
        };
        let sq_psn = match (current, next, &send.requester) {
            (QpState::Rtr, QpState::Rts, _) => Some(attr.sq_psn),
            // The old one ended with the work request that failed.
            (QpState::Sqe, QpState::Rts, Some(old)) => Some(old.next_psn().value()),
            _ => None,
        };
        let mut requester = sq_psn.map(|sq_psn| {
            let attr = QpAttr { sq_psn, ..*attr };
            Requester::new(self.init.qp_type, connection.clone(), &attr)
        });
        let route = DirectRoute::find(device, self.number, &connection);
        if route.is_none() {
            if let Some(packets) = requester.as_mut().or(send.requester.as_mut()) {
                send.io.make_room(budget, packets)?;
            }
        }
        Ok(Connected {
            connection,
            route,
            requester,
            answers,
        })
    }

    /// Brings the connection in line with new attributes.
    fn connect(
        &self,
        send: &mut SendSide,
        recv: &mut RecvSide,
        connected: Connected,
        attr: &QpAttr,
        next: QpState,
    ) {
        let Connected {
            connection,
            route,
            requester,
            answers,
        } = connected;
        if next == QpState::Rtr {
            let responder = Responder::connected(self.init.qp_type, connection.clone(), attr);
            recv.start(responder, answers);
        } else if let Some(responder) = &mut recv.responder {
            responder.update(attr, connection.path);
        }
        let path = match &route {
            Some(_) => DataPath::Direct,
            None => DataPath::Wire,
        };
        recv.set_peer(&connection, path);
        match (requester, &mut send.requester) {
            (Some(new), _) => {
                send.requester = Some(new);
                recv.set_established();
            }
            (None, Some(requester)) => requester.update(attr, connection.path),
            (None, None) => {}
        }
        self.summary.set_peer(
            Some(connection.dest_qpn),
            route.as_ref().map(DirectRoute::port),
        );
        send.connection = Some(connection);
        send.route = route;
    }

    /// Has a QP of datagrams, or one that is not connected yet, take new attributes over.
    fn open(
        &self,
        device: &Device,
        send: &mut SendSide,
        recv: &mut RecvSide,
        attr: &QpAttr,
        Step { current, next }: Step,
    ) {
        recv.qkey = attr.qkey;
        match (current, next) {
            (_, QpState::Rtr) => recv.start(Responder::Ud(ud::Receiver::default()), None),
            (QpState::Rtr, QpState::Rts) => {
                let mtu = device.config().path_mtu();
                send.sender = Some(ud::Sender::new(self.number, attr.sq_psn, mtu));
            }
            _ => {}
        }
    }

    /// Flushes what was posted by now, if the SQ is in error, without holding it for longer than
    /// turns do.
    fn flush_sqe(&self, device: &Device) {
        let mut left = None;
        loop {
            let mut send = self.send.lock();
            if self.state() != Some(QpState::Sqe) {
                return;
            }
            let view = device.space.enter();
            let turn = SendTurn::new(self, device, &view);
            let left = left.get_or_insert(send.io.queue.available(&turn.queue) as usize);
            let now = FLUSH_LIMIT.min(*left);
            *left -= now;
            if !turn.flush(&mut send, now).is_again() || *left == 0 {
                return;
            }
        }
    }

    /// Ends what the SQ was executing when it failed. Work that is posted from now on is to be
    /// executed.
    fn leave_sqe(&self, device: &Device, send: &mut SendSide) {
        let view = device.space.enter();
        let _ = SendTurn::new(self, device, &view).flush(send, 0);
    }

    /// Gives all slots back and forgets the connection.
    fn clear(&self, device: &Device, send: &mut SendSide, recv: &mut RecvSide) {
        let view = device.space.enter();
        SendTurn::new(self, device, &view).reset(send);
        send.stop();
        send.disarm(device, self.number);
        send.attr = QpAttr::default();
        send.io.pacer = None;
        self.summary.set_peer(None, None);
        self.summary.set_rate(0);
        RecvTurn::new(self, device, &view).reset(recv);
        recv.put_back(self);
        recv.stop();
        self.failure_requested.store(false, Ordering::Release);
    }
}
