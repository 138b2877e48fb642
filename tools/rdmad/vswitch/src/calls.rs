// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Calls of engines to the thread of the switch. The thread looks only at the ports that have
//! called, so a round takes no longer with many idle ports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::index::PortIndex;
use crate::port_set::PortSet;
use crate::waker::Waker;

/// The calls of all engines.
#[derive(Debug)]
pub(crate) struct Calls {
    waker: Arc<Waker>,
    /// Ports whose engines have sent frames.
    senders: PortSet,
    /// Ports whose engines have got free buffers in the present round.
    with_room: PortSet,
    max_ports: usize,
    /// Whether a pool of buffers has a surplus.
    has_surplus: AtomicBool,
}

impl Calls {
    /// No calls, for at most `max_ports` ports.
    pub(crate) fn new(waker: Arc<Waker>, max_ports: usize) -> Self {
        Self {
            waker,
            senders: PortSet::new(max_ports),
            with_room: PortSet::new(max_ports),
            max_ports,
            has_surplus: AtomicBool::new(false),
        }
    }

    /// Maximum number of ports.
    pub(crate) fn max_ports(&self) -> usize {
        self.max_ports
    }

    /// Tells the thread that the engine of `port` has sent frames.
    pub(crate) fn sent(&self, port: PortIndex) {
        self.senders.insert(port);
        self.waker.wake();
    }

    /// Notes in the thread itself that it has left frames of the engine of `port` for its next
    /// round.
    pub(crate) fn left(&self, port: PortIndex) {
        self.senders.insert(port);
    }

    /// Notes in the thread itself that the engine of `port` has got free buffers.
    pub(crate) fn freed(&self, port: PortIndex) {
        self.with_room.insert(port);
    }

    /// Tells the thread that a pool of buffers has a surplus.
    pub(crate) fn surplus(&self) {
        self.has_surplus.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether a pool got a surplus since the last call.
    pub(crate) fn take_surplus(&self) -> bool {
        self.has_surplus.load(Ordering::Relaxed) && self.has_surplus.swap(false, Ordering::AcqRel)
    }

    /// Ports whose engines have sent frames since the last call, or had frames left.
    pub(crate) fn take_senders(&self) -> impl Iterator<Item = PortIndex> + '_ {
        self.senders.take()
    }

    /// Ports whose engines have got free buffers since the last call.
    pub(crate) fn take_with_room(&self) -> impl Iterator<Item = PortIndex> + '_ {
        self.with_room.take()
    }
}
