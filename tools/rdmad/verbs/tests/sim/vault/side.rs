// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One side of a vault's connection, and its posted work requests.

use std::collections::VecDeque;

use testkit::engine::{Cq, Mr, Options, Qp};
use virtio_rdma_abi::ib::{AccessFlags, WcStatus};
use virtio_rdma_abi::number::Pdn;

use super::{fast, windows};
use crate::guest::Guest;
use crate::memory::Model;
use crate::party::{destroy_cq, destroy_qp};

/// Operation of a try.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// The thief writes to the vault.
    Write,
    /// The thief reads from the vault.
    Read,
    /// The thief adds to a word of the vault by an atomic operation.
    Add,
    /// The thief sends a message to a receive of the owner. The receive buffer is in the vault.
    Receive,
    /// The owner sends from the vault.
    Send,
    /// The owner reads into the vault.
    Fetch,
    /// The owner binds or invalidates a window.
    Window(windows::Change),
    /// The owner registers or invalidates an MR.
    Register(fast::Change),
    /// The thief sends a message that invalidates this key.
    Invalidate(u32),
}

impl Kind {
    /// Access flags that the operation needs.
    pub fn access(self) -> AccessFlags {
        match self {
            Self::Write => AccessFlags::REMOTE_WRITE,
            Self::Read => AccessFlags::REMOTE_READ,
            Self::Add => AccessFlags::REMOTE_ATOMIC,
            Self::Receive | Self::Fetch | Self::Invalidate(_) => AccessFlags::LOCAL_WRITE,
            Self::Send | Self::Window(_) | Self::Register(_) => AccessFlags::NONE,
        }
    }

    /// Completion status of the operation if its key does not grant the access.
    pub fn refused(self) -> WcStatus {
        match self {
            Self::Write | Self::Read | Self::Add | Self::Invalidate(_) => WcStatus::RemAccessErr,
            Self::Receive => WcStatus::RemOpErr,
            Self::Send | Self::Fetch => WcStatus::LocProtErr,
            Self::Window(_) | Self::Register(_) => WcStatus::MwBindErr,
        }
    }

    /// Whether the operation changes the content of the vault.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Send) && !self.changes_keys()
    }

    /// Whether the operation changes a key.
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
    /// Offset in the vault, in bytes.
    pub at: usize,
    /// Length in bytes.
    pub len: usize,
    /// Whether the current keys permit the operation.
    pub allowed: bool,
    /// Whether the operation may succeed or may have succeeded.
    pub succeeds: bool,
    /// Status with which the operation may fail; `None` if it must not fail.
    pub fails: Option<WcStatus>,
    /// Whether the work request was posted after the invalidation of its key.
    pub after_invalidation: bool,
}

/// A receive that waits for the message of a try.
#[derive(Debug)]
pub(super) struct Receive {
    /// Id of the try.
    pub id: u64,
    pub area: usize,
    /// Length of the message in bytes.
    pub len: usize,
    /// The key that the message invalidates.
    pub invalidates: Option<u32>,
    /// Possible results of the receive, once the try has completed: whether the receive may
    /// succeed, and whether it may fail.
    pub ended: Option<(bool, bool)>,
}

/// Objects and work requests of one side.
pub(super) struct Side<'w> {
    pub cq: Cq<'w>,
    pub qp: Qp<'w>,
    pub memory: Model<'w>,
    /// Tries in the order of the SQ.
    pub tries: VecDeque<Try>,
    pub receives: VecDeque<Receive>,
    /// Whether a work request of the SQ has completed in error.
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
