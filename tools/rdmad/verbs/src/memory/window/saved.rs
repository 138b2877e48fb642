// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of memory windows.

use std::sync::Arc;

use scheduler::shared::Mutex;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::number::{MrNumber, MwNumber, Pdn, Qpn};

use super::{Bound, Inner, Window, WindowTable, WindowUse};
use crate::error::{defined, exactly, refusal, Reason, Result, What};
use crate::memory::mr::{number_of, VariantsState};
use crate::memory::region::PartState;
use crate::memory::MrTable;
use crate::pd::PdUse;

/// A memory window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowState {
    number: u32,
    pdn: u32,
    mw_type: u8,
    key: u32,
    bound: Option<BoundState>,
}

/// The binding of a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BoundState {
    mr: u32,
    part: PartState,
    /// The QP to which a type 2 window is bound.
    qpn: Option<u32>,
}

impl WindowState {
    pub(crate) fn pdn(&self) -> Pdn {
        Pdn::new(self.pdn)
    }
}

impl WindowTable {
    /// The state of all windows.
    pub(crate) fn save(&self) -> (Vec<WindowState>, VariantsState) {
        let windows = self.table.iter().map(|window| window.save()).collect();
        (windows, self.variants.save())
    }

    /// The variants of former keys.
    pub(crate) fn restore_variants(&self, state: &VariantsState) {
        self.variants.restore(state);
    }

    /// Restores a window in `pd`. The MRs in `mrs` must have been restored.
    ///
    /// # Errors
    ///
    /// The state is invalid, or a limit is exceeded.
    pub(crate) fn restore(&self, mrs: &MrTable, pd: PdUse, state: &WindowState) -> Result<()> {
        let number = MwNumber::new(state.number);
        let reserved = self.table.reserve_again(What::Mwn, number)?;
        let bound_key = state.bound.as_ref().map(|bound| bound.part.key());
        for key in bound_key.into_iter().chain([state.key]) {
            exactly(What::Mwn, number_of::<MwNumber>(key).get(), state.number)?;
        }
        let bound = match &state.bound {
            None => None,
            Some(bound) => {
                let mr = mrs.find(MrNumber::new(bound.mr))?;
                let unsuitable = refusal(Reason::Unsuitable, What::Mrn, bound.mr);
                let pages = mr.fixed().ok_or(unsuitable)?.shared_pages();
                Some(Bound {
                    region: Arc::new(bound.part.of(pages)?),
                    qpn: bound.qpn.map(Qpn::new),
                    mr: WindowUse::new(&mr).ok_or(unsuitable)?,
                })
            }
        };
        let key = state.key;
        reserved.insert(Arc::new(Window {
            number,
            pd,
            mw_type: defined(What::MwType, state.mw_type)?,
            state: Mutex::new(Inner { key, bound }),
            _charge: self.charge()?,
        }));
        Ok(())
    }
}

impl Window {
    fn save(&self) -> WindowState {
        let Inner { key, bound } = &*self.state.lock();
        let bound = bound.as_ref().map(|bound| BoundState {
            mr: bound.mr.number().get(),
            part: bound.region.save_part(),
            qpn: bound.qpn.map(Qpn::get),
        });
        WindowState {
            number: self.number.get(),
            pdn: self.pd.number().get(),
            mw_type: self.mw_type.value(),
            key: *key,
            bound,
        }
    }
}
