// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! MRs for fast registration (IBTA 10.6.2 and 10.6.4).
//!
//! Such an MR is created without pages, in the state *free*. A REG_MR work request registers pages
//! under a key, which makes the MR *valid*. An invalidation, by either side of a connection, makes
//! the MR free again.

mod saved;

use std::sync::Arc;

use budget::MemoryBudget;
use roce::work::WcReason;
use scheduler::shared::Mutex;
use virtio_rdma_abi::ib::AccessFlags;

pub(super) use self::saved::FastMrState;
use super::key_fault::KeyFault;
use super::region::drain;
use super::{PageMap, Region};

/// An MR for fast registration.
#[derive(Debug)]
pub(super) struct FastMr {
    /// Maximum number of pages that the MR may have.
    max_pages: u32,
    /// Budget to which the maps of the MR's pages are charged.
    maps: MemoryBudget,
    state: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The pages that the last MAP_MR_SG set. Each registration without pages of its own uses them.
    mapped: Option<Mapped>,
    /// The registered memory; `None` if the MR is free.
    region: Option<Arc<Region>>,
}

/// The pages for a registration. `base` is the address that work requests use for their first byte.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub base: u64,
    pub pages: Arc<PageMap>,
}

impl FastMr {
    /// A free MR, whose page maps are charged to `maps`.
    pub(super) fn new(max_pages: u32, maps: MemoryBudget) -> Self {
        Self {
            max_pages,
            maps,
            state: Mutex::default(),
        }
    }

    /// Maximum number of pages that the MR may have, and the budget to which page maps are charged.
    pub(super) fn limits(&self) -> (u32, MemoryBudget) {
        (self.max_pages, self.maps.clone())
    }

    /// Calls `visit` with the registered memory, if the MR is valid.
    #[inline]
    pub(super) fn with_region<R>(&self, visit: impl FnOnce(&Arc<Region>) -> R) -> Option<R> {
        self.state.lock().region.as_ref().map(visit)
    }

    /// Sets the pages for the next registration. The memory that is registered now stays
    /// registered.
    pub(super) fn map(&self, mapped: Mapped) {
        self.state.lock().mapped = Some(mapped);
    }

    /// Makes the MR valid under `key`, with the pages in `given`, or with those that MAP_MR_SG set
    /// if `given` is `None`. Fails if the MR is valid already.
    pub(super) fn register(
        &self,
        key: u32,
        access: AccessFlags,
        given: Option<Mapped>,
    ) -> Result<(), KeyFault> {
        let mut state = self.state.lock();
        if state.region.is_some() {
            return Err(KeyFault(WcReason::KeyInUse));
        }
        let Mapped { base, pages } = match given {
            Some(given) => given,
            None => state.mapped.clone().ok_or(KeyFault(WcReason::BadPages))?,
        };
        state.region = Some(Arc::new(Region::new(key, access, base, pages)));
        Ok(())
    }

    /// Makes the MR free if it is valid under `key`. On return no thread uses its memory any more.
    /// The caller must have no [`Message`](super::Message) open.
    pub(super) fn invalidate(&self, key: u32) -> Result<(), KeyFault> {
        let region = {
            let mut state = self.state.lock();
            match &state.region {
                Some(region) if region.key() == key => {}
                Some(_) => return Err(KeyFault(WcReason::NoSuchKey)),
                None => return Err(KeyFault(WcReason::KeyRevoked)),
            }
            state.region.take().ok_or(KeyFault(WcReason::KeyRevoked))?
        };
        drain(region);
        Ok(())
    }
}
