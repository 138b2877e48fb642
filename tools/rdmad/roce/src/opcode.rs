// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Transport services, and the position of a packet in its message (IBTA 9.2.1).

/// Opcode of a congestion notification (annex A17). Its service bits belong to none of the
/// services, but this crate treats it as RC, because only reliable connections react to it.
pub const CONGESTION_NOTIFICATION: u8 = 0x81;

/// Transport service of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several packets.
    First,
    /// A packet between the first and the last.
    Middle,
    /// The last of several packets.
    Last,
    /// The only packet of the message.
    Only,
}

impl Position {
    /// The position of a packet, `first` if it starts its message and `last` if it ends it.
    pub const fn of(first: bool, last: bool) -> Self {
        if first && last {
            Self::Only
        } else if first {
            Self::First
        } else if last {
            Self::Last
        } else {
            Self::Middle
        }
    }

    /// Whether the packet starts its message.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the packet ends its message.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}
