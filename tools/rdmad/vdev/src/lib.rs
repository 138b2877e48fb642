// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Virtio devices as PCI functions, served to a VM's monitor over vfio-user.
//!
//! A [`VirtioDevice`] implements a device. [`Listener::start`] makes it a virtio-pci function
//! (virtio 1.3, section 4.1, without legacy parts) that a vfio-user client, such as QEMU's
//! `vfio-user-pci`, plugs into a VM. Each function has a socket, one client at a time, and two
//! threads:
//!
//! - The socket thread decodes messages and answers each at once. It does not wait for the device's
//!   workers: the client sends posted writes, register reads and DMA_UNMAPs in one queue, and a
//!   guest reads all-ones if a register read takes seconds. DMA_UNMAP is the exception: it waits
//!   until no worker uses the old DMA map any more.
//! - The service thread executes longer work: activation, resets and the queues that the device
//!   does not serve by its own threads. It also sends interrupts, if the client makes them take
//!   long.
//!
//! The client can't map any region: it would wait for a reply to each write to a mappable region.

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
mod record;
mod reply_pipe;
mod resets;
mod saved;
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
pub use interrupt::InterruptStats;
pub use later::send_interrupts;
pub use message::MAX_FDS;
pub use queue::{AvailableBuffer, Virtqueue};
pub use record::{name_words, Records, MAX_NAME};
pub use saved::Saved;
pub use server::{Handle, Listener, ServerPool};
#[cfg(feature = "testing")]
pub use stepped::SteppedFunction;
