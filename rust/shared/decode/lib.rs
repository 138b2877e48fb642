// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Crate root for the tests on the host; the kernel module compiles `mod.rs` directly.

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use virtio_rdma_abi as abi;

#[path = "mod.rs"]
mod decode;
pub use decode::*;
