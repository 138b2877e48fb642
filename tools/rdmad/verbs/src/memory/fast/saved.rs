// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of an MR for fast registration.

use std::sync::Arc;

use budget::MemoryBudget;
use scheduler::shared::Mutex;
use serde::{Deserialize, Serialize};

use super::{FastMr, Inner, Mapped};
use crate::error::Result;
use crate::memory::region::RegionState;
use crate::memory::{PageMap, PageMapState};

/// An MR for fast registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FastMrState {
    max_pages: u32,
    /// Limit in bytes of the maps of the MR's pages.
    maps: u64,
    /// The pages that MAP_MR_SG set, and the address of their first byte.
    mapped: Option<(u64, PageMapState)>,
    region: Option<RegionState>,
}

impl FastMrState {
    /// The key of the MR, if it is registered.
    pub(crate) fn key(&self) -> Option<u32> {
        self.region.as_ref().map(RegionState::key)
    }
}

impl FastMr {
    /// The state from which another process can restore the MR.
    pub(crate) fn save(&self) -> FastMrState {
        let Inner { mapped, region } = &*self.state.lock();
        let mapped = mapped.as_ref();
        FastMrState {
            max_pages: self.max_pages,
            maps: self.maps.limit(),
            mapped: mapped.map(|mapped| (mapped.base, mapped.pages.save())),
            region: region.as_ref().map(|region| region.save()),
        }
    }

    /// The MR with this state. Its maps are charged to a part of `budget`.
    pub(crate) fn restored(budget: &MemoryBudget, state: &FastMrState) -> Result<Self> {
        let maps = budget.part(state.maps)?;
        let mapped = match &state.mapped {
            None => None,
            Some((base, pages)) => Some(Mapped {
                base: *base,
                pages: Arc::new(PageMap::restored(&maps, pages)?),
            }),
        };
        let region = match &state.region {
            None => None,
            Some(region) => Some(Arc::new(region.restored(&maps)?)),
        };
        Ok(Self {
            max_pages: state.max_pages,
            maps,
            state: Mutex::new(Inner { mapped, region }),
        })
    }
}
