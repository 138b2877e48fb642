// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! GET_DMA_MR, REG_USER_MR, REREG_MR, CREATE_MR, MAP_MR_SG, DEREG_MR, REVOKE_MR.

use std::sync::Arc;

use virtio_rdma_abi::ctrl::{
    CmdCreateMr, CmdDeregMr, CmdGetDmaMr, CmdMapMrSg, CmdRegUserMr, CmdRegUserMrPages, CmdReregMr,
    CmdRevokeMr, Empty, PageListDepth, ReregFlags, RspMapMrSg, RspMr,
};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::MrNumber;

use super::DONE;
use crate::config::{MR_PAGE_SHIFT, MR_PAGE_SHIFTS};
use crate::error::{
    at_least, at_most, bits, defined, end, refusal, reserved, within, Reason, Result, What,
};
use crate::memory::{check_access, Mapped, MrCharge, PageList, PageMap, Region};
use crate::Hca;

impl Hca {
    pub(super) fn get_dma_mr(&self, cmd: CmdGetDmaMr) -> Result<RspMr> {
        check_access(cmd.access_flags, self.optional_access_flags())?;
        let pd = self.use_pd(cmd.pdn)?;
        let charge = self.objects.mrs.charge(0)?;
        let pages = PageMap::identity(self.budget())?;
        self.objects
            .mrs
            .insert(pd, cmd.access_flags, 0, pages, charge)
            .map(response)
    }

    pub(super) fn reg_user_mr(&self, cmd: CmdRegUserMr) -> Result<RspMr> {
        let list = PageList {
            iova: cmd.pages,
            npages: cmd.npages,
            page_shift: MR_PAGE_SHIFT,
            depth: PageListDepth::Flat,
        };
        self.reg_mr(&cmd, list, cmd.start)
    }

    pub(super) fn reg_user_mr_pages(&self, cmd: CmdRegUserMrPages) -> Result<RspMr> {
        let list = page_list(&cmd)?;
        self.reg_mr(&cmd.base, list, cmd.base.virt_addr)
    }

    pub(super) fn rereg_mr(&self, cmd: CmdReregMr) -> Result<Empty> {
        let changes = |flag| cmd.flags.contains(flag);
        bits(What::Flags, cmd.flags.0, ReregFlags::ALL.0)?;
        at_least(What::Flags, cmd.flags.0, 1u8)?;
        let new = &cmd.memory.base;
        let (mut pd, old) = self.objects.mrs.current(cmd.mrn)?;
        if changes(ReregFlags::PD) {
            pd = self.use_pd(new.pdn)?;
        }
        let mut access = old.access();
        if changes(ReregFlags::ACCESS) {
            check_access(new.access_flags, self.optional_access_flags())?;
            access = new.access_flags;
        }
        let (region, charge) = if changes(ReregFlags::TRANSLATION) {
            let list = page_list(&cmd.memory)?;
            let (pages, charge) = self.pages_of(new, list, new.virt_addr, access)?;
            let region = Region::new(old.key(), access, new.virt_addr, Arc::new(pages));
            (region, Some(charge))
        } else {
            let writes = access.contains(AccessFlags::LOCAL_WRITE);
            old.pages().reach(&self.space, writes)?;
            let moved = refusal(Reason::Unsuitable, What::AccessFlags, access.0);
            (old.with_access(access).ok_or(moved)?, None)
        };
        self.objects.mrs.replace(cmd.mrn, pd, region, charge)?;
        self.runtime().scheduler.quiesce.synchronize();
        self.objects.mrs.replaced(cmd.mrn);
        Ok(DONE)
    }

    /// Registers the pages of `list` as the MR that `cmd` describes. The offset of the MR in the
    /// first page is the page offset of address `first`.
    fn reg_mr(&self, cmd: &CmdRegUserMr, list: PageList, first: u64) -> Result<RspMr> {
        check_access(cmd.access_flags, self.optional_access_flags())?;
        let pd = self.use_pd(cmd.pdn)?;
        let (pages, charge) = self.pages_of(cmd, list, first, cmd.access_flags)?;
        self.objects
            .mrs
            .insert(pd, cmd.access_flags, cmd.virt_addr, pages, charge)
            .map(response)
    }

    /// Reads the pages of `list` for the MR that `cmd` describes, and checks that the VM's memory
    /// permits `access`. The offset of the MR in the first page is the page offset of address
    /// `first`.
    fn pages_of(
        &self,
        cmd: &CmdRegUserMr,
        list: PageList,
        first: u64,
        access: AccessFlags,
    ) -> Result<(PageMap, MrCharge)> {
        let offset = self.check_range(&list, first, cmd.virt_addr, cmd.length)?;
        let charge = self.objects.mrs.charge(list.npages.into())?;
        let pages = PageMap::read(self.budget(), &self.space, list, offset, cmd.length)?;
        pages.reach(&self.space, access.contains(AccessFlags::LOCAL_WRITE))?;
        Ok((pages, charge))
    }

    pub(super) fn create_mr(&self, cmd: CmdCreateMr) -> Result<RspMr> {
        check_access(cmd.access_flags, AccessFlags::NONE)?;
        let pd = self.use_pd(cmd.pdn)?;
        let max_pages = self.config().limits.max_fast_reg_pages;
        within(What::MaxNumSg, cmd.max_num_sg, &(1..=max_pages))?;
        // Without RegPages, an MR may have two page lists: the registered one, and the one that
        // MAP_MR_SG set for the next registration. One more MAP_MR_SG reads a third list before it
        // replaces the second.
        let (lists, maps) = if self.has_feature(Feature::RegPages) {
            (1, 1)
        } else {
            (2, 3)
        };
        let charge = self.objects.mrs.charge(lists * u64::from(cmd.max_num_sg))?;
        self.objects
            .mrs
            .insert_fast(pd, cmd.max_num_sg, maps, charge)
            .map(response)
    }

    pub(super) fn map_mr_sg(&self, cmd: CmdMapMrSg) -> Result<RspMapMrSg> {
        let list = PageList {
            iova: cmd.pages,
            npages: cmd.npages,
            page_shift: MR_PAGE_SHIFT,
            depth: PageListDepth::Flat,
        };
        let (max_pages, maps) = self.objects.mrs.fast_limits(cmd.mrn)?;
        at_most(What::Npages, cmd.npages, max_pages)?;
        let offset = self.check_range(&list, cmd.start, cmd.start, cmd.length)?;
        let pages = PageMap::read(&maps, &self.space, list, offset, cmd.length)?;
        pages.reach(&self.space, false)?;
        let mapped = Mapped {
            base: cmd.start,
            pages: Arc::new(pages),
        };
        self.objects.mrs.map(cmd.mrn, mapped)?;
        Ok(RspMapMrSg { npages: cmd.npages })
    }

    pub(super) fn dereg_mr(&self, cmd: CmdDeregMr) -> Result<Empty> {
        self.destroy_mr(cmd.mrn)?;
        Ok(DONE)
    }

    pub(super) fn revoke_mr_command(&self, cmd: CmdRevokeMr) -> Result<Empty> {
        self.revoke_mr(cmd.mrn)?;
        Ok(DONE)
    }

    /// The access flags that negotiated features add. They never include `FLUSH_PERSISTENT`, since
    /// the memory of a VM is not persistent.
    fn optional_access_flags(&self) -> AccessFlags {
        self.negotiated()
            .iter()
            .fold(AccessFlags::NONE, |all, feature| {
                all | feature.access_flags()
            })
            .without(AccessFlags::FLUSH_PERSISTENT)
    }

    /// Checks that `list` has exactly the pages of an MR of `len` bytes at address `base`. Returns
    /// the offset of the MR in the first page, which is the page offset of address `first`.
    pub(crate) fn check_range(
        &self,
        list: &PageList,
        first: u64,
        base: u64,
        len: u64,
    ) -> Result<u64> {
        // The address of the last byte must not overflow.
        at_least(What::Length, len, 1u8)?;
        end(What::VirtAddr, base, len - 1)?;
        at_most(What::Length, len, self.config().max_mr_size())?;
        list.fits(first, len)
    }
}

fn page_list(cmd: &CmdRegUserMrPages) -> Result<PageList> {
    within(What::PageShift, cmd.page_shift, &MR_PAGE_SHIFTS)?;
    reserved(&cmd.reserved)?;
    Ok(PageList {
        iova: cmd.base.pages,
        npages: cmd.base.npages,
        page_shift: cmd.page_shift,
        depth: defined(What::Depth, cmd.depth)?,
    })
}

/// The response to a command that created an MR.
fn response((mrn, key): (MrNumber, u32)) -> RspMr {
    RspMr {
        mrn,
        lkey: key,
        rkey: key,
    }
}
