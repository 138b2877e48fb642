// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Numbers of ports and uplinks.

/// The index of a port in the tables of the switch. Ports of the initial configuration have the
/// first indices, in order. The index of a removed port is free for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PortIndex(pub(crate) usize);

/// The number of an uplink, in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UplinkIndex(pub(crate) usize);

/// The index of a source of frames: of a port, or of an uplink, which follow all ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceIndex(pub(crate) usize);
