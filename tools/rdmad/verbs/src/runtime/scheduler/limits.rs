// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Numbers of workers and ports.

/// Workers of a runtime at most.
pub const MAX_WORKERS: usize = 64;
/// Ports of a runtime at most.
pub const MAX_PORTS: u32 = 4096;
