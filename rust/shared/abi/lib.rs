// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Crate root of the virtio-rdma ABI for user space; the kernel module compiles `mod.rs` directly.

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[path = "mod.rs"]
mod abi;
pub use abi::*;
