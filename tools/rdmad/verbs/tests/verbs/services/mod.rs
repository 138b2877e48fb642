// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What each type of QPs can do, on both paths.

mod addresses;
mod atomics;
mod bursts;
mod counters;
mod flush;
mod gsi;
mod keys;
mod multicast;
mod opcodes;
mod pacing;
mod placement;
mod uc;
mod ud;
mod vlan;

use roce::headers::{Bth, Transport};
use roce::opcode::{Extra, Op, Opcode, Position, Service};
use roce::Psn;
use virtio_rdma_abi::ib::QpType;

use crate::harness::*;

/// Types of QPs that any process may have.
const USER_TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// What lies ahead of a datagram in its receive.
const GRH: u64 = 40;

/// Where the data of a SEND begins in the receive.
fn data_offset(qp_type: QpType) -> u64 {
    match qp_type {
        QpType::Ud | QpType::Gsi => GRH,
        _ => 0,
    }
}

/// Runs `test` with a pair of UD QPs, on both paths.
fn each_ud(test: impl Fn(&Pair<'_>)) {
    each_with(Options::of(QpType::Ud), test);
}

/// The headers of a SEND of one packet, which is number `n`, from 0 on, of those that the QP gets.
fn single_send(service: Service, pkey: u16, dest_qpn: u32, n: u32) -> Transport {
    let op = Op::Send(Position::Only, Extra::None);
    let psn = Psn::new(0xff_fff0).add(n);
    Transport::new(Bth::new(Opcode { service, op }, pkey, dest_qpn, psn))
}
