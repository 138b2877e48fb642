// SPDX-License-Identifier: GPL-2.0

//! Page lists of MRs and of rings.

use crate::{
    abi::ctrl::{
        PageListDepth,
        PAGE_LIST_BLOCK, //
    },
    rdma::{
        self,
        page_list::{
            PageDirectory,
            PageList, //
        }, //
    },
    verbs::device::IbDevice, //
};
use kernel::{
    dma::DmaAddress,
    prelude::*, //
};

/// A page list in the device's format.
pub(super) enum Pages {
    Flat(PageList),
    TwoLevels(PageDirectory),
}

impl Pages {
    /// Lists `count` pages: in two levels if one list would be large and the device supports it.
    pub(super) fn new(
        ib_device: &rdma::Device<IbDevice>,
        count: usize,
        has_two_levels: bool,
        pages: impl Iterator<Item = DmaAddress>,
    ) -> Result<Self> {
        const { assert!(PageDirectory::BLOCK == PAGE_LIST_BLOCK) };

        if count > PageList::EASY_PAGES && has_two_levels {
            PageDirectory::new(ib_device, count, pages).map(Self::TwoLevels)
        } else {
            PageList::new(ib_device, count, pages).map(Self::Flat)
        }
    }

    /// DMA address of the list.
    pub(super) fn dma_address(&self) -> DmaAddress {
        match self {
            Self::Flat(list) => list.dma_address(),
            Self::TwoLevels(directory) => directory.dma_address(),
        }
    }

    /// Number of levels.
    pub(super) fn depth(&self) -> PageListDepth {
        match self {
            Self::Flat(_) => PageListDepth::Flat,
            Self::TwoLevels(_) => PageListDepth::TwoLevels,
        }
    }
}
