// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The status of a running HCA. Reading it takes no lock that a worker holds for long.

use std::sync::atomic::Ordering;

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
    pub qpn: Qpn,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    pub qpn: Qpn,
    pub qp_type: QpType,
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
    pub pds: usize,
    pub cqs: usize,
    pub mrs: usize,
    /// Number of addresses that the driver tried to enter in the GID table and that the port may
    /// not use.
    pub refused_gids: u64,
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
    pub counters: RspQueryCounters,
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
            pds: self.objects.pds.len(),
            cqs: self.objects.cqs.len(),
            mrs: self.objects.mrs.len(),
            refused_gids: self.refused_gids.load(Ordering::Relaxed),
            qps: self.objects.qps.len(),
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
