// SPDX-License-Identifier: GPL-2.0

// The abstractions as items of the driver's crate. The root of that crate includes this file when
// the driver is built out of the kernel's tree. In the tree, the abstractions are modules of the
// kernel crate, except the abstractions that exist only out of the tree.

#[allow(unsafe_code)]
mod bindings;
#[allow(dead_code, unreachable_pub, unsafe_code)]
#[path = "../kernel/dma_buf/mod.rs"]
mod dma_buf;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../kernel/net/mod.rs"]
mod net;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../kernel/peer_memory/mod.rs"]
mod peer_memory;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../kernel/rdma/mod.rs"]
mod rdma;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../kernel/sync/mod.rs"]
mod sync;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../kernel/trace_event/mod.rs"]
#[macro_use]
mod trace_event;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../kernel/virtio/mod.rs"]
#[macro_use]
mod virtio;
