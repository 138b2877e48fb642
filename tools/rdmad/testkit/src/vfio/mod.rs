// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A vfio-user client, and a virtio driver that uses it.

mod client;
mod driver;
pub mod message;

pub use client::Client;
pub use driver::{
    descriptor, reg, ring_at, Driver, AVAIL, DATA, MEMORY, MEMORY_AT, TRANSPORT, USED,
};
