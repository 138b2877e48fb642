// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Properties of a QP that can be seen without its locks, so that a reader never holds a worker up.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use virtio_rdma_abi::number::Qpn;

use crate::status::{DataPath, PeerStatus};

/// Copies of what the halves of a QP know, each as it stood at some moment.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// QPN of the peer of a connection, 0 for none.
    peer: AtomicU32,
    /// Data goes to the peer without packets.
    direct: AtomicBool,
    /// Rate limit in kb/s, 0 for none.
    rate: AtomicU32,
}

impl Summary {
    /// Notes the peer of a connection, if there is one.
    pub(super) fn set_peer(&self, peer: Option<PeerStatus>) {
        let qpn = peer.map_or(0, |peer| peer.qpn.get());
        let direct = peer.is_some_and(|peer| peer.path == DataPath::Direct);
        self.peer.store(qpn, Ordering::Relaxed);
        self.direct.store(direct, Ordering::Relaxed);
    }

    /// Notes the rate limit in kb/s, or 0.
    pub(super) fn set_rate(&self, rate: u32) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// The peer of a connection.
    pub(crate) fn peer(&self) -> Option<PeerStatus> {
        let qpn = self.peer.load(Ordering::Relaxed);
        let path = if self.direct.load(Ordering::Relaxed) {
            DataPath::Direct
        } else {
            DataPath::Wire
        };
        (qpn != 0).then_some(PeerStatus {
            qpn: Qpn::new(qpn),
            path,
        })
    }

    /// Rate limit in kb/s, 0 for none.
    pub(crate) fn rate(&self) -> u32 {
        self.rate.load(Ordering::Relaxed)
    }
}
