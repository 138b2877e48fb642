// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The queues of a driver as the simulator uses them. No other file here knows how rings are laid out
//! or how wide their positions are.

use crate::harness::{Qp, Wr};
use virtio_rdma_abi::wqe::Sge;

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
