// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! MODIFY_QP and QUERY_QP.

use std::sync::atomic::Ordering;

use roce::rc::{Requester, Responder};
use roce::Connection;
use virtio_rdma_abi::ib::{QpAttrMask, QpState};
use virtio_rdma_abi::qp::QpAttr;

use super::{attr, state, Qp, RecvSide, RecvTurn, SendSide, SendTurn};
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
            if matches!(next, QpState::Rtr | QpState::Rts | QpState::Sqd) {
                let connection = match &send.connection {
                    // Its GID may be gone from the table by now.
                    Some(connection) if !mask.contains(QpAttrMask::AV) => connection.clone(),
                    _ => attr::connection(device, self.number, &attributes)?,
                };
                self.connect(
                    device,
                    &mut send,
                    &mut recv,
                    &connection,
                    &attributes,
                    (current, next),
                );
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
        let responder = attr::responder(attr);
        let requester = attr::requester(attr);
        if next == QpState::Rtr {
            recv.start(self, Responder::new(connection.clone(), responder));
        } else if let Some(old) = &mut recv.responder {
            old.set_attr(responder);
            old.set_path(connection.path);
        }
        recv.set_peer(connection);
        if (current, next) == (QpState::Rtr, QpState::Rts) {
            let depth = send.start(self);
            send.requester = Some(Requester::new(connection.clone(), requester, depth.into()));
            recv.set_established();
        } else if let Some(old) = &mut send.requester {
            old.set_attr(requester);
            old.set_path(connection.path);
        }
        send.connection = Some(connection.clone());
        if next == QpState::Sqd {
            send.drained &= current == QpState::Sqd;
        }
        send.route = Route::find(device, self.number, connection);
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
