// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Queue operations of a driver. Only this file of the simulator depends on the layout of rings and
//! the width of positions.

use std::cell::RefCell;
use std::collections::HashMap;

use testkit::engine::cq::Moving;
use testkit::engine::{Cq, Qp, Srq, Wr};
use virtio_rdma_abi::wqe::Sge;

/// Posts a work request. The SQ must have room.
pub fn post(qp: &Qp<'_>, wr: &Wr) {
    post_bytes(qp, &wr.bytes());
}

/// Posts a WQE given as bytes. The SQ must have room.
pub fn post_bytes(qp: &Qp<'_>, bytes: &[u8]) {
    qp.post_bytes(bytes);
}

/// Posts a receive. The RQ must have room.
pub fn post_recv(qp: &Qp<'_>, id: u64, sges: &[Sge]) {
    qp.post_recv(id, sges);
}

/// Number of completions in the ring that were not polled.
pub fn unpolled(cq: &Cq<'_>) -> u32 {
    cq.ring.device().wrapping_sub(cq.ring.owner())
}

/// Number of completions in the CQ's ring, and in its new ring `moving` if the device uses that
/// already.
pub fn produced(cq: &Cq<'_>, moving: Option<&Moving>) -> u32 {
    cq.ring.device() + moving.map_or(0, Moving::produced)
}

/// An SRQ, with the slot of each receive whose completion was not polled.
pub struct SharedReceives<'vm> {
    pub srq: Srq<'vm>,
    slots: RefCell<HashMap<u64, u16>>,
}

impl<'vm> SharedReceives<'vm> {
    pub fn new(srq: Srq<'vm>) -> Self {
        Self {
            srq,
            slots: RefCell::default(),
        }
    }

    /// Posts a receive. The SRQ must have room.
    pub fn post(&self, id: u64, sges: &[Sge]) {
        let slot = self.srq.post(id, sges);
        self.slots.borrow_mut().insert(id, slot);
    }

    /// Frees the slot of a receive after its completion was polled.
    pub fn complete(&self, id: u64) {
        let slot = self.slots.borrow_mut().remove(&id);
        self.srq.complete(slot.expect("a receive of the SRQ"));
    }

    /// Moves the SRQ to a ring of `slots` slots.
    pub fn resize(&self, slots: u32) -> Result<(), u8> {
        self.srq.resize(slots)
    }

    /// Number of receives without a completion. `cq` is the CQ of all receives.
    pub fn outstanding(&self, cq: &Cq<'_>) -> u64 {
        self.slots.borrow().len() as u64 - u64::from(unpolled(cq))
    }
}
