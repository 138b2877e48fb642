// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use crate::{
    abi::ctrl::{
        CmdCreatePd,
        CmdDestroyPd, //
    },
    device::Device, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A PD.
pub(crate) struct Pd {
    device: Arc<Device>,
    number: u32,
}

impl Pd {
    pub(super) fn new(device: &Arc<Device>) -> impl PinInit<Self, Error> {
        let device = device.clone();
        pin_init::pin_init_scope(move || {
            let (response, ()) = super::create(&device, &CmdCreatePd {}, ())?;
            Ok::<_, Error>(Self {
                device,
                number: response.pdn,
            })
        })
    }

    /// The device's handle.
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        super::destroy(&self.device, &CmdDestroyPd { pdn: self.number }, ());
    }
}
