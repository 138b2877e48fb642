// SPDX-License-Identifier: GPL-2.0

//! C functions and constants that the kernel's bindings lack.

pub use stock::bindings::*;

/// The type of media devices, which virtio_ids.h lacks.
pub const VIRTIO_ID_MEDIA: u32 = 48;

#[cfg(lacks_barrier)]
extern "C" {
    /// A barrier between all accesses to memory.
    #[link_name = "virtio_rdma_shim_mb"]
    pub fn mb();
}
