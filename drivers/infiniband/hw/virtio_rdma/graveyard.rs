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
trait Remains: Send {}
impl<T: Send> Remains for T {}

#[derive(Default)]
struct Buried {
    remains: KVec<KBox<dyn Remains>>,
    /// Number of objects that were leaked immediately, because the list could not grow.
    lost: usize,
}

impl Drop for Buried {
    fn drop(&mut self) {
        // The device was never reset, so it may still use the objects.
        forget(take(&mut self.remains));
    }
}

/// The graveyard of a device.
#[pin_data]
pub(crate) struct Graveyard {
    #[pin]
    buried: Mutex<Buried>,
}

impl Graveyard {
    /// An empty graveyard.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            buried <- new_mutex!(Buried::default(), "virtio_rdma::graveyard"),
        })
    }

    /// Keeps `remains` until the device was reset.
    pub(crate) fn bury<T: Send + 'static>(&self, remains: T) {
        let mut buried = self.buried.lock();
        if buried.remains.reserve(1, GFP_KERNEL).is_err() {
            buried.lost += 1;
            forget(remains);
            return;
        }
        match KBox::new_uninit(GFP_KERNEL) {
            Ok(place) => {
                let grave = KBox::write(place, remains);
                // Reserved above.
                let _ = buried.remains.push_within_capacity(grave);
            }
            Err(_) => {
                buried.lost += 1;
                forget(remains);
            }
        }
    }

    /// Frees all kept memory if the reset is confirmed; else leaks it, with a warning for `dev`.
    pub(crate) fn clear(&self, dev: &device::Device, reset: Reset) {
        let mut buried = self.buried.lock();
        let remains = take(&mut buried.remains);
        let mut lost = take(&mut buried.lost);
        drop(buried);
        match reset {
            Reset::Done => drop(remains),
            Reset::Unreachable => {
                lost += remains.len();
                forget(remains);
            }
        }
        if lost != 0 {
            dev_warn!(
                dev,
                "memory of {} objects is leaked: the device did not confirm a reset\n",
                lost
            );
        }
    }
}
