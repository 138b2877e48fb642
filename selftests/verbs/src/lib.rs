// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! libibverbs in safe Rust, for the programs of this package and the bench.

// A memory region without memory is refused by libibverbs.
#[allow(clippy::len_without_is_empty)]
pub mod rdma;
