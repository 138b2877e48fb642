// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory windows of a vault.

use testkit::engine::{local_inv, wqe, Mr};
use virtio_rdma_abi::ctrl::{CmdAllocMw, CmdDeallocMw};
use virtio_rdma_abi::ib::{AccessFlags, MwType, WrOpcode};
use virtio_rdma_abi::number::{MrNumber, MwNumber, Pdn};
use virtio_rdma_abi::wqe::BindMw;

use crate::choices::Choices;
use crate::guest::Guest;

/// Maximum number of windows at a time.
const WINDOWS: usize = 2;

const READ: AccessFlags = AccessFlags::REMOTE_READ;
const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const ATOMIC: AccessFlags = AccessFlags::REMOTE_ATOMIC;

/// The part of the vault to which a window is bound.
#[derive(Clone, Copy, Debug)]
struct Bound {
    mrn: MrNumber,
    at: usize,
    len: usize,
    access: AccessFlags,
}

/// State of a window after a work request.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    mwn: MwNumber,
    key: u32,
    bound: Option<Bound>,
}

struct Window {
    mwn: MwNumber,
    mw_type: MwType,
    key: u32,
    bound: Option<Bound>,
    /// Whether a work request that changes the window is outstanding.
    is_changing: bool,
}

/// All windows of a vault.
pub struct Windows<'w> {
    guest: &'w Guest,
    pdn: Pdn,
    iova: u64,
    present: Vec<Window>,
    /// The last key that became invalid.
    old: Option<u32>,
}

impl<'w> Windows<'w> {
    pub fn new(guest: &'w Guest, pdn: Pdn, iova: u64) -> Self {
        Self {
            guest,
            pdn,
            iova,
            present: Vec::new(),
            old: None,
        }
    }

    /// Whether `key` permits `access` of a peer to `len` bytes of the vault from offset `at` on.
    pub fn opens(&self, key: u32, at: usize, len: usize, access: AccessFlags) -> bool {
        let mut windows = self.present.iter().filter(|window| window.key == key);
        windows.any(|window| {
            window.bound.is_some_and(|bound| {
                bound.access.contains(access) && bound.at <= at && at + len <= bound.at + bound.len
            })
        })
    }

    /// A current or former key of a window, to be tried.
    pub fn pick(&self, choices: &mut Choices) -> Option<u32> {
        let stable = self.present.iter().filter(|window| !window.is_changing);
        let keys: Vec<_> = stable.map(|window| window.key).chain(self.old).collect();
        (!keys.is_empty()).then(|| choices.of(&keys))
    }

    /// Keys that the peer may invalidate.
    pub fn to_invalidate(&self) -> impl Iterator<Item = u32> + '_ {
        let stable = self.present.iter().filter(|window| {
            window.mw_type == MwType::Two && window.bound.is_some() && !window.is_changing
        });
        stable.map(|window| window.key)
    }

    /// Keys that no peer may invalidate: those of windows of type 1 or without a binding.
    pub fn permanent(&self) -> impl Iterator<Item = u32> + '_ {
        let stable = self.present.iter().filter(|window| {
            (window.mw_type == MwType::One || window.bound.is_none()) && !window.is_changing
        });
        stable.map(|window| window.key).chain(self.old)
    }

    /// Begins the invalidation of the window with this key by the peer.
    pub fn begin_invalidate(&mut self, key: u32) {
        for window in self.present.iter_mut().filter(|window| window.key == key) {
            window.is_changing = true;
        }
    }

    /// Ends the invalidation of the window with this key by the peer.
    pub fn end_invalidate(&mut self, key: u32) {
        for window in self.present.iter_mut().filter(|window| window.key == key) {
            (window.is_changing, window.bound) = (false, None);
            self.old = Some(key);
        }
    }

    /// Whether a window is bound to this MR; `None` if this depends on an outstanding work request.
    pub fn show(&self, mrn: MrNumber) -> Option<bool> {
        let is_bound =
            |window: &&Window| !window.is_changing && window.bound.is_some_and(|at| at.mrn == mrn);
        if self.present.iter().any(|window| is_bound(&window)) {
            return Some(true);
        }
        let changes = self.present.iter().any(|window| window.is_changing);
        (!changes).then_some(false)
    }

    /// Allocates or deallocates a window.
    pub fn allocate(&mut self, choices: &mut Choices) {
        if self.present.len() < WINDOWS {
            let mw_type = choices.of(&[MwType::One, MwType::Two]);
            let request = CmdAllocMw {
                pdn: self.pdn,
                mw_type: mw_type.value(),
                reserved: [0; 3],
            };
            let mw = self.guest.vm.call(request).unwrap();
            self.present.push(Window {
                mwn: mw.mwn,
                mw_type,
                key: mw.rkey,
                bound: None,
                is_changing: false,
            });
            return;
        }
        let at = choices.below(WINDOWS);
        if self.present[at].is_changing {
            return;
        }
        let window = self.present.swap_remove(at);
        self.guest.give_back(CmdDeallocMw { mwn: window.mwn });
        self.old = Some(window.key);
    }

    /// A work request that invalidates a window or binds it to `mr`. Returns its WQE, the key that
    /// becomes invalid, and the new state of the window.
    pub fn change(
        &mut self,
        id: u64,
        mr: &Mr,
        choices: &mut Choices,
    ) -> Option<(Vec<u8>, u32, Change)> {
        let at = choices.below(self.present.len().max(1));
        let window = self.present.get_mut(at)?;
        if window.is_changing {
            return None;
        }
        window.is_changing = true;
        let (mwn, before) = (window.mwn, window.key);
        if window.mw_type == MwType::Two && window.bound.is_some() {
            let change = Change {
                mwn,
                key: before,
                bound: None,
            };
            return Some((local_inv(id, before), before, change));
        }
        let start = choices.below(mr.len as usize / 2);
        let bound = Bound {
            mrn: mr.mrn,
            at: (mr.iova - self.iova) as usize + start,
            len: 1 + choices.below(mr.len as usize - start),
            access: choices.of(&[READ | WRITE | ATOMIC, READ | WRITE | ATOMIC, READ, WRITE]),
        };
        let key = (before & !0xff) | (before.wrapping_add(1) & 0xff);
        let bind = BindMw {
            addr: mr.addr + start as u64,
            length: bound.len as u64,
            mw_rkey: before,
            rkey: key,
            lkey: mr.key,
            access: bound.access,
            reserved: [0; 4],
        };
        let change = Change {
            mwn,
            key,
            bound: Some(bound),
        };
        Some((wqe(id, WrOpcode::BindMw, 0, &bind), before, change))
    }

    /// Applies the change of a successful work request.
    pub fn changed(&mut self, change: &Change) {
        let window = self.present.iter_mut().find(|one| one.mwn == change.mwn);
        let window = window.expect("a window stays while it changes");
        if window.key != change.key || change.bound.is_none() {
            self.old = Some(window.key);
        }
        window.is_changing = false;
        (window.key, window.bound) = (change.key, change.bound);
    }

    /// Deallocates all windows.
    pub fn destroy(&mut self) {
        for window in self.present.drain(..) {
            self.guest.give_back(CmdDeallocMw { mwn: window.mwn });
        }
    }
}
