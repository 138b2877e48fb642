// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Kinds of worker: threads, and workers that a test steps.

/// How the workers of a runtime run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerKind {
    /// Each worker is a thread.
    #[default]
    Threads,
    /// Calls of [`Runtime::step`](crate::Runtime::step) run the workers, and so do threads that
    /// stand in.
    Stepped,
}
