// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Protection domains.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use budget::Charge;
use virtio_rdma_abi::number::Pdn;

/// A protection domain: QPs may use only MRs of the same PD.
#[derive(Debug)]
pub(crate) struct Pd {
    number: Pdn,
    /// Number of MRs, memory windows, QPs and SRQs in the PD.
    users: AtomicU32,
    _charge: Charge,
}

/// Use of a PD by an MR, memory window, QP or SRQ. A PD in use can't be destroyed.
#[derive(Debug)]
pub(crate) struct PdUse(Arc<Pd>);

impl Pd {
    /// A PD without users.
    pub(crate) fn new(number: Pdn, charge: Charge) -> Self {
        Self {
            number,
            users: AtomicU32::new(0),
            _charge: charge,
        }
    }

    pub(crate) fn number(&self) -> Pdn {
        self.number
    }

    /// Whether MRs, memory windows, QPs or SRQs are in the PD.
    pub(crate) fn in_use(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }
}

impl PdUse {
    /// Registers a use of `pd`. The use ends when the returned object is dropped.
    pub(crate) fn new(pd: Arc<Pd>) -> Self {
        pd.users.fetch_add(1, Ordering::AcqRel);
        Self(pd)
    }

    /// Registers another use of the same PD.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.0.clone())
    }

    /// PDN of the PD that is used.
    pub(crate) fn number(&self) -> Pdn {
        self.0.number
    }
}

#[cfg(test)]
impl PdUse {
    /// A use of a PD that is not in a table.
    pub(crate) fn alone(number: Pdn) -> Self {
        let charge = budget::MemoryBudget::new(0).charge(0).unwrap();
        Self::new(Arc::new(Pd::new(number, charge)))
    }
}

impl Drop for PdUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
