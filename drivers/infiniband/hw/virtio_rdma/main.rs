// SPDX-License-Identifier: GPL-2.0

//! Driver for virtio RDMA devices.
//!
//! `unsafe` is confined to the abstractions of the subsystems that this driver uses: [`bindings`],
//! [`dma_buf`], [`net`], [`rdma`], [`sync`] and [`virtio`] know nothing of virtio-rdma, and the
//! driver has none of its own.

#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

// The ABI and the ring logic also serve the device and the provider, who use more of them.
#[allow(clippy::wrong_self_convention, dead_code, unreachable_pub)]
#[path = "../../../../rust/abi/mod.rs"]
mod abi;
#[path = "../../../../rust/ring/mod.rs"]
mod ring;

// Checks of what the device writes. The host's tests compile them too.
#[allow(unreachable_pub)]
#[path = "../../../../rust/decode/mod.rs"]
mod decode;

#[allow(unsafe_code)]
#[path = "../../../../rust/bindings/mod.rs"]
mod bindings;
#[allow(dead_code, unreachable_pub, unsafe_code)]
#[path = "../../../../rust/dma_buf/mod.rs"]
mod dma_buf;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../../../../rust/net/mod.rs"]
mod net;
#[allow(unsafe_code)]
#[path = "../../../../rust/rdma/mod.rs"]
mod rdma;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../../../../rust/sync/mod.rs"]
mod sync;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../../../../rust/virtio/mod.rs"]
mod virtio;

mod ctrl;
mod device;
mod doorbell;
mod driver;
mod events;
mod graveyard;
mod limits;
mod netdev;
mod targets;
mod transport;
mod verbs;

use kernel::prelude::*;

/// The module: a driver, and the peers that other modules register.
#[pin_data]
struct Module {
    #[pin]
    _driver: kernel::driver::Registration<virtio::Adapter<driver::Driver>>,
}

impl kernel::InPlaceModule for Module {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        rdma::peer::start();
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
