// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! MODIFY_QP and QUERY_QP.

use std::sync::atomic::Ordering;

use roce::{ud, Connection};
use virtio_rdma_abi::ib::{QpAttrMask, QpState, PORT};
use virtio_rdma_abi::qp::QpAttr;

use super::{attr, state, Qp, RecvSide, RecvTurn, Requester, Responder, SendSide, SendTurn};
use crate::direct::Route;
use crate::error::{require, Errno, Result};
use crate::Device;

impl Qp {
    /// Executes MODIFY_QP: all of it or, on an error, nothing.
    pub(crate) fn modify(&self, device: &Device, mask: QpAttrMask, new: &QpAttr) -> Result<()> {
        let mut send = self.send.lock();
        let mut recv = self.recv.lock();
        let current = self.state().ok_or(Errno::INVAL)?;
        if mask.contains(QpAttrMask::CUR_STATE) {
            require(new.cur_qp_state == current.value())?;
        }
        let next = match mask.contains(QpAttrMask::STATE) {
            true => QpState::try_from(new.qp_state).map_err(|_| Errno::INVAL)?,
            false => current,
        };
        state::check(self.qp_type, current, next, mask)?;
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
            if current == QpState::Sqe {
                self.leave_sqe(device, &mut send);
            }
            let step = (current, next);
            match connection {
                Some(connection) => {
                    self.connect(device, &mut send, &mut recv, &connection, &attributes, step);
                }
                None => self.open(device, &mut send, &mut recv, &attributes, step),
            }
            if next == QpState::Sqd {
                send.drained &= current == QpState::Sqd;
            }
            send.attr = attributes;
        } else if next == QpState::Reset {
            self.clear(device, &mut send, &mut recv);
        }
        self.state.store(next.value(), Ordering::Release);
        if let Some(route) = &send.route {
            route.nudge();
        }
        device.qp_ready(self.number);
        Ok(())
    }

    /// Executes QUERY_QP.
    pub(crate) fn query(&self) -> Result<QpAttr> {
        let send = self.send.lock();
        let state = self.state().ok_or(Errno::INVAL)?;
        Ok(QpAttr {
            qp_state: state.value(),
            cur_qp_state: state.value(),
            sq_draining: u8::from(state == QpState::Sqd && !send.is_drained()),
            cap: self.cap,
            ..send.attr
        })
    }

    /// Brings the connection in line with new attributes.
    fn connect(
        &self,
        device: &Device,
        send: &mut SendSide,
        recv: &mut RecvSide,
        connection: &Connection,
        attr: &QpAttr,
        (current, next): (QpState, QpState),
    ) {
        if next == QpState::Rtr {
            let responder = Responder::connected(self.qp_type, connection.clone(), attr);
            recv.start(self, responder);
        } else if let Some(responder) = &mut recv.responder {
            responder.update(attr, connection.path);
        }
        recv.set_peer(connection);
        match (current, next) {
            (QpState::Rtr, QpState::Rts) => {
                let depth = send.start(self);
                let requester =
                    Requester::new(self.qp_type, connection.clone(), attr, depth.into());
                send.requester = Some(requester);
                recv.set_established();
            }
            (QpState::Sqe, QpState::Rts) => {
                if let Some(requester) = &mut send.requester {
                    // The old one ended with the work request that failed.
                    let resumed = QpAttr {
                        sq_psn: requester.next_psn().value(),
                        ..*attr
                    };
                    let depth = send.start(self);
                    send.requester = Some(Requester::new(
                        self.qp_type,
                        connection.clone(),
                        &resumed,
                        depth.into(),
                    ));
                }
            }
            _ => {
                if let Some(requester) = &mut send.requester {
                    requester.update(attr, connection.path);
                }
            }
        }
        send.connection = Some(connection.clone());
        send.route = Route::find(device, self.number, connection);
    }

    /// Has a QP of datagrams, or one that is not connected yet, take new attributes over.
    fn open(
        &self,
        device: &Device,
        send: &mut SendSide,
        recv: &mut RecvSide,
        attr: &QpAttr,
        step: (QpState, QpState),
    ) {
        recv.qkey = attr.qkey;
        match step {
            (_, QpState::Rtr) => recv.start(self, Responder::Ud(ud::Receiver::default())),
            (QpState::Rtr, QpState::Rts) => {
                send.start(self);
                let mtu = device.config().path_mtu();
                send.sender = Some(ud::Sender::new(self.number, attr.sq_psn, mtu));
            }
            _ => {}
        }
    }

    /// Flushes what was posted to the SQ while it was in error.
    fn leave_sqe(&self, device: &Device, send: &mut SendSide) {
        let view = device.space.enter();
        let turn = SendTurn::new(self, device, &view);
        // As much as fits the queue: what is posted from now on is to be executed.
        turn.flush(send, send.queue.layout().slots() as usize);
    }

    /// Gives all slots back and forgets the connection.
    fn clear(&self, device: &Device, send: &mut SendSide, recv: &mut RecvSide) {
        let view = device.space.enter();
        SendTurn::new(self, device, &view).reset(send);
        send.stop();
        send.disarm(device, self.number);
        send.attr = QpAttr::default();
        RecvTurn::new(self, device, &view).reset(recv);
        recv.stop();
        self.failure_requested.store(false, Ordering::Release);
    }
}
