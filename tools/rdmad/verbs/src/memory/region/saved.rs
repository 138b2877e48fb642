// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a region.

use std::sync::Arc;

use budget::MemoryBudget;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::ib::AccessFlags;

use super::{PageMap, Region};
use crate::error::{at_least, at_most, bits, end, Result, What};
use crate::memory::PageMapState;

/// A region that has its pages for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegionState {
    part: PartState,
    pages: PageMapState,
}

/// A region without its pages, which are those of another object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartState {
    key: u32,
    access: u32,
    base: u64,
    start: u64,
    len: u64,
}

impl PartState {
    /// The key of the region.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The region of `pages` with this state.
    ///
    /// # Errors
    ///
    /// The part is empty or not inside the pages; undefined access flags.
    pub(crate) fn of(&self, pages: &Arc<PageMap>) -> Result<Region> {
        bits(What::AccessFlags, self.access, AccessFlags::ALL.0)?;
        at_least(What::Length, self.len, 1u8)?;
        let end_of_part = end(What::Address, self.start, self.len)?;
        at_most(What::Length, end_of_part, pages.len())?;
        // The last byte may be that of the address space.
        end(What::Address, self.base, self.len - 1)?;
        Ok(Region {
            key: self.key,
            access: AccessFlags(self.access),
            base: self.base,
            start: self.start,
            len: self.len,
            pages: pages.clone(),
        })
    }
}

impl RegionState {
    /// The key of the region.
    pub(crate) fn key(&self) -> u32 {
        self.part.key
    }

    /// The region with this state, whose pages are charged to `budget`.
    ///
    /// # Errors
    ///
    /// The state is invalid, or the budget is used up.
    pub(crate) fn restored(&self, budget: &MemoryBudget) -> Result<Region> {
        let pages = PageMap::restored(budget, &self.pages)?;
        self.part.of(&Arc::new(pages))
    }
}

impl Region {
    /// The state of the region and of its pages.
    pub(crate) fn save(&self) -> RegionState {
        RegionState {
            part: self.save_part(),
            pages: self.pages.save(),
        }
    }

    /// The state of the region without its pages.
    pub(crate) fn save_part(&self) -> PartState {
        PartState {
            key: self.key,
            access: self.access.0,
            base: self.base,
            start: self.start,
            len: self.len,
        }
    }

    /// The pages, to restore another region of them.
    pub(crate) fn shared_pages(&self) -> &Arc<PageMap> {
        &self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::unlimited;

    #[test]
    fn a_part_is_inside_the_pages() {
        let pages = Arc::new(PageMap::identity(&unlimited()).unwrap());
        let is_valid = |start, len| {
            let state = PartState {
                key: 1,
                access: 0,
                base: 0,
                start,
                len,
            };
            state.of(&pages).is_ok()
        };
        let all = pages.len();
        assert!(is_valid(0, all) && is_valid(all - 1, 1));
        assert!(!is_valid(1, all) && !is_valid(all, 1));
        assert!(
            !is_valid(all, 0) && !is_valid(0, 0),
            "nothing has no address"
        );
    }
}
