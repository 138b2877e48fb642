// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Parties: groups of objects that interact, with a model of the expected results.

use std::ptr;
use std::time::Instant;

use testkit::engine::{Cq, Mr, Qp};
use virtio_rdma_abi::ctrl::{CmdDeregMr, CmdDestroyCq, CmdDestroyQp};

use crate::choices::Choices;
use crate::guest::Guest;

/// Whether `one` and `other` are the same guest.
pub fn is_same(one: &Guest, other: &Guest) -> bool {
    ptr::eq(one, other)
}

/// A group of objects that interact. A run calls [`act`](Self::act) again and again, and may
/// destroy the party and create another.
pub trait Party<'w> {
    /// Executes one random act of a driver.
    fn act(&mut self, choices: &mut Choices);

    /// Looks at rings and events, and changes nothing. Called after each step of a worker, and
    /// before the clock advances.
    fn observe(&mut self) {}

    /// The first time at which an event that is delayed must have arrived.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Takes and checks the events that have arrived. Returns whether there were any.
    fn take_events(&mut self) -> bool;

    /// Polls until all CQs are empty and checks completions. Returns whether there were any.
    fn poll(&mut self) -> bool;

    /// Posts work requests, such as receives, without which outstanding work can't complete.
    /// Returns whether any was posted.
    fn feed(&mut self) -> bool {
        false
    }

    /// Resumes paused work after all other work has ended. Returns whether work was paused.
    fn resume(&mut self) -> bool {
        false
    }

    /// Moves all QPs of the party to ERR.
    fn end(&mut self);

    /// Whether further acts have no effect.
    fn is_over(&self) -> bool {
        false
    }

    /// Checks that all work requests are complete and all events have arrived. Called when all work
    /// has ended.
    fn finish(&mut self);

    /// Whether the party has objects of `guest`.
    fn uses(&self, guest: &Guest) -> bool;

    /// Destroys all objects of the party, possibly in the middle of their work. Returns the memory
    /// that must not change afterwards.
    fn destroy(self: Box<Self>) -> Vec<Destroyed<'w>>;
}

pub fn destroy_qp(guest: &Guest, qp: &Qp<'_>) {
    guest.give_back(CmdDestroyQp { qpn: qp.qpn });
    guest.leave_counter_set(qp.qpn);
}

pub fn destroy_cq(guest: &Guest, cq: &Cq<'_>) {
    guest.give_back(CmdDestroyCq { cqn: cq.cqn });
}

/// Deregisters an MR.
pub fn deregister(guest: &Guest, mr: &Mr) {
    guest.give_back(CmdDeregMr { mrn: mr.mrn });
}

/// Memory and event cookies of destroyed objects, which no device may use any more.
pub struct Destroyed<'w> {
    pub guest: &'w Guest,
    pub cookies: Vec<u64>,
    iova: u64,
    bytes: Vec<u8>,
}

impl<'w> Destroyed<'w> {
    /// Records the content of `len` bytes at `iova`, and discards the events that have arrived.
    pub fn new(guest: &'w Guest, cookies: Vec<u64>, iova: u64, len: u64) -> Self {
        for cookie in &cookies {
            guest.take_events(*cookie);
        }
        Self {
            guest,
            cookies,
            iova,
            bytes: guest.vm.read(iova, len as usize),
        }
    }

    /// Checks that no device has changed the memory or raised an event of a destroyed object.
    pub fn is_quiet(&self) {
        let now = self.guest.vm.read(self.iova, self.bytes.len());
        assert!(now == self.bytes, "written after its MR was gone");
        for cookie in &self.cookies {
            assert!(!self.guest.has_event(*cookie), "an event of what is gone");
        }
    }
}
