// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! RoCEv2 without I/O.
//!
//! Packet formats (InfiniBand Architecture Specification volume 1, "IBTA" below, chapter 9, and its
//! annex A17 for RoCEv2) and the state machines of reliable and unreliable connections (RC, UC) and
//! datagrams (UD). Nothing here opens a socket, reads a clock or knows where guest memory is: the
//! caller passes frames and the time in, and implements the traits of [`mod@env`] for memory, work
//! queues and outgoing frames. Nothing on the packet path allocates.
//!
//! | module | what it holds |
//! |---|---|
//! | [`psn`] | 24-bit packet sequence numbers |
//! | [`opcode`], [`headers`] | transport services; BTH, opcodes and extended transport headers |
//! | [`net`] | Ethernet, IPv4, IPv6, UDP: the path of a packet |
//! | [`icrc`] | invariant CRC |
//! | [`packet`] | parsing and building whole frames |
//! | [`frame`] | frame buffers and their pool |
//! | [`work`] | work requests and completions as the state machines see them |
//! | [`mod@env`] | what the state machines need of the engine around them |
//! | [`size`] | how long frames are that are not built |
//! | [`rc`], [`uc`], [`ud`] | the transport services |
//! | [`committed`] | the part of their state that outlives a process |

#![forbid(unsafe_code)]

pub mod committed;
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
