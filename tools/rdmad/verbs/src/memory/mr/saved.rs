// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of MRs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use virtio_rdma_abi::number::{MrNumber, Number, Pdn};

use super::{number_of, Mr, MrKind, MrTable, Variants};
use crate::error::{at_most, exactly, Result, What};
use crate::memory::fast::{FastMr, FastMrState};
use crate::memory::region::RegionState;
use crate::memory::window::WindowCount;
use crate::pd::PdUse;

/// An MR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MrState {
    number: u32,
    order: u32,
    pdn: u32,
    /// Pages that count for the limit of all MRs.
    pages: u64,
    is_revoked: bool,
    kind: KindState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum KindState {
    Fixed(RegionState),
    Fast(FastMrState),
}

/// The last variant of each number's key: a new key of the number must differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VariantsState(Vec<u8>);

impl<N: Number> Variants<N> {
    pub(in crate::memory) fn save(&self) -> VariantsState {
        let last = self.last.iter();
        VariantsState(last.map(|last| last.load(Ordering::Relaxed)).collect())
    }

    pub(in crate::memory) fn restore(&self, state: &VariantsState) {
        for (last, saved) in self.last.iter().zip(&state.0) {
            last.store(*saved, Ordering::Relaxed);
        }
    }
}

impl MrState {
    pub(crate) fn pdn(&self) -> Pdn {
        Pdn::new(self.pdn)
    }
}

impl MrTable {
    /// The state of all MRs.
    pub(crate) fn save(&self) -> (Vec<MrState>, VariantsState) {
        let mrs = self.table.iter().map(|mr| mr.save()).collect();
        (mrs, self.variants.save())
    }

    /// The variants of former keys.
    pub(crate) fn restore_variants(&self, state: &VariantsState) {
        self.variants.restore(state);
    }

    /// Restores an MR in `pd`.
    ///
    /// # Errors
    ///
    /// The state is invalid, or a limit is exceeded.
    pub(crate) fn restore(&self, pd: PdUse, state: &MrState) -> Result<()> {
        let number = MrNumber::new(state.number);
        let reserved = self.table.reserve_again(What::Mrn, number)?;
        at_most(What::Npages, state.pages, self.pages.limit())?;
        let charge = Arc::new(self.charge(state.pages)?);
        let key = match &state.kind {
            KindState::Fixed(region) => Some(region.key()),
            KindState::Fast(fast) => fast.key(),
        };
        if let Some(key) = key {
            exactly(What::Mrn, number_of::<MrNumber>(key).get(), state.number)?;
        }
        let kind = match &state.kind {
            KindState::Fixed(region) => MrKind::Fixed(Arc::new(region.restored(&self.budget)?)),
            KindState::Fast(fast) => MrKind::Fast(FastMr::restored(&self.budget, fast)?),
        };
        let is_revoked = AtomicBool::new(state.is_revoked);
        reserved.insert(Arc::new(Mr {
            number,
            order: state.order,
            pd,
            kind,
            charge,
            is_revoked,
            windows: WindowCount::default(),
        }));
        if !state.is_revoked {
            self.replaced(number);
        }
        Ok(())
    }
}

impl Mr {
    fn save(&self) -> MrState {
        MrState {
            number: self.number.get(),
            order: self.order,
            pdn: self.pd.number().get(),
            pages: self.charge.pages.amount(),
            is_revoked: self.is_revoked.load(Ordering::Acquire),
            kind: match &self.kind {
                MrKind::Fixed(region) => KindState::Fixed(region.save()),
                MrKind::Fast(fast) => KindState::Fast(fast.save()),
            },
        }
    }
}
