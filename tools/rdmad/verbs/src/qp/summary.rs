// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Properties of a QP that can be read without its locks, so readers do not delay workers.

use std::sync::atomic::{AtomicU32, Ordering};

use virtio_rdma_abi::number::{PortId, Qpn};

use crate::runtime::QpKey;
use crate::status::{DataPath, PeerStatus};

/// Copies of properties of the QP's sides. The copies are not updated at the same instant.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// QPN of the peer of a connection; 0 for none.
    peer: AtomicU32,
    /// Port of the peer if the connection uses the direct path, else 0.
    port: AtomicU32,
    /// Rate limit in kb/s; 0 for none.
    rate: AtomicU32,
}

impl Summary {
    /// Records the peer of a connection, and its port if the connection uses the direct path.
    pub(super) fn set_peer(&self, peer: Option<Qpn>, port: Option<PortId>) {
        self.peer.store(peer.map_or(0, Qpn::get), Ordering::Relaxed);
        self.port
            .store(port.map_or(0, PortId::get), Ordering::Relaxed);
    }

    /// Records the rate limit in kb/s, or 0 for none.
    pub(super) fn set_rate(&self, rate: u32) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// The peer of a connection, and the path to it.
    pub(crate) fn peer(&self) -> Option<PeerStatus> {
        let qpn = self.peer.load(Ordering::Relaxed);
        let path = match self.port.load(Ordering::Relaxed) {
            0 => DataPath::Wire,
            _ => DataPath::Direct,
        };
        (qpn != 0).then_some(PeerStatus {
            qpn: Qpn::new(qpn),
            path,
        })
    }

    /// The peer, if the connection uses the direct path.
    pub(crate) fn direct_peer(&self) -> Option<QpKey> {
        let port = self.port.load(Ordering::Relaxed);
        let qpn = self.peer.load(Ordering::Relaxed);
        (port != 0 && qpn != 0).then_some(QpKey {
            port: PortId::new(port),
            qpn: Qpn::new(qpn),
        })
    }

    /// Rate limit in kb/s; 0 for none.
    pub(crate) fn rate(&self) -> u32 {
        self.rate.load(Ordering::Relaxed)
    }
}
