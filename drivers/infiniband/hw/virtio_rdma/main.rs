// SPDX-License-Identifier: GPL-2.0

//! Driver for virtio RDMA devices.
//!
//! The driver has no `unsafe` code. It uses abstractions of subsystems, which have `unsafe` code:
//! [`bindings`], [`net`], [`rdma`], [`sync`] and [`virtio`]. None of these is specific to
//! virtio-rdma.

#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(OUT_OF_TREE)]
include!("../../../../rust/kbuild/outside.rs");
#[cfg(not(OUT_OF_TREE))]
use kernel::{
    bindings,
    net,
    rdma,
    sync,
    virtio, //
};

// The device and the provider compile this module too, and use items that the driver does not use.
#[allow(clippy::wrong_self_convention, dead_code, unreachable_pub)]
mod abi;
// Checks of data that the device writes. Tests on the host compile them too.
#[allow(unreachable_pub)]
mod decode;
mod ring;

mod ctrl;
mod debugfs;
mod device;
mod doorbell;
mod driver;
mod event_handlers;
mod events;
mod leaving;
mod lifecycle;
mod limits;
mod netdev;
mod quarantine;
mod sent_command;
mod trace;
mod transport;
mod unbinding;
mod verbs;

use kernel::prelude::*;

/// The module, which registers the driver while it is loaded.
#[pin_data]
struct Module {
    #[pin]
    _driver: kernel::driver::Registration<virtio::Adapter<driver::Driver>>,
}

impl kernel::InPlaceModule for Module {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        #[cfg(OUT_OF_TREE)]
        peer_memory::start();
        try_pin_init!(Self {
            _driver <- kernel::driver::Registration::new(
                <Self as kernel::ModuleMetadata>::NAME,
                module,
            ),
        })
    }
}

module! {
    type: Module,
    name: "virtio_rdma",
    authors: ["The virtio-rdma authors"],
    description: "RDMA over virtio",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
}
