// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Workers that are threads, and workers that a test steps.

/// The way in which the workers of a runtime run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerKind {
    /// Each is a thread.
    #[default]
    Threads,
    /// They do what [`Runtime::step`](crate::Runtime::step) tells them to.
    Stepped,
}
