// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QUERY_COUNTERS.

use std::sync::atomic::Ordering;

use virtio_rdma_abi::ctrl::{CmdQueryCounters, RspQueryCounters};

use super::require_port;
use crate::error::Result;
use crate::Hca;

impl Hca {
    pub(super) fn query_counters(&self, cmd: CmdQueryCounters) -> Result<RspQueryCounters> {
        require_port(cmd.port)?;
        Ok(self.counters())
    }

    /// All counters of the port.
    pub(crate) fn counters(&self) -> RspQueryCounters {
        self.with_violations(self.objects.counter_sets.sums_with(&self.counters))
    }

    /// The counters of the port without the events that its counter sets counted since the last
    /// reset.
    pub(crate) fn counters_without_sets(&self) -> RspQueryCounters {
        self.with_violations(self.counters.sums())
    }

    fn with_violations(&self, counters: RspQueryCounters) -> RspQueryCounters {
        RspQueryCounters {
            pkey_violations: self.violations.pkey.load(Ordering::Relaxed).into(),
            qkey_violations: self.violations.qkey.load(Ordering::Relaxed).into(),
            ..counters
        }
    }
}
