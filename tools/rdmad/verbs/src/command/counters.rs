// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QUERY_COUNTERS.

use virtio_rdma_abi::ctrl::{CmdQueryCounters, RspQueryCounters};

use super::require_port;
use crate::error::Result;
use crate::Device;

impl Device {
    pub(super) fn query_counters(&self, cmd: CmdQueryCounters) -> Result<RspQueryCounters> {
        require_port(cmd.port)?;
        Ok(self.counters())
    }
}
