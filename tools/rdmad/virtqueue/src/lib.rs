// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Split virtqueues in guest memory (virtio 1.3, 2.7), as the device sees them: where their parts
//! are, and the chains of descriptors in them. The caller, which takes chains and gives them back,
//! keeps the indices.
//!
//! The driver may write anything at any time, so nothing here trusts what it reads: every access is
//! checked against the DMA map, and a chain ends after as many descriptors as the queue has.

#![forbid(unsafe_code)]

mod chain;
mod ring;

pub use chain::{Buffer, Chain, ChainError};
pub use ring::{read, write, Split};
