// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Groups of objects that work with each other and have a model of what must become of them.

use std::ptr;

use virtio_rdma_abi::ctrl::{CmdDeregMr, CmdDestroyCq, CmdDestroyQp};

use crate::choices::Choices;
use crate::guest::Guest;
use crate::harness::{Cq, Mr, Qp};

/// Whether these are one guest.
pub fn is_same(one: &Guest, other: &Guest) -> bool {
    ptr::eq(one, other)
}

/// One group. The run steps it, ends it and puts another in its place.
pub trait Party<'w> {
    /// Does one thing that a driver may do.
    fn act(&mut self, choices: &mut Choices);

    /// Takes and checks the events that have come. Returns whether there were any.
    fn take_events(&mut self) -> bool;

    /// Polls until all CQs are empty and checks completions. Returns whether there were any.
    fn poll(&mut self) -> bool;

    /// Posts what work under way still needs to be done, such as receives. Returns whether it did.
    fn feed(&mut self) -> bool {
        false
    }

    /// Has work go on that was held, when all else has ended. Returns whether there was any.
    fn resume(&mut self) -> bool {
        false
    }

    /// Takes its QPs to ERR.
    fn end(&mut self);

    /// Whether nothing more can become of it.
    fn is_over(&self) -> bool {
        false
    }

    /// Checks that all is done and told. Nothing is under way any more.
    fn finish(&mut self);

    /// Whether it has objects of a guest.
    fn uses(&self, guest: &Guest) -> bool;

    /// Destroys all objects of the party. Its devices may be executing their work.
    fn destroy(self: Box<Self>) -> Vec<Grave<'w>>;
}

/// Destroys a QP.
pub fn destroy_qp(guest: &Guest, qp: &Qp<'_>) {
    guest.give_back(CmdDestroyQp { qpn: qp.qpn });
}

/// Destroys a CQ.
pub fn destroy_cq(guest: &Guest, cq: &Cq<'_>) {
    guest.give_back(CmdDestroyCq { cqn: cq.cqn });
}

/// Deregisters an MR.
pub fn deregister(guest: &Guest, mr: &Mr) {
    guest.give_back(CmdDeregMr { mrn: mr.mrn });
}

/// Memory and cookies that no object has any more.
pub struct Grave<'w> {
    pub guest: &'w Guest,
    pub cookies: Vec<u64>,
    iova: u64,
    bytes: Vec<u8>,
}

impl<'w> Grave<'w> {
    /// The allocator of the rest of `len` bytes at `iova`. Events that have come already are taken.
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

    /// No device has touched it, nor told of its objects.
    pub fn is_quiet(&self) {
        let now = self.guest.vm.read(self.iova, self.bytes.len());
        assert!(now == self.bytes, "written after its MR was gone");
        for cookie in &self.cookies {
            assert!(!self.guest.has_event(*cookie), "an event of what is gone");
        }
    }
}
