// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use super::device::IbDevice;
use crate::{
    abi::{
        ctrl::{
            CmdCreatePd,
            CmdDestroyPd, //
        },
        number::Pdn, //
    },
    device::Device,
    rdma::{
        self,
        pd::ProtectionDomains, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

pub(crate) struct Pd {
    device: Arc<Device>,
    number: Pdn,
}

impl Pd {
    pub(super) fn number(&self) -> Pdn {
        self.number
    }
}

impl ProtectionDomains for IbDevice {
    type Pd = Pd;

    fn alloc_pd(this: &rdma::Device<Self>) -> Result<Pd> {
        let (response, ()) = super::create(&this.virtio, &CmdCreatePd {}, ())?;
        Ok(Pd {
            device: this.virtio.clone(),
            number: response.pdn,
        })
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        super::destroy(&self.device, &CmdDestroyPd { pdn: self.number }, ());
    }
}
