// SPDX-License-Identifier: GPL-2.0

//! Numbers of processes.

pub use stock::task::*;

/// The process of a [`Task`].
pub trait Tgid {
    /// The number of the task's process (thread group).
    fn tgid(&self) -> Pid;
}

impl Tgid for Task {
    #[inline]
    fn tgid(&self) -> Pid {
        // SAFETY: The task is valid, and the field does not change.
        unsafe { (*self.as_ptr()).tgid }
    }
}
