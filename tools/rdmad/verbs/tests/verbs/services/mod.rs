// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Operations of each QP type, on both data paths.

mod addresses;
mod atomics;
mod bursts;
mod counters;
mod flush;
mod groups;
mod gsi;
mod keys;
mod multicast;
mod opcodes;
mod pacing;
mod placement;
mod port_pacing;
mod uc;
mod ud;
mod vlan;

use roce::headers::{Body, Bth, Headers};
use roce::Psn;
use testkit::engine::*;
use virtio_rdma_abi::ib::QpType;
use virtio_rdma_abi::number::Qpn;

/// QP types that any process may create.
const USER_TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// Length in bytes of the GRH, which precedes the data of a datagram in the receive buffer.
const GRH: u64 = 40;

/// Offset in bytes of the data of a SEND in the receive buffer.
fn data_offset(qp_type: QpType) -> u64 {
    match qp_type {
        QpType::Ud | QpType::Gsi => GRH,
        _ => 0,
    }
}

/// Runs `test` with a pair of UD QPs in each setup.
fn each_ud(test: impl Fn(&Pair<'_>)) {
    each_setup_with(Options::of(QpType::Ud), test);
}

/// Headers of packet number `n`, counted from 0, to the QP `dest_qpn`.
pub fn numbered(body: impl Into<Body>, pkey: u16, dest_qpn: Qpn, n: u32) -> Headers {
    Headers::new(Bth::new(pkey, dest_qpn, Psn::new(0xff_fff0).add(n)), body)
}
