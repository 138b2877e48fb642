// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Split virtqueues in guest memory (virtio 1.3, 2.7), as the device sees them: the addresses of
//! their parts, and their descriptor chains. The caller maintains the indices.
//!
//! The driver may write anything at any time, so this crate trusts nothing it reads: every access
//! is checked against the DMA map, and a chain has no more descriptors than its queue.

#![forbid(unsafe_code)]

mod chain;
mod ring;

pub use chain::{Buffer, Chain, ChainError};
pub use ring::{read, write, Split};
