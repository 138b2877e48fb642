// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a page map.

use budget::{ChargedList, MemoryBudget};
use serde::{Deserialize, Serialize};

use super::{Extent, PageMap};
use crate::error::{at_least, at_most, end, require, Reason, Result, What};

/// A page map as another process finds it. Page lists are not read again: the driver may have
/// freed them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PageMapState {
    page_shift: u8,
    /// Offset in the object and DMA address of each extent; the last one marks the object's end.
    extents: Vec<(u64, u64)>,
}

impl PageMap {
    /// The state from which another process can restore the map.
    pub(crate) fn save(&self) -> PageMapState {
        let extents = self.extents.iter();
        PageMapState {
            page_shift: self.page_shift,
            extents: extents.map(|extent| (extent.start, extent.iova)).collect(),
        }
    }

    /// The map with this state, charged to `budget`.
    ///
    /// # Errors
    ///
    /// The extents are not in order, or exceed the address space; too little memory in the budget.
    pub(crate) fn restored(budget: &MemoryBudget, state: &PageMapState) -> Result<Self> {
        let mut extents = ChargedList::new(budget, state.extents.len());
        let mut last = None;
        for &(start, iova) in &state.extents {
            let is_next = match last {
                None => start == 0,
                Some((before, _)) => before < start,
            };
            require(is_next, Reason::Undefined, What::Page, start)?;
            if let Some((before, iova)) = last {
                end(What::Page, iova, start - before)?;
            }
            last = Some((start, iova));
            extents.push(Extent { start, iova })?;
        }
        at_least(What::Npages, extents.len() as u64, 2u8)?;
        at_most(What::PageShift, state.page_shift, u64::BITS - 1)?;
        Ok(Self {
            extents,
            page_shift: state.page_shift,
        })
    }
}
