// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Virtio devices as PCI functions, served to a VM's monitor over vfio-user.
//!
//! A [`VirtioDevice`] says what the device is and does. [`Listener::start`] makes it a virtio-pci
//! function (virtio 1.3, section 4.1, without legacy parts) that a vfio-user client, such as QEMU's
//! `vfio-user-pci`, plugs into a VM. Each function has a socket, one client at a time, and two
//! threads:
//!
//! - the socket thread decodes messages and answers each at once. It never waits for the device's
//!   workers, since the client's posted writes, register reads and DMA_UNMAPs share one queue, and
//!   a guest whose read takes seconds gets all-ones. Only DMA_UNMAP waits, for the slice of work
//!   that holds the old map;
//! - the service thread runs what takes longer: activation, resets and the queues that the device
//!   leaves to it.
//!
//! No region can be mapped by the client: one that could would make the client wait for each
//! register write.

#![deny(unsafe_code)]

mod aio;
mod client;
mod client_stream;
mod common;
mod device;
mod function;
mod function_state;
mod interrupt;
mod irq_set;
mod later;
mod limiter;
mod message;
mod pci;
mod queue;
mod resets;
mod server;
mod service;
mod session;
#[cfg(feature = "testing")]
mod stepped;
#[cfg(test)]
mod testing;

pub use common::{
    F_ACCESS_PLATFORM, F_INDIRECT_DESC, F_ORDER_PLATFORM, F_RING_RESET, F_VERSION_1,
    TRANSPORT_FEATURES,
};
pub use device::{SharedMemory, VirtioDevice};
pub use later::send_interrupts;
pub use message::MAX_FDS;
pub use queue::{AvailableBuffer, Virtqueue};
pub use server::{Handle, Listener};
#[cfg(feature = "testing")]
pub use stepped::SteppedFunction;
