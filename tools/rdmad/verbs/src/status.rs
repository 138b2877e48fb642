// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The status of a running HCA. Reading it takes no lock that a worker holds for long.

use std::sync::atomic::Ordering;
use std::time::Duration;

use virtio_rdma_abi::ctrl::RspQueryCounters;
use virtio_rdma_abi::feature::Features;
use virtio_rdma_abi::ib::{QpState, QpType};
use virtio_rdma_abi::number::Qpn;

use crate::port_pace::{PortRates, Throttled};
use crate::Hca;

/// The data path to the peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// Data is copied from memory to memory.
    Direct,
    /// Data is sent in packets.
    Wire,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// QPN of the peer.
    pub qpn: Qpn,
    /// The path to the peer.
    pub path: DataPath,
}

/// Use of a memory budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStatus {
    /// Bytes in use.
    pub used: u64,
    /// Largest permitted number of bytes.
    pub limit: u64,
}

/// Status of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// QPN of the QP.
    pub qpn: Qpn,
    /// Type of the QP.
    pub qp_type: QpType,
    /// State of the QP.
    pub state: QpState,
    /// Whether the QP belongs to a process of the guest, not to the guest's kernel.
    pub user: bool,
    /// Peer of a connected QP.
    pub peer: Option<PeerStatus>,
    /// Rate limit in kb/s, if the QP has one.
    pub rate_limit: Option<u32>,
}

/// Status of an HCA. The values are not read at the same instant.
#[derive(Clone, Debug)]
pub struct HcaStatus {
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// Whether the link is up.
    pub link: bool,
    /// Features that the driver negotiated; none without a driver.
    pub features: Features,
    /// Number of PDs.
    pub pds: usize,
    /// Number of CQs.
    pub cqs: usize,
    /// Number of MRs.
    pub mrs: usize,
    /// Number of addresses that the driver tried to enter in the GID table and that the port may
    /// not use.
    pub refused_gids: u64,
    /// Number of QPs.
    pub qps: usize,
    /// Memory that the HCA has allocated or reserved for the VM.
    pub memory: MemoryStatus,
    /// Guest memory that the HCA has mapped.
    pub guest_memory: MemoryStatus,
    /// Bytes of the mapped guest memory that are in files of huge pages.
    pub huge_pages: u64,
    /// Rate limits of the port.
    pub rates: PortRates,
    /// Time for which the rate limits have delayed work.
    pub throttled: Throttled,
    /// Counters of the HCA.
    pub counters: RspQueryCounters,
}

/// Statistics of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Total time of the worker's rounds with work.
    pub busy: Duration,
    /// Cost of the worker's longest turn, in the unit of [`RuntimeStatus::turn_budget`].
    pub longest_turn: u64,
    /// Time of the worker's longest round. A round has up to 8 turns; deadlines and watched QPs are
    /// checked once in a round.
    pub longest_round: Duration,
    /// Number of flows, mostly QPs, that the worker took over from other workers.
    pub steals: u64,
    /// Number of times that a thread with frames did work in place of the worker, which slept.
    pub stand_ins: u64,
}

/// Status of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// The workers, by number.
    pub workers: Vec<WorkerStatus>,
    /// Budget of a turn, for each side of a QP. The unit is the cost of copying one byte. The last
    /// step of a turn may exceed the budget.
    pub turn_budget: u64,
    /// Cost of the longest turn of any thread, in the unit of `turn_budget`.
    pub longest_turn: u64,
    /// The most by which the work that a turn has done cost more than was charged, at the least
    /// prices: 0, unless a charge is missing.
    #[cfg(feature = "counting")]
    pub uncharged: u64,
    /// Number of times that a thread waited until the turns in progress had ended, for example
    /// after it removed an object.
    pub grace_periods: u64,
}

impl Hca {
    /// Whether a driver has set the device up.
    pub fn has_driver(&self) -> bool {
        self.negotiated() != Features::NONE
    }

    /// The status of the HCA. The time that this takes does not depend on the number of its
    /// objects.
    pub fn status(&self) -> HcaStatus {
        let (mapped, mappable) = self.space.mapped();
        HcaStatus {
            mac: self.mac(),
            link: self.link_is_up(),
            features: self.negotiated(),
            pds: self.pds.len(),
            cqs: self.cqs.len(),
            mrs: self.mrs.len(),
            refused_gids: self.refused_gids.load(Ordering::Relaxed),
            qps: self.qps.len(),
            memory: MemoryStatus {
                used: self.budget().used(),
                limit: self.budget().limit(),
            },
            guest_memory: MemoryStatus {
                used: mapped,
                limit: mappable,
            },
            huge_pages: self.space.in_huge_pages(),
            rates: self.pacer.rates(),
            throttled: self.pacer.throttled(self.runtime().scheduler.clock.now()),
            counters: self.counters(),
        }
    }
}
