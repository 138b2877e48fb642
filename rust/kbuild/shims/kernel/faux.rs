// SPDX-License-Identifier: GPL-2.0

//! Bound devices of the faux bus.

use core::ptr;
use stock::{
    device::{
        self,
        Bound,
        DeviceContext,
        Normal, //
    },
    error::Result,
    prelude::CStr, //
};

/// A device of the faux bus.
#[repr(transparent)]
pub struct Device<C: DeviceContext = Normal>(device::Device<C>);

impl<C: DeviceContext> AsRef<device::Device<C>> for Device<C> {
    #[inline]
    fn as_ref(&self) -> &device::Device<C> {
        &self.0
    }
}

/// A registered device.
pub struct Registration(stock::faux::Registration);

impl Registration {
    /// Registers a device.
    #[inline]
    pub fn new(name: &CStr, parent: Option<&device::Device>) -> Result<Self> {
        stock::faux::Registration::new(name, parent).map(Self)
    }
}

impl AsRef<Device<Bound>> for Registration {
    #[inline]
    fn as_ref(&self) -> &Device<Bound> {
        let device: &device::Device = self.0.as_ref();
        // SAFETY: `Device` is transparent, and a `device::Device` has one layout in all contexts.
        // The only driver of the bus matches each device when it is registered, and processes can't
        // unbind it.
        unsafe { &*ptr::from_ref(device).cast() }
    }
}
