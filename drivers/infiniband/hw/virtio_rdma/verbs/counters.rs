// SPDX-License-Identifier: GPL-2.0

//! The port's counters.

use super::{
    device::IbDevice,
    port::check_port, //
};
use crate::{
    abi::ctrl::{
        CmdQueryCounters,
        RspQueryCounters, //
    },
    rdma::{
        self,
        stats::{
            Counter,
            PortCounters, //
        }, //
    }, //
};
use kernel::prelude::*;

/// The counters in the form that `ib_core` expects.
const COUNTERS: [Counter; RspQueryCounters::NAMES.len()] = {
    let mut counters = [const { Counter::new(c"") }; RspQueryCounters::NAMES.len()];
    let mut index = 0;
    while index < counters.len() {
        counters[index] = Counter::new(RspQueryCounters::NAMES[index]);
        index += 1;
    }
    counters
};

impl PortCounters for IbDevice {
    const COUNTERS: &'static [Counter] = &COUNTERS;

    fn read_counters(this: &rdma::Device<Self>, port: u32, to: &mut [u64]) -> Result {
        let port = check_port(port)?;
        let answer = this.device.ctrl().exec(&CmdQueryCounters { port })?;
        for (to, from) in to.iter_mut().zip(answer.values()) {
            *to = from;
        }
        Ok(())
    }
}
