// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counter sets of connections that count one end alone: on the direct path, the counts are known.

use virtio_rdma_abi::ib::WrOpcode;
use virtio_rdma_abi::number::CounterSetNumber;

use super::end::Sent;
use super::Connection;

/// Work requests of one end that have succeeded.
#[derive(Default)]
pub(super) struct Count {
    /// The counter set to which only this end is bound, if there is one.
    csn: Option<CounterSetNumber>,
    messages: u64,
    /// Number of bytes that went to the peer.
    sent: u64,
    /// Number of bytes that the end has read from the peer.
    read: u64,
}

impl Count {
    /// Whether a counter set counts this end alone.
    pub fn is_alone(&self) -> bool {
        self.csn.is_some()
    }

    /// Counts a work request that has succeeded.
    pub fn note(&mut self, sent: &Sent) {
        self.messages += 1;
        match sent.opcode {
            WrOpcode::RdmaRead => self.read += sent.data.len() as u64,
            _ => self.sent += sent.data.len() as u64,
        }
    }
}

impl Connection<'_> {
    /// Binds each end to a counter set of its own.
    pub(super) fn count_alone(&mut self) {
        for side in 0..2 {
            let [ours, theirs] = self.sides(side);
            ours.count.csn = Some(ours.guest.count_alone(&ours.qp, &theirs.qp));
        }
    }

    /// Checks the counter set of an end at the end of a run, when all work requests have succeeded.
    /// Packets are checked elsewhere.
    pub(super) fn check_count(&mut self, side: usize) {
        let [ours, theirs] = self.sides(side);
        let Some(csn) = ours.count.csn else {
            return;
        };
        let counted = ours.guest.query_counter_set(csn);
        if counted.tx_packets + counted.rx_packets > 0 {
            return;
        }
        let (one, other) = (&ours.count, &theirs.count);
        assert_eq!(
            [
                counted.direct_tx_messages,
                counted.direct_rx_messages,
                counted.direct_tx_bytes,
                counted.direct_rx_bytes,
            ],
            [
                one.messages,
                other.messages,
                one.sent + other.read,
                other.sent + one.read,
            ],
            "messages and bytes of a counter set"
        );
    }
}
