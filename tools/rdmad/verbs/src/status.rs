// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A look at a device while it runs. It takes no lock that a worker holds for long, so it holds
//! nobody up.

use std::sync::atomic::Ordering;
use std::time::Duration;

use virtio_rdma_abi::ctrl::RspQueryCounters;
use virtio_rdma_abi::feature::Features;
use virtio_rdma_abi::ib::{QpState, QpType};
use virtio_rdma_abi::number::Qpn;

use crate::port_pace::{PortRates, Throttled};
use crate::Device;

/// The way of data to the peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// Memory to memory.
    Direct,
    /// As packets.
    Wire,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// QPN.
    pub qpn: Qpn,
    /// The way there.
    pub path: DataPath,
}

/// Bytes of memory that are used, and how many may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStatus {
    /// Bytes that are used.
    pub used: u64,
    /// Bytes that may be used.
    pub limit: u64,
}

/// A QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// QPN.
    pub qpn: Qpn,
    /// Type.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Whether its queues belong to a process of the guest, not to its kernel.
    pub user: bool,
    /// Peer of a connection.
    pub peer: Option<PeerStatus>,
    /// Rate limit in kb/s, if there is one.
    pub rate_limit: Option<u32>,
}

/// A device: what it has and what it has done, each as it stood at some moment.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
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
    /// Addresses that the driver asked for and the port may not have.
    pub refused_gids: u64,
    /// QPs, in the order of their numbers.
    pub qps: Vec<QpStatus>,
    /// Memory that is allocated for the VM or set aside for it.
    pub memory: MemoryStatus,
    /// Guest memory that is mapped.
    pub guest_memory: MemoryStatus,
    /// Limits that the QPs share.
    pub rates: PortRates,
    /// How long these have held work back.
    pub throttled: Throttled,
    /// Counters.
    pub counters: RspQueryCounters,
}

/// The work of one worker so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Time of the rounds in which there was work.
    pub busy: Duration,
    /// Cost of its longest turn.
    pub longest_turn: u64,
    /// The longest time from one look at deadlines and watched queues to the next: up to 8 turns.
    pub longest_round: Duration,
    /// Flows, QPs most of them, that it took over from other workers.
    pub steals: u64,
}

/// The workers of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// The workers.
    pub workers: Vec<WorkerStatus>,
    /// The budget of each half of a QP for a turn. A unit is the copy of one byte. The last step
    /// may exceed it.
    pub turn_budget: u64,
    /// Cost of the longest turn, also of threads that are no workers.
    pub longest_turn: u64,
    /// How often a thread waited for the turns that were going on, since it took something away
    /// that they may use.
    pub grace_periods: u64,
}

impl Device {
    /// The status of the device.
    pub fn status(&self) -> DeviceStatus {
        let (mapped, mappable) = self.space.mapped();
        DeviceStatus {
            mac: self.mac(),
            link: self.link_is_up(),
            features: self.negotiated(),
            pds: self.pds.iter().count(),
            cqs: self.cqs.iter().count(),
            mrs: self.mrs.numbers().len(),
            refused_gids: self.refused_gids.load(Ordering::Relaxed),
            qps: self
                .qps
                .iter()
                .filter_map(|qp| {
                    Some(QpStatus {
                        qpn: qp.number,
                        qp_type: qp.init.qp_type,
                        state: qp.state()?,
                        user: qp.init.user,
                        peer: qp.summary.peer(),
                        rate_limit: Some(qp.summary.rate()).filter(|&rate| rate != 0),
                    })
                })
                .collect(),
            memory: MemoryStatus {
                used: self.budget().used(),
                limit: self.budget().limit(),
            },
            guest_memory: MemoryStatus {
                used: mapped,
                limit: mappable,
            },
            rates: self.pacer.rates(),
            throttled: self.pacer.throttled(self.runtime().scheduler.clock.now()),
            counters: self.counters(),
        }
    }
}
