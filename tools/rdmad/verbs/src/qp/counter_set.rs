// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The counter set of a QP.

use virtio_rdma_abi::number::CounterSetNumber;

use super::Qp;
use crate::counters::Counter;
use crate::error::Result;
use crate::Hca;

impl Qp {
    /// Adds `n` to a counter of the QP's counter set, or of the port if the QP has none.
    #[inline]
    pub(crate) fn count(&self, hca: &Hca, counter: impl Into<Counter>, n: u64) {
        let counter = counter.into();
        let set = self.counter_set.get();
        if set == CounterSetNumber::NONE || !hca.counter_sets.add(set, counter, n) {
            hca.counters.add(counter, n);
        }
    }

    /// Binds the QP to a counter set, or unbinds it. On return no turn counts events of the QP in
    /// its former counter set. Fails with `EINVAL` if the counter set does not exist.
    pub(crate) fn bind_counter_set(&self, hca: &Hca, number: CounterSetNumber) -> Result<()> {
        let sets = &hca.counter_sets;
        if number != CounterSetNumber::NONE {
            sets.attach(number)?;
        }
        let former = self.counter_set.replace(number);
        // Turns that began before may still count in the former set.
        hca.runtime().scheduler.quiesce.synchronize();
        sets.detach(former);
        Ok(())
    }

    /// Unbinds the QP, which has no turns any more, from its counter set.
    pub(crate) fn leave_counter_set(&self, hca: &Hca) {
        let former = self.counter_set.replace(CounterSetNumber::NONE);
        hca.counter_sets.detach(former);
    }
}
