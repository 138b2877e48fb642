// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of counter sets.

use std::sync::Arc;

use budget::MemoryBudget;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::number::CounterSetNumber;

use super::{CounterSet, CounterSets};
use crate::error::{Result, What};

/// All counter sets of an HCA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CounterSetsState {
    /// Number and values of each set.
    sets: Vec<(u32, Vec<u64>)>,
    /// Sums of the sets that were destroyed.
    destroyed: Vec<u64>,
}

impl CounterSets {
    /// The state from which another process can restore the sets.
    pub(crate) fn save(&self) -> CounterSetsState {
        let values = |set: Arc<CounterSet>| (set.number.get(), set.counters.save());
        CounterSetsState {
            sets: self.table.iter().map(values).collect(),
            destroyed: self.destroyed.lock().save(),
        }
    }

    /// Restores the sets, to which no QPs are bound yet.
    ///
    /// # Errors
    ///
    /// The numbers are invalid, or the budget is used up.
    pub(crate) fn restore(
        &self,
        budget: &MemoryBudget,
        workers: usize,
        state: &CounterSetsState,
    ) -> Result<()> {
        self.destroyed.lock().restore(&state.destroyed);
        for (number, values) in &state.sets {
            let number = CounterSetNumber::new(*number);
            let reserved = self.table.reserve_again(What::Csn, number)?;
            let set = CounterSet::new(budget, workers, number)?;
            set.counters.restore(values);
            reserved.insert(Arc::new(set));
        }
        Ok(())
    }
}
