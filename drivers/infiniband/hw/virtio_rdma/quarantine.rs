// SPDX-License-Identifier: GPL-2.0

//! Memory that a device may still use, since it never confirmed the destruction of its owner.
//!
//! The memory is kept until the device was reset. If the reset can't be confirmed either, the
//! memory is leaked, since the device might write to it when it has another owner. The memory is
//! also leaked if a PCI function was unplugged without notice: registers that read as all ones do
//! not prove that all earlier writes of the function have reached memory.
//!
//! Other drivers may call back a leaked object only if the object keeps this module loaded.
//! [`LingeringDmabuf`](crate::rdma::dmabuf::LingeringDmabuf) is such an object.

use crate::virtio::Reset;
use core::mem::{
    forget,
    take, //
};
use kernel::{
    device,
    prelude::*,
    sync::{
        new_mutex,
        Mutex, //
    },
};

/// Anything that owns memory.
trait MemoryOwner: Send {}
impl<T: Send> MemoryOwner for T {}

#[derive(Default)]
struct Quarantined {
    owners: KVec<KBox<dyn MemoryOwner>>,
    /// Number of objects that were leaked immediately, because the list could not grow.
    leaked: usize,
}

impl Drop for Quarantined {
    fn drop(&mut self) {
        // The device was never reset, so it may still use the objects.
        forget(take(&mut self.owners));
    }
}

/// The quarantine of a device.
#[pin_data]
pub(crate) struct Quarantine {
    #[pin]
    quarantined: Mutex<Quarantined>,
}

impl Quarantine {
    /// An empty quarantine.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            quarantined <- new_mutex!(Quarantined::default(), "virtio_rdma::quarantine"),
        })
    }

    /// Keeps `owner` until the device was reset.
    pub(crate) fn add<T: Send + 'static>(&self, owner: T) {
        let mut quarantined = self.quarantined.lock();
        if quarantined.owners.reserve(1, GFP_KERNEL).is_err() {
            quarantined.leaked += 1;
            forget(owner);
            return;
        }
        match KBox::new_uninit(GFP_KERNEL) {
            Ok(place) => {
                let owner = KBox::write(place, owner);
                // Reserved above.
                let _ = quarantined.owners.push_within_capacity(owner);
            }
            Err(_) => {
                quarantined.leaked += 1;
                forget(owner);
            }
        }
    }

    /// Frees all kept memory if the reset is confirmed; else leaks it, with a warning for `dev`.
    pub(crate) fn clear(&self, dev: &device::Device, reset: Reset) {
        let mut quarantined = self.quarantined.lock();
        let owners = take(&mut quarantined.owners);
        let mut leaked = take(&mut quarantined.leaked);
        drop(quarantined);
        match reset {
            Reset::Done => drop(owners),
            Reset::Unreachable => {
                leaked += owners.len();
                forget(owners);
            }
        }
        if leaked != 0 {
            dev_warn!(
                dev,
                "memory of {} objects is leaked: the device did not confirm a reset\n",
                leaked
            );
        }
    }
}
