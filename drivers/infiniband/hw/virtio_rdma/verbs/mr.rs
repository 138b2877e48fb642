// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use super::device::IbDevice;
use crate::{
    abi::{
        ctrl::{
            CmdDeregMr,
            CmdGetDmaMr,
            CmdRegUserMr,
            RspMr, //
        },
        ib, //
    },
    device::Device,
    rdma::{
        mr::{
            AccessFlags,
            MemoryRegions,
            NewMr,
            UserMemory, //
        },
        page_list::PageList,
        pd::Pd,
        umem::Umem, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// REG_USER_MR takes lists of 4 KiB pages.
pub(super) const PAGE_SHIFT: u8 = 12;

/// The rights that MRs of this device can give, and its QPs admit.
pub(super) const SUPPORTED: ib::AccessFlags = ib::AccessFlags(
    ib::AccessFlags::LOCAL_WRITE.0
        | ib::AccessFlags::REMOTE_WRITE.0
        | ib::AccessFlags::REMOTE_READ.0
        | ib::AccessFlags::REMOTE_ATOMIC.0,
);

/// Hints that change nothing here: pages are looked up one by one in any case.
const HINTS: ib::AccessFlags = ib::AccessFlags::HUGETLB;

/// The rights as the device takes them.
///
/// # Errors
///
/// `EOPNOTSUPP` for those that it does not know.
fn access_flags(access: AccessFlags) -> Result<ib::AccessFlags> {
    let access = ib::AccessFlags(access.without(AccessFlags::OPTIONAL).0).without(HINTS);
    SUPPORTED
        .contains(access)
        .then_some(access)
        .ok_or(EOPNOTSUPP)
}

/// An MR.
pub(crate) struct Mr {
    device: Arc<Device>,
    number: u32,
    /// The memory, of an MR over a process's.
    umem: Option<Umem>,
}

impl Mr {
    fn new(device: &Arc<Device>, response: RspMr, umem: Option<Umem>) -> NewMr<Self> {
        NewMr {
            lkey: response.lkey,
            rkey: response.rkey,
            driver: Self {
                device: device.clone(),
                number: response.mrn,
                umem,
            },
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let request = CmdDeregMr { mrn: self.number };
        super::destroy(&self.device, &request, self.umem.take());
    }
}

impl MemoryRegions for IbDevice {
    type Mr = Mr;

    fn get_dma_mr(pd: &Pd<Self>, access: AccessFlags) -> Result<NewMr<Mr>> {
        let device = &pd.device().device;
        let request = CmdGetDmaMr {
            pdn: pd.number(),
            access_flags: access_flags(access)?,
        };
        let (response, ()) = super::create(device, &request, ())?;
        Ok(Mr::new(device, response, None))
    }

    fn reg_user_mr(pd: &Pd<Self>, memory: &UserMemory) -> Result<NewMr<Mr>> {
        let ib_device = pd.device();
        let device = &ib_device.device;
        let access_flags = access_flags(memory.access)?;
        let offset = (1u64 << PAGE_SHIFT) - 1;
        if memory.length == 0 || (memory.start ^ memory.iova) & offset != 0 {
            return Err(EINVAL);
        }
        if memory.length > ib_device.max_mr_size() {
            return Err(EINVAL);
        }
        let umem = Umem::pin(ib_device, memory.start, memory.length, memory.access)?;
        let npages = umem.page_count(PAGE_SHIFT)?;
        let list = PageList::new(ib_device.dma_device(), npages, umem.pages(PAGE_SHIFT)?)?;
        let request = CmdRegUserMr {
            pdn: pd.number(),
            access_flags,
            start: memory.start,
            length: memory.length,
            virt_addr: memory.iova,
            pages: list.dma_address(),
            npages: u32::try_from(npages)?,
        };
        // The device copies the list before it answers.
        let (response, (umem, _list)) = super::create(device, &request, (umem, list))?;
        Ok(Mr::new(device, response, Some(umem)))
    }
}
