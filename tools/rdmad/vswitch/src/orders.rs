// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Changes that other threads have the switch's thread make, between two of its rounds.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};

use parking_lot::Mutex;

use crate::forwarder::SwitchPort;
use crate::index::PortIndex;
use crate::waker::Waker;

/// A change.
pub(crate) enum Change {
    /// A port takes a seat that is vacant, with the addresses that it was given.
    Occupy(PortIndex, Box<SwitchPort>, Vec<IpAddr>),
    /// A port leaves.
    Vacate(PortIndex),
}

/// A change, and where to tell of its end.
pub(crate) struct Order {
    change: Change,
    done: SyncSender<io::Result<Option<SwitchPort>>>,
}

impl Order {
    /// Makes the change by `change`, which returns the port that left, if one did.
    pub(crate) fn carry_out(self, change: impl FnOnce(Change) -> io::Result<Option<SwitchPort>>) {
        // The thread that gave the order waits.
        let _ = self.done.send(change(self.change));
    }
}

/// The changes that wait.
#[derive(Default)]
pub(crate) struct Orders {
    /// Whether there are any.
    some: AtomicBool,
    waiting: Mutex<Vec<Order>>,
}

impl Orders {
    /// Has the thread that `waker` wakes make a change. Returns the port that left, if one did,
    /// which is dropped by the caller: closing its sockets may take long.
    pub(crate) fn give(&self, change: Change, waker: &Waker) -> io::Result<Option<SwitchPort>> {
        let (done, result) = sync_channel(1);
        self.waiting.lock().push(Order { change, done });
        self.some.store(true, Ordering::Release);
        waker.wake();
        let ended = |_| io::Error::other("the switch has ended");
        result.recv().map_err(ended)?
    }

    /// The changes that were given since the last call.
    pub(crate) fn take(&self) -> Vec<Order> {
        if !self.some.load(Ordering::Relaxed) || !self.some.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.waiting.lock())
    }
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} orders", self.waiting.lock().len())
    }
}
