// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The queues of a driver as the simulator uses them. No other file here knows how rings are laid
//! out or how wide their positions are.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use virtio_rdma_abi::wqe::Sge;
use virtio_rdma_ring::RingMemory;

use crate::harness::{Cq, Qp, Srq, Wr};

/// Posts a work request, for which there is room.
pub fn post(qp: &Qp<'_>, wr: &Wr) {
    post_bytes(qp, &wr.bytes());
}

/// Posts the bytes of a work request, for which there is room.
pub fn post_bytes(qp: &Qp<'_>, bytes: &[u8]) {
    qp.reclaim();
    qp.post_bytes(bytes);
}

/// Posts a receive, for which there is room.
pub fn post_recv(qp: &Qp<'_>, id: u64, sges: &[Sge]) {
    qp.reclaim();
    qp.post_recv(id, sges);
}

/// Whether the device has work requests of the SQ that it has not given back.
pub fn has_outstanding(qp: &Qp<'_>) -> bool {
    qp.reclaim();
    qp.has_outstanding()
}

/// Completions that were not polled.
pub fn unpolled(cq: &Cq<'_>) -> u16 {
    let (ring, layout) = (&cq.ring, &cq.ring.layout);
    let [used, available] = [layout.used_idx(), layout.avail_idx()]
        .map(|index| u16::from_le(ring.load_u16_acquire(index)));
    // Each slot without a completion is available.
    used.wrapping_add(layout.slots() as u16)
        .wrapping_sub(available)
}

/// An SRQ, with how many receives it was given and gave back.
pub struct SharedReceives<'vm> {
    pub srq: Srq<'vm>,
    posted: Cell<u64>,
    given_back: Cell<u64>,
    slots: RefCell<HashMap<u64, u16>>,
}

impl<'vm> SharedReceives<'vm> {
    pub fn new(srq: Srq<'vm>) -> Self {
        Self {
            srq,
            posted: Cell::new(0),
            given_back: Cell::new(0),
            slots: RefCell::default(),
        }
    }

    /// Posts a receive, for which there is room.
    pub fn post(&self, id: u64, sges: &[Sge]) {
        let slot = self.srq.post(id, sges);
        self.slots.borrow_mut().insert(id, slot);
        self.posted.set(self.posted.get() + 1);
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

    /// Receives that the device has not given back.
    pub fn outstanding(&self) -> u64 {
        let ring = self.srq.ring();
        let index = u16::from_le(ring.load_u16_acquire(ring.layout.used_idx()));
        let before = self.given_back.get();
        let more = index.wrapping_sub(before as u16);
        self.given_back.set(before + u64::from(more));
        self.posted.get() - self.given_back.get()
    }
}
