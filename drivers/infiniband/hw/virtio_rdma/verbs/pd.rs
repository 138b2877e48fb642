// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use crate::{
    abi::{
        ctrl::{
            CmdCreatePd,
            CmdDestroyPd, //
        },
        number::Pdn, //
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
    number: Pdn,
}

impl Pd {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        let (response, ()) = super::create(device, &CmdCreatePd {}, ())?;
        Ok(Self {
            device: device.clone(),
            number: response.pdn,
        })
    }

    /// The device's handle.
    pub(super) fn number(&self) -> Pdn {
        self.number
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        super::destroy(&self.device, &CmdDestroyPd { pdn: self.number }, ());
    }
}
