// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One side of a vault's connection, and the work that was posted there.

use std::collections::VecDeque;

use virtio_rdma_abi::ib::{AccessFlags, WcStatus};
use virtio_rdma_abi::number::Pdn;

use super::{fast, windows};
use crate::guest::Guest;
use crate::harness::{Cq, Mr, Options, Qp};
use crate::memory::Model;
use crate::party::{destroy_cq, destroy_qp};

/// The action of a try on the vault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A peer writes to it, reads it or adds to a word of it.
    Write,
    Read,
    Add,
    /// A peer sends, and a receive is in it.
    Receive,
    /// Its owner sends from it, or reads into it.
    Send,
    Fetch,
    /// Its owner binds or invalidates a window.
    Window(windows::Change),
    /// Its owner registers or invalidates an MR.
    Register(fast::Change),
}

impl Kind {
    /// The rights that it needs.
    pub fn access(self) -> AccessFlags {
        match self {
            Self::Write => AccessFlags::REMOTE_WRITE,
            Self::Read => AccessFlags::REMOTE_READ,
            Self::Add => AccessFlags::REMOTE_ATOMIC,
            Self::Receive | Self::Fetch => AccessFlags::LOCAL_WRITE,
            Self::Send | Self::Window(_) | Self::Register(_) => AccessFlags::NONE,
        }
    }

    /// The status without them.
    pub fn refused(self) -> WcStatus {
        match self {
            Self::Write | Self::Read | Self::Add => WcStatus::RemAccessErr,
            Self::Receive => WcStatus::RemOpErr,
            Self::Send | Self::Fetch => WcStatus::LocProtErr,
            Self::Window(_) | Self::Register(_) => WcStatus::MwBindErr,
        }
    }

    /// Whether it changes the vault.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Send) && !self.changes_keys()
    }

    /// Whether it changes a key.
    pub fn changes_keys(self) -> bool {
        matches!(self, Self::Window(_) | Self::Register(_))
    }
}

/// A work request that uses a key.
#[derive(Debug)]
pub(super) struct Try {
    pub id: u64,
    pub kind: Kind,
    pub mr: Mr,
    /// Bytes of the vault.
    pub at: usize,
    pub len: usize,
    /// It may be executed now.
    pub allowed: bool,
    /// It may have been executed.
    pub succeeds: bool,
    /// It may have been refused.
    pub fails: Option<WcStatus>,
}

/// A receive that waits for the message of a try.
#[derive(Debug)]
pub(super) struct Receive {
    /// Of the try.
    pub id: u64,
    pub area: usize,
    /// The possible results, as long as the try itself is not there to ask.
    pub ended: Option<(bool, bool)>,
}

/// Objects of a guest.
pub(super) struct Side<'w> {
    pub cq: Cq<'w>,
    pub qp: Qp<'w>,
    pub memory: Model<'w>,
    /// In the order of the SQ.
    pub tries: VecDeque<Try>,
    pub receives: VecDeque<Receive>,
    /// A work request of the SQ ended in error.
    pub failed: bool,
}

impl<'w> Side<'w> {
    pub fn new(guest: &'w Guest, pdn: Pdn, options: Options, bytes: Vec<u8>) -> Self {
        let cq = Cq::new(&guest.vm, 64);
        Self {
            qp: Qp::in_pd(&guest.vm, pdn, &cq, &cq, options),
            cq,
            memory: Model::new(guest, bytes),
            tries: VecDeque::new(),
            receives: VecDeque::new(),
            failed: false,
        }
    }

    pub fn guest(&self) -> &'w Guest {
        self.memory.guest
    }

    pub fn destroy(&self) {
        destroy_qp(self.guest(), &self.qp);
        destroy_cq(self.guest(), &self.cq);
    }
}
