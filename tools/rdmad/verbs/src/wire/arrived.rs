// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A packet on its way from the frame port to a QP.

use roce::Packet;

/// A packet that came.
pub(crate) struct Arrived<'f> {
    pub(crate) packet: Packet<'f>,
    /// It may have come through a router: its source MAC address says nothing about the sender.
    pub(crate) is_routed: bool,
}
