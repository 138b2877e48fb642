// SPDX-License-Identifier: GPL-2.0

//! Driver for virtio RDMA devices.
//!
//! `unsafe` is confined to the abstractions of the subsystems that this driver uses: [`bindings`], [`net`],
//! [`rdma`] and [`virtio`] know nothing of virtio-rdma, and the driver has none of its own.

#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

// The ABI and the ring logic also serve the device and the provider, who use more of them.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../../rust/abi/mod.rs"]
mod abi;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../../rust/ring/mod.rs"]
mod ring;

#[allow(unsafe_code)]
#[path = "../../../../rust/bindings/mod.rs"]
mod bindings;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../../../../rust/net/mod.rs"]
mod net;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../../../../rust/rdma/mod.rs"]
mod rdma;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../../../../rust/virtio/mod.rs"]
mod virtio;

use kernel::prelude::*;

module! {
    type: Module,
    name: "virtio_rdma",
    authors: ["The virtio-rdma authors"],
    description: "RDMA over virtio",
    license: "GPL",
}

struct Module;

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        pr_info!("loaded\n");
        Ok(Self)
    }
}
