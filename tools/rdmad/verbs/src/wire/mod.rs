// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The wire path: RoCEv2 packets between the QPs and the frame port.

mod backlog;
mod burst;
mod env;
mod on_order;
mod receive;

use roce::Packet;

pub(crate) use backlog::ReceiveBacklog;
pub(crate) use env::{RequesterEnv, ResponderEnv};
pub(crate) use on_order::PacketsOnOrder;
pub(crate) use receive::{drop_frames, receive};

/// A received packet that is not yet passed to its QP.
pub(crate) struct Arrived<'f> {
    pub(crate) packet: Packet<'f>,
    /// Whether the packet may have passed a router, so its source MAC address does not identify the
    /// sender.
    pub(crate) is_routed: bool,
    /// Size of the packet's frame in bytes, without padding after the packet.
    pub(crate) len: usize,
}
