// SPDX-License-Identifier: GPL-2.0

//! Memory windows. Processes bind them by work requests, without the kernel.

use super::device::IbDevice;
use crate::{
    abi::{
        ctrl::{
            CmdAllocMw,
            CmdDeallocMw, //
        },
        ib,
        number::MwNumber, //
    },
    device::Device,
    rdma::{
        mw::{
            MemoryWindows,
            MwType,
            NewMw, //
        },
        pd::Pd, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A memory window.
pub(crate) struct Mw {
    device: Arc<Device>,
    number: MwNumber,
}

impl Drop for Mw {
    fn drop(&mut self) {
        super::destroy(&self.device, &CmdDeallocMw { mwn: self.number }, ());
    }
}

impl MemoryWindows for IbDevice {
    type Mw = Mw;

    fn alloc_mw(pd: &Pd<Self>, mw_type: MwType) -> Result<NewMw<Mw>> {
        let device = &pd.device().virtio;
        let mw_type = match mw_type {
            MwType::One => ib::MwType::One,
            MwType::Two => ib::MwType::Two,
        };
        let request = CmdAllocMw {
            pdn: pd.number(),
            mw_type: mw_type.value(),
            ..CmdAllocMw::default()
        };
        let (response, ()) = super::create(device, &request, ())?;
        Ok(NewMw {
            rkey: response.rkey,
            driver: Mw {
                device: device.clone(),
                number: response.mwn,
            },
        })
    }
}
