// SPDX-License-Identifier: GPL-2.0

//! Rings in memory of a process.

use super::device::IbDevice;
use crate::{
    abi::{
        ring::{
            RingAddr,
            RingKind,
            RingLayout,
            PAGE_SHIFT_RANGE, //
        },
        uverbs, //
    },
    rdma::{
        self,
        mr::AccessFlags,
        page_list::PageList,
        umem::Umem, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// A ring whose memory belongs to a process, pinned and charged to it. The kernel never looks into it.
pub(super) struct UserRing {
    umem: Umem,
    layout: RingLayout,
}

impl UserRing {
    /// Pins the ring that a process describes, of at least `entries` slots of at least `slot_size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a ring that the ABI does not have, that is not page-aligned or is too small, and those of
    /// [`Umem::pin`].
    pub(super) fn pin(
        device: &rdma::Device<IbDevice>,
        kind: RingKind,
        ring: &uverbs::UserRing,
        entries: u32,
        slot_size: usize,
    ) -> Result<Self> {
        let layout = RingLayout::new(kind, ring.slots, ring.slot_shift).ok_or(EINVAL)?;
        let valid = ring.reserved == [0; 3]
            && ring.addr % PAGE_SIZE as u64 == 0
            && layout.slots() >= entries
            && layout.slot_size() as usize >= slot_size;
        if !valid {
            return Err(EINVAL);
        }
        // Always with the right to write: pinned read-only, a shared mapping of a file that the process may only read
        // would let it have the device write that file.
        let umem = Umem::pin(
            device,
            ring.addr,
            layout.size().into(),
            AccessFlags::LOCAL_WRITE,
        )?;
        Ok(Self { umem, layout })
    }

    /// What the device is told, and the list that it reads when the queue is created.
    pub(super) fn address(
        &mut self,
        device: &rdma::Device<IbDevice>,
    ) -> Result<(RingAddr, PageList)> {
        let supported = PAGE_SHIFT_RANGE.fold(0, |mask, shift| mask | 1 << shift);
        let page_shift = self.umem.best_page_shift(supported, 0)?;
        let npages = self.umem.page_count(page_shift)?;
        let pages = self.umem.pages(page_shift)?;
        let list = PageList::new(device.dma_device(), npages, pages)?;
        let address = RingAddr {
            pages: list.dma_address(),
            npages: u32::try_from(npages)?,
            slots: self.layout.slots(),
            page_shift,
            slot_shift: self.layout.slot_shift(),
            ..RingAddr::default()
        };
        Ok((address, list))
    }
}
