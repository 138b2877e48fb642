// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Properties of a QP that can be seen without its locks, so that a reader never holds a worker up.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use virtio_rdma_abi::number::Qpn;

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
    /// Notes the connection: QPN of the peer, if there is one, and whether data goes there without
    /// packets.
    pub(super) fn set_connection(&self, peer: Option<Qpn>, direct: bool) {
        self.peer.store(peer.map_or(0, Qpn::get), Ordering::Relaxed);
        self.direct.store(direct, Ordering::Relaxed);
    }

    /// Notes the rate limit in kb/s, or 0.
    pub(super) fn set_rate(&self, rate: u32) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// QPN of the peer of a connection.
    pub(crate) fn peer(&self) -> Option<Qpn> {
        let peer = self.peer.load(Ordering::Relaxed);
        (peer != 0).then_some(Qpn::new(peer))
    }

    /// Whether data goes to the peer without packets.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Rate limit in kb/s, 0 for none.
    pub(crate) fn rate(&self) -> u32 {
        self.rate.load(Ordering::Relaxed)
    }
}
