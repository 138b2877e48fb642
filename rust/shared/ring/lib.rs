// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Crate root of the ring logic for user space; the kernel module compiles `mod.rs` directly.

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(any(test, loom))]
extern crate std;

use virtio_rdma_abi as abi;

#[path = "mod.rs"]
mod ring;
pub use ring::*;
