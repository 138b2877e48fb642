// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Kinds of threads.

use std::fmt;

/// A kind of thread, which determines the system calls that it may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first thread. It starts all other threads and waits for a signal that ends the daemon.
    Main,
    /// Writes the log to standard error.
    Log,
    /// Serves the queues of all ports.
    Worker,
    /// Serves the vfio-user socket of a port.
    Socket,
    /// Executes the control commands and resets of a port.
    Service,
    /// Forwards frames, and does work of sleeping workers.
    Switch,
    /// Writes the capture file.
    Capture,
    /// Reports the status of the daemon.
    Status,
    /// Executes the requests of the administrator.
    Control,
    /// The only thread of the broker, a separate process that accesses paths for the daemon.
    Broker,
}

impl Kind {
    /// The kinds of the daemon's own threads, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Main,
        Self::Log,
        Self::Worker,
        Self::Socket,
        Self::Service,
        Self::Switch,
        Self::Capture,
        Self::Status,
        Self::Control,
    ];

    /// The kind's name, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Log => "log",
            Self::Worker => "worker",
            Self::Socket => "socket",
            Self::Service => "service",
            Self::Switch => "switch",
            Self::Capture => "capture",
            Self::Status => "status",
            Self::Control => "control",
            Self::Broker => "broker",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
