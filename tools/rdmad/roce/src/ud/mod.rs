// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unreliable datagrams (IBTA 9.8.3), those of the GSI QP among them.
//!
//! A message is one packet, so neither side keeps anything of it: the [`Sender`] builds packets,
//! the [`Receiver`] puts them into receives, each behind an image of the packet's [network
//! header](grh).
//!
//! P_Keys, and the rule that a Q_Key with its top bit set stands for the QP's own, are the
//! caller's.

mod grh;
mod receiver;
mod sender;

pub use grh::{grh, transport_size, GRH_SIZE};
pub use receiver::{Receiver, Verdict};
pub use sender::{Destination, Sender};
pub use virtio_rdma_abi::ib::GSI_QPN;

/// Q_Key of the general service interface.
pub const GSI_QKEY: u32 = 0x8001_0000;
