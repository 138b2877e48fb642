// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A safe interface to libibverbs, for the programs of this package and the bench.

// `Mr` needs no `is_empty`: libibverbs refuses a memory region of length 0.
#[allow(clippy::len_without_is_empty)]
pub mod rdma;
