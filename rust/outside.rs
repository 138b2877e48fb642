// SPDX-License-Identifier: GPL-2.0

// Included by the driver's root when it is built out of the kernel's tree, as items of that crate:
// the abstractions, which are modules of the kernel crate in the tree, and those that exist here
// only.

#[allow(unsafe_code)]
mod bindings;
#[allow(dead_code, unreachable_pub, unsafe_code)]
mod dma_buf;
#[allow(unreachable_pub, unsafe_code)]
mod net;
#[allow(unreachable_pub, unsafe_code)]
mod peers;
#[allow(unreachable_pub, unsafe_code)]
mod rdma;
#[allow(unreachable_pub, unsafe_code)]
mod sync;
#[allow(unreachable_pub, unsafe_code)]
#[macro_use]
mod virtio;
