// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Send work requests that change keys of their own HCA: REG_MR, BIND_MW, LOCAL_INV, and RDMA
//! READ with invalidate.
//!
//! A REG_MR takes effect when its WQE is fetched, before the WQEs after it are checked. Its MR is
//! free until then, so no earlier work request can use the MR. A BIND_MW takes effect when the work
//! requests before it have been executed: only peers use its key, which they learn from later
//! messages. An invalidation waits until all earlier work requests are complete, and no later WQE
//! is fetched before the invalidation is complete.

use std::sync::Arc;

use roce::work::{WcReason, WcResult};
use virtio_rdma_abi::ctrl::PageListDepth;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, WrOpcode};
use virtio_rdma_abi::number::Pdn;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{BindMw, Member, Reg, RegPages, SqHeader};

use super::RequesterTurn;
use crate::config::MR_PAGE_SHIFTS;
use crate::error::{at_most, reserved, within, Reason, Refusal, Result, What};
use crate::memory::{check_access, KeyFault, Mapped, MwBind, PageList, PageMap, RegWr};
use crate::wqe::{PostedSend, Snapshots};

impl RequesterTurn<'_> {
    /// Executes a REG_MR that was just fetched.
    pub(super) fn register(&self, wqe: &[u8]) -> WcResult {
        let header = SqHeader::get(&wqe[..SqHeader::SIZE]);
        let wanted = if self.hca.has_feature(Feature::RegPages) {
            self.with_pages(&RegPages::load(&header.wr))
        } else {
            registration(&Reg::load(&header.wr), None)
        };
        wanted
            .map_err(fault)
            .and_then(|wanted| self.hca.objects.mrs.register(self.pdn(), wanted))
            .map_err(KeyFault::change)
    }

    /// Executes a BIND_MW or LOCAL_INV in the order of the SQ. A REG_MR has taken effect when it
    /// was fetched.
    pub(crate) fn execute_local(&self, snapshots: &Snapshots, posted: &PostedSend) -> WcResult {
        if posted.is_registration() {
            return Ok(());
        }
        let header = SqHeader::get(&snapshots.get(posted.snapshot)[..SqHeader::SIZE]);
        if header.opcode == WrOpcode::BindMw.value() {
            return self.bind(&BindMw::load(&header.wr));
        }
        self.invalidate(u32::from_le_bytes(header.ex))
    }

    /// Binds a memory window.
    fn bind(&self, bind: &BindMw) -> WcResult {
        let wanted = MwBind {
            old_key: bind.mw_rkey,
            new_key: bind.rkey,
            access: bind.access,
            addr: bind.addr,
            len: bind.length,
        };
        reserved(&bind.reserved)
            .map_err(fault)
            .and_then(|()| self.qp.bind(self.hca, bind.lkey, &wanted))
            .map_err(KeyFault::change)
    }

    /// Invalidates a local key.
    pub(super) fn invalidate(&self, key: u32) -> WcResult {
        self.qp.invalidate(self.hca, key).map_err(KeyFault::change)
    }

    fn with_pages(&self, reg: &RegPages) -> Result<RegWr> {
        within(What::PageShift, reg.page_shift, &MR_PAGE_SHIFTS)?;
        reserved(&reg.reserved)?;
        let (max_pages, maps) = self.hca.objects.mrs.fast_limits(reg.base.mrn)?;
        at_most(What::Npages, reg.npages, max_pages)?;
        let list = PageList {
            iova: reg.pages,
            npages: reg.npages,
            page_shift: reg.page_shift,
            depth: PageListDepth::Flat,
        };
        // Bytes for each page: 8 for the address in the list, and 16 for an extent of the page map.
        self.budget.charge_bytes(reg.npages as usize * 24);
        let offset = self
            .hca
            .check_range(&list, reg.iova, reg.iova, reg.length)?;
        let pages = PageMap::read(&maps, &self.hca.space, list, offset, reg.length)?;
        let mapped = Mapped {
            base: reg.iova,
            pages: Arc::new(pages),
        };
        registration(&reg.base, Some(mapped))
    }

    fn pdn(&self) -> Pdn {
        self.qp.init.pd.number()
    }
}

fn registration(reg: &Reg, pages: Option<Mapped>) -> Result<RegWr> {
    check_access(reg.access, AccessFlags::NONE)?;
    Ok(RegWr {
        number: reg.mrn,
        key: reg.key,
        access: reg.access,
        pages,
    })
}

/// The reason for which the device refuses to register or bind a key.
fn fault(refusal: Refusal) -> KeyFault {
    KeyFault(match (refusal.what, refusal.reason) {
        (What::Mrn, Reason::NoSuch) => WcReason::NoSuchKey,
        (What::Mrn, _) => WcReason::UnsuitableKey,
        (What::AccessFlags, _) => WcReason::BadAccessFlags,
        (What::Reserved, _) => WcReason::ReservedNotZero,
        _ => WcReason::BadPages,
    })
}
