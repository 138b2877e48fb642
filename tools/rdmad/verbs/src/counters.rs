// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counters of an HCA.
//!
//! Each worker has its own counters, on separate cache lines, so counting costs one addition,
//! whatever the other workers do. A reader adds the workers' counters up.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use roce::env::Incident;
use scheduler::shard;
use virtio_rdma_abi::ctrl::RspQueryCounters;
use virtio_rdma_abi::wire::Wire;

macro_rules! counters {
    ($($counter:ident => $field:ident,)*) => {
        /// Events that the HCA counts. The fields of [`RspQueryCounters`] describe them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Counter {
            $($counter,)*
        }

        const COUNT: usize = ALL.len();

        const ALL: &[Counter] = &[$(Counter::$counter),*];

        impl HcaCounters {
            /// The sums over all workers; fields without a [`Counter`] are 0.
            pub(crate) fn sums(&self) -> RspQueryCounters {
                RspQueryCounters {
                    $($field: self.sum(Counter::$counter),)*
                    ..RspQueryCounters::ZERO
                }
            }
        }
    };
}

counters! {
    TxPackets => tx_packets,
    TxBytes => tx_bytes,
    RxPackets => rx_packets,
    RxBytes => rx_bytes,
    DirectTxMessages => direct_tx_messages,
    DirectTxBytes => direct_tx_bytes,
    DirectRxMessages => direct_rx_messages,
    DirectRxBytes => direct_rx_bytes,
    RetransmittedPackets => retransmitted_packets,
    Timeouts => timeouts,
    NaksSent => naks_sent,
    NaksReceived => naks_received,
    RnrNaksSent => rnr_naks_sent,
    RnrNaksReceived => rnr_naks_received,
    OutOfSequence => out_of_sequence,
    Duplicates => duplicates,
    BadPackets => bad_packets,
    RkeyViolations => rkey_violations,
    LkeyViolations => lkey_violations,
    PacedBytes => paced_bytes,
    Doorbells => doorbells,
    CompletionEvents => completion_events,
    MarkedPackets => marked_packets,
    NotificationsSent => notifications_sent,
    NotificationsReceived => notifications_received,
    Probes => probes,
}

/// Numbers of packets that were refused because of their P_Key or Q_Key.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    /// Packets with a P_Key of another partition.
    pub pkey: AtomicU32,
    /// Packets with a Q_Key other than the QP's.
    pub qkey: AtomicU32,
}

impl Counter {
    pub(crate) fn of(incident: Incident) -> Option<Self> {
        Some(match incident {
            Incident::Retransmission => Self::RetransmittedPackets,
            Incident::Timeout => Self::Timeouts,
            Incident::NakSent => Self::NaksSent,
            Incident::RnrNakSent => Self::RnrNaksSent,
            Incident::NakReceived => Self::NaksReceived,
            Incident::RnrNakReceived => Self::RnrNaksReceived,
            Incident::OutOfSequence => Self::OutOfSequence,
            Incident::Duplicate => Self::Duplicates,
            Incident::Marked => Self::MarkedPackets,
            Incident::NotificationSent => Self::NotificationsSent,
            Incident::NotificationReceived => Self::NotificationsReceived,
            Incident::Probe => Self::Probes,
            Incident::ResponseLost => return None,
        })
    }
}

/// The counters of an HCA or of a counter set.
#[derive(Debug)]
pub(crate) struct HcaCounters {
    shards: Box<[Shard]>,
}

type Shard = CachePadded<[AtomicU64; COUNT]>;

impl HcaCounters {
    /// Bytes of counters of an HCA that `workers` workers serve.
    pub(crate) fn memory(workers: usize) -> usize {
        (1 + workers) * size_of::<Shard>()
    }

    /// Counters of an HCA that `workers` workers serve, all 0.
    pub(crate) fn new(workers: usize) -> Self {
        let shard = || Shard::new(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            // Shard 0 is for threads that are not workers.
            shards: (0..=workers).map(|_| shard()).collect(),
        }
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        let shard = shard();
        let Some(counter) = self.shards.get(shard).map(|shard| &shard[counter as usize]) else {
            return;
        };
        if shard == 0 {
            counter.fetch_add(n, Ordering::Relaxed);
        } else {
            // Only the current worker writes this shard.
            counter.store(
                counter.load(Ordering::Relaxed).wrapping_add(n),
                Ordering::Relaxed,
            );
        }
    }

    /// Adds the values of `others` to these counters.
    pub(crate) fn absorb(&self, others: &Self) {
        if let Some(shard) = self.shards.first() {
            for &counter in ALL {
                shard[counter as usize].fetch_add(others.sum(counter), Ordering::Relaxed);
            }
        }
    }

    /// The values of all counters, in the order in which they are declared.
    pub(crate) fn save(&self) -> Vec<u64> {
        ALL.iter().map(|counter| self.sum(*counter)).collect()
    }

    /// Replaces the values, while no turn counts. Counters without a value are 0.
    pub(crate) fn restore(&self, values: &[u64]) {
        for (index, shard) in self.shards.iter().enumerate() {
            for &counter in ALL {
                let value = values.get(counter as usize).copied();
                let value = value.filter(|_| index == 0).unwrap_or_default();
                shard[counter as usize].store(value, Ordering::Relaxed);
            }
        }
    }

    fn sum(&self, counter: Counter) -> u64 {
        self.shards.iter().fold(0, |sum, shard| {
            sum.wrapping_add(shard[counter as usize].load(Ordering::Relaxed))
        })
    }
}
