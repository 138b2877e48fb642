// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CREATE_COUNTER_SET, DESTROY_COUNTER_SET, BIND_COUNTER_SET, QUERY_COUNTER_SET.

use virtio_rdma_abi::ctrl::{
    CmdBindCounterSet, CmdCreateCounterSet, CmdDestroyCounterSet, CmdQueryCounterSet, Empty,
    RspCreateCounterSet, RspQueryCounters,
};
use virtio_rdma_abi::number::CounterSetNumber;

use super::{require_port, DONE};
use crate::error::{Result, What};
use crate::Hca;

impl Hca {
    pub(super) fn create_counter_set(
        &self,
        cmd: CmdCreateCounterSet,
    ) -> Result<RspCreateCounterSet> {
        require_port(cmd.port)?;
        let workers = self.runtime().scheduler.workers();
        let csn = self.objects.counter_sets.create(self.budget(), workers)?;
        Ok(RspCreateCounterSet { csn })
    }

    pub(super) fn destroy_counter_set(&self, cmd: CmdDestroyCounterSet) -> Result<Empty> {
        self.objects.counter_sets.destroy(cmd.csn)?;
        Ok(DONE)
    }

    pub(super) fn bind_counter_set(&self, cmd: CmdBindCounterSet) -> Result<Empty> {
        let qp = self.objects.qps.find(What::Qpn, cmd.qpn)?;
        qp.bind_counter_set(self, cmd.csn)?;
        Ok(DONE)
    }

    pub(super) fn query_counter_set(&self, cmd: CmdQueryCounterSet) -> Result<RspQueryCounters> {
        match cmd.csn {
            CounterSetNumber::NONE => Ok(self.counters_without_sets()),
            csn => self.objects.counter_sets.query(csn),
        }
    }
}
