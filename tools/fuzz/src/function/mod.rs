// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A PCI function for targets: a device that answers each request, and a model of the function's
//! registers.

mod bench;
mod common;
mod config;
mod device;
pub mod driver;
mod model;

pub use bench::{Bench, Step};
pub use common::Task;
pub use device::QUEUES;
pub use model::{Function, Raised, BARS, NOTIFY, VIRTIO};

use std::os::fd::OwnedFd;

use rustix::event::{eventfd, EventfdFlags};

/// One eventfd for each interrupt vector of the function.
pub fn eventfds() -> [OwnedFd; QUEUES.len() + 1] {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    [(); QUEUES.len() + 1].map(|()| eventfd(0, flags).expect("eventfd"))
}
