// SPDX-License-Identifier: GPL-2.0

// The abstractions as items of the driver's crate. The root of that crate includes this file when
// the driver is built out of the kernel's tree. In the tree, the abstractions are modules of the
// kernel crate, except the abstractions that exist only out of the tree.

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
