// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over the virtio bus.
//!
//! | module | content |
//! |---|---|
//! | [`adapter`] | driver registration |
//! | [`config`] | bounded reads of the device configuration |
//! | [`device`] | the device, its features and its life cycle |
//! | [`driver`] | the trait that a driver implements |
//! | [`id`] | device types and tables of them |
//! | [`recovery`] | reset of a device that failed, and a new probe |
//! | [`virtqueue`] | one virtqueue and the buffers in it |
//! | [`virtqueues`] | the virtqueues of a device: discovery, callbacks, teardown |
//! | [`shm`] | shared memory regions |
//!
//! C headers: [`include/linux/virtio.h`](srctree/include/linux/virtio.h),
//! [`include/linux/virtio_config.h`](srctree/include/linux/virtio_config.h)

pub mod adapter;
pub mod config;
pub mod device;
pub mod driver;
#[macro_use]
pub mod id;
pub mod recovery;
pub mod shm;
#[cfg(CONFIG_RUST_RDMA_KUNIT_TEST)]
pub(crate) mod tests;
pub mod virtqueue;
pub mod virtqueues;

pub use self::{
    adapter::Adapter,
    device::{
        Device,
        Feature,
        Health,
        Reset, //
    },
    driver::Driver,
    id::{
        DeviceId,
        IdTable,
        VirtioID, //
    },
    recovery::Recovery,
    shm::SharedMemory,
    virtqueue::{
        Buffer,
        Virtqueue, //
    },
    virtqueues::{
        Handler,
        VirtqueueInfo, //
    },
};
