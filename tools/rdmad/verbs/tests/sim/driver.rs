// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The queues of a driver as the simulator uses them. No other file here knows how rings are laid
//! out or how wide their positions are.

use std::cell::RefCell;
use std::collections::HashMap;

use virtio_rdma_abi::wqe::Sge;

use crate::harness::{Cq, Qp, Srq, Wr};

/// Posts a work request, for which there is room.
pub fn post(qp: &Qp<'_>, wr: &Wr) {
    post_bytes(qp, &wr.bytes());
}

/// Posts the bytes of a work request, for which there is room.
pub fn post_bytes(qp: &Qp<'_>, bytes: &[u8]) {
    qp.post_bytes(bytes);
}

/// Posts a receive, for which there is room.
pub fn post_recv(qp: &Qp<'_>, id: u64, sges: &[Sge]) {
    qp.post_recv(id, sges);
}

/// Completions that were not polled.
pub fn unpolled(cq: &Cq<'_>) -> u32 {
    cq.ring.device().wrapping_sub(cq.ring.owner())
}

/// An SRQ, with the slots of the receives whose completions were not polled.
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

    /// Posts a receive, for which there is room.
    pub fn post(&self, id: u64, sges: &[Sge]) {
        let slot = self.srq.post(id, sges);
        self.slots.borrow_mut().insert(id, slot);
    }

    /// The completion of a receive was polled.
    pub fn complete(&self, id: u64) {
        let slot = self.slots.borrow_mut().remove(&id);
        self.srq.complete(slot.expect("a receive of the SRQ"));
    }

    /// Moves to a ring of `slots` slots.
    pub fn resize(&self, slots: u32) -> Result<(), u8> {
        self.srq.resize(slots)
    }

    /// Receives that have not ended. All receives complete in `cq`.
    pub fn outstanding(&self, cq: &Cq<'_>) -> u64 {
        self.slots.borrow().len() as u64 - u64::from(unpolled(cq))
    }
}
