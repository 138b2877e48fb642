// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unreliable datagrams (IBTA 9.8.3), including those of the GSI QP.
//!
//! A message is one packet, so neither side has state of a message in progress. The [`Sender`]
//! builds packets. The [`Receiver`] copies a [GRH](grh) and the payload of each packet to the
//! buffers of a receive.
//!
//! The caller checks P_Keys. If the top bit of the Q_Key in a work request is set, the caller uses
//! the Q_Key of the QP instead.

mod grh;
mod receiver;
mod sender;

pub use grh::{grh, transport_size, GRH_SIZE};
pub use receiver::{Receiver, Verdict};
pub use sender::{Destination, Sender};
pub use virtio_rdma_abi::ib::GSI_QPN;

/// Q_Key of the general service interface.
pub const GSI_QKEY: u32 = 0x8001_0000;
