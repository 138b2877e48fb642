// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! RoCEv2 without I/O.
//!
//! Packet formats (InfiniBand Architecture Specification volume 1, "IBTA" below, chapter 9, and its
//! annex A17 for RoCEv2) and the state machines of reliable and unreliable connections (RC, UC) and
//! datagrams (UD). This crate opens no sockets, reads no clock and does not access guest memory:
//! the caller passes frames and the time in, and implements the traits of [`mod@env`] for memory,
//! work queues and outgoing frames. The packet path does not allocate.
//!
//! | module | contents |
//! |---|---|
//! | [`psn`] | 24-bit packet sequence numbers |
//! | [`opcode`], [`headers`] | transport services; BTH, opcodes and extended transport headers |
//! | [`net`] | Ethernet, IPv4, IPv6, UDP: the path of a packet |
//! | [`icrc`] | invariant CRC |
//! | [`packet`] | parsing and building whole frames |
//! | [`frame`] | frame buffers and their pool |
//! | [`work`] | work requests and completions as the state machines see them |
//! | [`mod@env`] | traits that the engine implements for the state machines |
//! | [`size`] | sizes of the frames of a work request, without building them |
//! | [`rc`], [`uc`], [`ud`] | the transport services |
//! | [`saved`] | state of connections that outlives the process |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod connection;
pub mod env;
pub mod frame;
pub mod headers;
pub mod icrc;
pub mod net;
pub mod opcode;
pub mod packet;
mod port;
pub mod psn;
pub mod rc;
pub mod saved;
mod segment;
pub mod size;
pub mod uc;
pub mod ud;
pub mod work;

pub use connection::{Connection, Pause, QpError, Sent};
pub use frame::{Frame, FramePool};
pub use net::Path;
pub use packet::Packet;
pub use port::FramePort;
pub use psn::Psn;
pub use virtio_rdma_abi::number::Qpn;
