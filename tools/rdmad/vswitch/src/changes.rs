// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Changes of the ports. Other threads request them, and the switch's thread makes them between two
//! rounds.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};

use parking_lot::Mutex;

use crate::forwarder::SwitchPort;
use crate::index::PortIndex;
use crate::pcap::PcapWriter;
use crate::waker::Waker;

/// A change of the ports.
pub(crate) enum Change {
    /// Assign a free index to a port, for which these addresses are configured.
    Occupy(PortIndex, Box<SwitchPort>, Vec<IpAddr>),
    /// Remove the port and free its index.
    Vacate(PortIndex),
    /// Start or end the capture of a port's frames.
    Capture(PortIndex, Option<PcapWriter>),
}

/// Values that a change returns. The requesting thread drops them, since closing files may take
/// long.
pub(crate) enum ChangeResult {
    Nothing,
    Port(Box<SwitchPort>),
    Capture(PcapWriter),
}

/// A requested change, and the channel for its result.
pub(crate) struct ChangeRequest {
    change: Change,
    done: SyncSender<io::Result<ChangeResult>>,
}

impl ChangeRequest {
    /// Makes the change by `change`, and sends the result to the requesting thread.
    pub(crate) fn carry_out(self, change: impl FnOnce(Change) -> io::Result<ChangeResult>) {
        // This can't fail: the requesting thread waits for the result.
        let _ = self.done.send(change(self.change));
    }
}

/// The pending changes.
#[derive(Default)]
pub(crate) struct ChangeRequests {
    /// Whether changes are pending.
    some: AtomicBool,
    waiting: Mutex<Vec<ChangeRequest>>,
}

impl ChangeRequests {
    /// Requests a change from the thread that `waker` wakes, and waits for it.
    pub(crate) fn give(&self, change: Change, waker: &Waker) -> io::Result<ChangeResult> {
        let (done, result) = sync_channel(1);
        self.waiting.lock().push(ChangeRequest { change, done });
        self.some.store(true, Ordering::Release);
        waker.wake();
        let ended = |_| io::Error::other("the switch has ended");
        result.recv().map_err(ended)?
    }

    /// Takes the changes that were requested since the last call.
    pub(crate) fn take(&self) -> Vec<ChangeRequest> {
        if !self.some.load(Ordering::Relaxed) || !self.some.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.waiting.lock())
    }
}

impl std::fmt::Debug for ChangeRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} changes", self.waiting.lock().len())
    }
}
