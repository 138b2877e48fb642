// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! GET_DMA_MR, REG_USER_MR, DEREG_MR.

use virtio_rdma_abi::ctrl::{CmdDeregMr, CmdGetDmaMr, CmdRegUserMr, Empty, RspMr};
use virtio_rdma_abi::ib::AccessFlags;

use super::DONE;
use crate::config::MR_PAGE_SHIFT;
use crate::error::{require, Errno, Result};
use crate::memory::{PageList, PageMap};
use crate::Device;

/// Rights that need something this device does not have.
const UNSUPPORTED: AccessFlags =
    AccessFlags(AccessFlags::MW_BIND.0 | AccessFlags::ZERO_BASED.0 | AccessFlags::ON_DEMAND.0);

/// Refuses rights that don't exist, and remote ones that imply a local one which is not given (IBTA 10.6.3.1).
fn check_access(access: AccessFlags) -> Result<()> {
    require(!access.has_unknown())?;
    if access.intersects(UNSUPPORTED) {
        return Err(Errno::OPNOTSUPP);
    }
    let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    require(!access.intersects(writes) || access.contains(AccessFlags::LOCAL_WRITE))
}

impl Device {
    pub(super) fn get_dma_mr(&self, cmd: CmdGetDmaMr) -> Result<RspMr> {
        check_access(cmd.access_flags)?;
        let pd = self.use_pd(cmd.pdn)?;
        let charge = self.mrs.reserve_pages(0)?;
        let (mrn, key) = self
            .mrs
            .insert(pd, cmd.access_flags, 0, PageMap::identity(), charge)?;
        Ok(RspMr {
            mrn,
            lkey: key,
            rkey: key,
        })
    }

    pub(super) fn reg_user_mr(&self, cmd: CmdRegUserMr) -> Result<RspMr> {
        check_access(cmd.access_flags)?;
        let pd = self.use_pd(cmd.pdn)?;
        let first_offset = cmd.start & ((1 << MR_PAGE_SHIFT) - 1);
        // The last byte has an address too.
        require(cmd.length > 0 && cmd.virt_addr.checked_add(cmd.length - 1).is_some())?;
        let charge = self.mrs.reserve_pages(cmd.npages.into())?;
        let list = PageList {
            iova: cmd.pages,
            npages: cmd.npages,
            page_shift: MR_PAGE_SHIFT,
        };
        let pages = PageMap::read(&self.space, list, first_offset, cmd.length)?;
        let (mrn, key) = self
            .mrs
            .insert(pd, cmd.access_flags, cmd.virt_addr, pages, charge)?;
        Ok(RspMr {
            mrn,
            lkey: key,
            rkey: key,
        })
    }

    pub(super) fn dereg_mr(&self, cmd: CmdDeregMr) -> Result<Empty> {
        if !self.destroy_mr(cmd.mrn) {
            return Err(Errno::INVAL);
        }
        Ok(DONE)
    }
}
