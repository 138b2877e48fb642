// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Largest numbers of workers and ports.

/// Maximum number of workers of a runtime.
pub const MAX_WORKERS: usize = 64;
/// Maximum number of ports of a runtime.
pub const MAX_PORTS: u32 = 4096;
