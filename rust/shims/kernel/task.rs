// SPDX-License-Identifier: GPL-2.0

//! Numbers of processes.

pub use stock::task::*;

/// A [`Task`] that tells its process.
pub trait Tgid {
    /// The number of the process that the task is a thread of.
    fn tgid(&self) -> Pid;
}

impl Tgid for Task {
    #[inline]
    fn tgid(&self) -> Pid {
        // SAFETY: The task is valid, and the field does not change.
        unsafe { (*self.as_ptr()).tgid }
    }
}
