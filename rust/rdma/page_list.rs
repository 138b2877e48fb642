// SPDX-License-Identifier: GPL-2.0

//! Lists of DMA addresses that a device reads.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use kernel::{
    device::{
        self,
        Bound, //
    },
    dma::{
        Coherent,
        CoherentBox,
        DmaAddress, //
    },
    prelude::*, //
};

/// DMA addresses of pages, each a little-endian 64-bit word, in contiguous memory of its own.
pub struct PageList(Coherent<[u64]>);

impl PageList {
    /// Greatest number of addresses: as many as 4 MiB hold, what the page allocator has in one piece.
    pub const MAX_PAGES: usize = (4 << 20) / size_of::<u64>();

    /// Copies `count` addresses out of `pages`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty list and for one that `pages` can't fill, `E2BIG` beyond [`MAX_PAGES`](Self::MAX_PAGES),
    /// `ENOMEM` without that much contiguous memory.
    pub fn new(
        device: &device::Device<Bound>,
        count: usize,
        mut pages: impl Iterator<Item = DmaAddress>,
    ) -> Result<Self> {
        if count == 0 {
            return Err(EINVAL);
        }
        if count > Self::MAX_PAGES {
            return Err(E2BIG);
        }
        let mut list =
            CoherentBox::<[u64]>::zeroed_slice(device, count, GFP_KERNEL | __GFP_NOWARN)?;
        for entry in list.iter_mut() {
            *entry = pages.next().ok_or(EINVAL)?.to_le();
        }
        Ok(Self(list.into()))
    }

    /// DMA address of the list.
    pub fn dma_address(&self) -> DmaAddress {
        self.0.dma_address()
    }
}
