// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Virtqueue numbers in virtqueue mode (RFC, "Virtqueues").
//!
//! Virtqueue 0 is the control queue. The CQs follow, then pairs of SQ and RQ. Handles determine
//! virtqueue numbers: CQNs start at 0 and QPNs at 1.

use super::ctrl::CONTROL_QUEUE;
use super::number::{Cqn, Qpn};

/// The purpose of a virtqueue in virtqueue mode.
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

/// The virtqueue numbers of a device with `max_cq` CQs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueNumbers {
    max_cq: u32,
}

#[allow(dead_code)]
impl QueueNumbers {
    /// The numbers for the `max_cq` of a device's configuration.
    pub const fn new(max_cq: u32) -> Self {
        Self { max_cq }
    }

    /// Number of virtqueues with `max_qp` QPs, including the control queue. Saturates.
    pub const fn count(&self, max_qp: u32) -> u32 {
        max_qp
            .saturating_mul(2)
            .saturating_add(self.max_cq)
            .saturating_add(1)
    }

    /// Virtqueue of CQ `cqn`, or `None` if the CQN is too large.
    pub const fn cq(&self, cqn: Cqn) -> Option<u16> {
        if cqn.get() < self.max_cq {
            number(cqn.get() as u64 + 1)
        } else {
            None
        }
    }

    /// Virtqueue of the SQ of QP `qpn`, or `None` if the virtqueue has no valid number.
    pub const fn sq(&self, qpn: Qpn) -> Option<u16> {
        match qpn.get() {
            0 => None,
            qpn => number(self.max_cq as u64 + 2 * qpn as u64 - 1),
        }
    }

    /// Virtqueue of the RQ of QP `qpn`, or `None` if the virtqueue has no valid number.
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

/// `index` as a virtqueue number, or `None` if it is too large.
const fn number(index: u64) -> Option<u16> {
    if index <= u16::MAX as u64 {
        Some(index as u16)
    } else {
        None
    }
}
