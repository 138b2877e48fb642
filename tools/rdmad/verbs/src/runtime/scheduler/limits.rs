// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Largest numbers of workers and ports.

/// Most workers of a runtime.
pub const MAX_WORKERS: usize = 64;
/// Most ports of a runtime.
pub const MAX_PORTS: u32 = 4096;
