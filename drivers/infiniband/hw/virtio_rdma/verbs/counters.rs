// SPDX-License-Identifier: GPL-2.0

//! Counters of the port, and of QPs.
//!
//! Counters of QPs are counter sets of the device.

use super::{
    device::IbDevice,
    port::check_port, //
};
use crate::{
    abi::{
        ctrl::{
            CmdBindCounterSet,
            CmdCreateCounterSet,
            CmdDestroyCounterSet,
            CmdQueryCounterSet,
            CmdQueryCounters,
            RspQueryCounters, //
        },
        feature::Feature,
        number::CounterSetNumber, //
    },
    rdma::{
        self,
        counter::QpCounters,
        pma::{
            StandardCounters,
            StandardCounts, //
        },
        qp::Qp,
        stats::{
            Counter,
            PortCounters, //
        }, //
    }, //
};
use core::num::NonZeroU32;
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
        let ctrl = this.virtio.ctrl();
        // `ib_core` adds the values of counter sets, which QUERY_COUNTERS includes.
        let answer = match this.virtio.limits().has(Feature::CounterSets) {
            true => ctrl.exec(&CmdQueryCounterSet {
                csn: CounterSetNumber::NONE,
            }),
            false => ctrl.exec(&CmdQueryCounters { port }),
        }?;
        for (to, from) in to.iter_mut().zip(answer.values()) {
            *to = from;
        }
        Ok(())
    }
}

/// A message that was transferred without packets counts as one packet.
impl StandardCounters for IbDevice {
    fn read_standard(this: &rdma::Device<Self>, port: u32) -> Result<StandardCounts> {
        let port = check_port(port)?;
        let counts = this.virtio.ctrl().exec(&CmdQueryCounters { port })?;
        let sum = u64::wrapping_add;
        Ok(StandardCounts {
            xmit_bytes: sum(counts.tx_bytes, counts.direct_tx_bytes),
            rcv_bytes: sum(counts.rx_bytes, counts.direct_rx_bytes),
            xmit_packets: sum(counts.tx_packets, counts.direct_tx_messages),
            rcv_packets: sum(counts.rx_packets, counts.direct_rx_messages),
            rcv_errors: counts.bad_packets,
        })
    }
}

/// The device's number of a counter.
fn set(counter: NonZeroU32) -> CounterSetNumber {
    CounterSetNumber::new(counter.get())
}

impl QpCounters for IbDevice {
    fn create_counter(this: &rdma::Device<Self>, port: u32) -> Result<NonZeroU32> {
        let port = check_port(port)?;
        let answer = this.virtio.ctrl().exec(&CmdCreateCounterSet { port })?;
        // 0 is not a counter set, so this device breaks the rules.
        NonZeroU32::new(answer.csn.get()).ok_or(EIO)
    }

    fn destroy_counter(this: &rdma::Device<Self>, counter: NonZeroU32) {
        let request = CmdDestroyCounterSet { csn: set(counter) };
        super::destroy(&this.virtio, &request, ());
    }

    fn bind_qp(qp: &Qp<Self>, counter: NonZeroU32) -> Result {
        let request = CmdBindCounterSet {
            qpn: qp.number(),
            csn: set(counter),
        };
        qp.device().virtio.ctrl().exec(&request)?;
        Ok(())
    }

    /// The counters of a device that does not answer are never read again.
    fn unbind_qp(qp: &Qp<Self>) {
        let request = CmdBindCounterSet {
            qpn: qp.number(),
            csn: CounterSetNumber::NONE,
        };
        super::destroy(&qp.device().virtio, &request, ());
    }

    fn read_counter(
        this: &rdma::Device<Self>,
        counter: NonZeroU32,
    ) -> Result<impl Iterator<Item = u64>> {
        let csn = set(counter);
        let answer = this.virtio.ctrl().exec(&CmdQueryCounterSet { csn })?;
        Ok(answer.values().into_iter())
    }
}
