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

/// Names the fields of the device's answer that are shown.
macro_rules! counters {
    ($($field:ident),* $(,)?) => {
        const NAMES: &[Counter] = &[$(
            Counter::new({
                const NAME: &str = concat!(stringify!($field), "\0");
                match CStr::from_bytes_with_nul(NAME.as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("an identifier has no zero"),
                }
            }),
        )*];

        fn values(answer: &RspQueryCounters) -> [u64; NAMES.len()] {
            [$(answer.$field),*]
        }
    };
}

counters! {
    tx_packets,
    tx_bytes,
    rx_packets,
    rx_bytes,
    direct_tx_messages,
    direct_tx_bytes,
    direct_rx_messages,
    direct_rx_bytes,
    retransmitted_packets,
    timeouts,
    naks_sent,
    naks_received,
    rnr_naks_sent,
    rnr_naks_received,
    out_of_sequence,
    duplicates,
    bad_packets,
    pkey_violations,
    qkey_violations,
    rkey_violations,
    lkey_violations,
    paced_bytes,
}

impl PortCounters for IbDevice {
    const COUNTERS: &'static [Counter] = NAMES;

    fn read_counters(this: &rdma::Device<Self>, port: u32, to: &mut [u64]) -> Result {
        let port = check_port(port)?;
        let answer = this.device.ctrl().exec(&CmdQueryCounters { port })?;
        for (to, from) in to.iter_mut().zip(values(&answer)) {
            *to = from;
        }
        Ok(())
    }
}
