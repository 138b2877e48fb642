// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Transport services, and the place of a packet in its message (IBTA 9.2.1).

/// A congestion notification (annex A17). Its transport service is its own, but here it counts as
/// one of reliable connections, since no others react to it.
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

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// The position of a packet that starts its message, ends it, both or neither.
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

    /// Whether the message starts here.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}
