// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A received packet that is not yet passed to its QP.

use roce::Packet;

/// A received packet.
pub(crate) struct Arrived<'f> {
    pub(crate) packet: Packet<'f>,
    /// Whether the packet may have passed a router, so its source MAC address does not identify the
    /// sender.
    pub(crate) is_routed: bool,
    /// Size of the packet's frame in bytes, without padding after the packet.
    pub(crate) len: usize,
}
