// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Numbers of the virtqueues in RFC mode (RFC, "Virtqueues").
//!
//! Virtqueue 0 is the control queue. CQs follow, then pairs of an SQ and an RQ. A handle says where
//! its queues are: CQs are counted from 0 and QPNs from 1.

use super::ctrl::CONTROL_QUEUE;
use super::number::{Cqn, Qpn};

/// The purpose of a virtqueue in RFC mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Control commands.
    Control,
    /// Completions of the CQ with this handle.
    Cq(Cqn),
    /// Send work requests of this QPN.
    Sq(Qpn),
    /// Receive work requests of this QPN.
    Rq(Qpn),
}

/// The virtqueues of a device that has `max_cq` CQs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueNumbers {
    max_cq: u32,
}

#[allow(dead_code)]
impl QueueNumbers {
    /// For a device whose configuration says `max_cq`.
    pub const fn new(max_cq: u32) -> Self {
        Self { max_cq }
    }

    /// Number of virtqueues with `max_qp` QPs, the control queue included; saturates.
    pub const fn count(&self, max_qp: u32) -> u32 {
        max_qp
            .saturating_mul(2)
            .saturating_add(self.max_cq)
            .saturating_add(1)
    }

    /// Virtqueue of CQ `cqn`, or `None` if there is no such CQ.
    pub const fn cq(&self, cqn: Cqn) -> Option<u16> {
        if cqn.get() < self.max_cq {
            number(cqn.get() as u64 + 1)
        } else {
            None
        }
    }

    /// Virtqueue of the SQ of QP `qpn`, or `None` if there is none.
    pub const fn sq(&self, qpn: Qpn) -> Option<u16> {
        match qpn.get() {
            0 => None,
            qpn => number(self.max_cq as u64 + 2 * qpn as u64 - 1),
        }
    }

    /// Virtqueue of the RQ of QP `qpn`, or `None` if there is none.
    pub const fn rq(&self, qpn: Qpn) -> Option<u16> {
        match qpn.get() {
            0 => None,
            qpn => number(self.max_cq as u64 + 2 * qpn as u64),
        }
    }

    /// The purpose of virtqueue `number`.
    pub const fn role(&self, number: u16) -> Role {
        let index = number as u32;
        if number == CONTROL_QUEUE {
            return Role::Control;
        }
        if index <= self.max_cq {
            return Role::Cq(Cqn::new(index - 1));
        }
        let position = index - self.max_cq;
        let qpn = Qpn::new(position.div_ceil(2));
        if position % 2 == 1 {
            Role::Sq(qpn)
        } else {
            Role::Rq(qpn)
        }
    }
}

/// The number of a virtqueue, if it can be one.
const fn number(index: u64) -> Option<u16> {
    if index <= u16::MAX as u64 {
        Some(index as u16)
    } else {
        None
    }
}
