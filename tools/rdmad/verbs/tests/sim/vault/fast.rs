// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An MR for fast registration: work requests register parts of the vault and invalidate the MR.

use testkit::engine::{local_inv, wqe, FULL};
use virtio_rdma_abi::ctrl::{CmdCreateMr, CmdDeregMr};
use virtio_rdma_abi::ib::{AccessFlags, WrOpcode};
use virtio_rdma_abi::number::{MrNumber, Pdn};
use virtio_rdma_abi::wqe::{Reg, RegPages};

use crate::choices::Choices;
use crate::guest::Guest;

const PAGE: u64 = 4096;

/// The registered part of the vault, as offset and length in bytes.
#[derive(Clone, Copy, Debug)]
struct Registered {
    at: usize,
    len: usize,
    access: AccessFlags,
}

/// State of the MR after a work request.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    key: u32,
    registered: Option<Registered>,
}

/// An MR for fast registration.
pub struct Fast<'w> {
    guest: &'w Guest,
    mrn: MrNumber,
    key: u32,
    registered: Option<Registered>,
    /// Whether a work request that changes the MR is outstanding.
    is_changing: bool,
    /// DMA address of the vault.
    iova: u64,
    /// Length of the vault in bytes.
    len: usize,
    /// Address of the vault in work requests.
    addr: u64,
}

impl<'w> Fast<'w> {
    /// Creates an MR without memory in the PD `pdn`. The parameters in parentheses are DMA address
    /// and length of the vault, and its address in work requests.
    pub fn new(guest: &'w Guest, pdn: Pdn, (iova, len, addr): (u64, u64, u64)) -> Self {
        let request = CmdCreateMr {
            pdn,
            access_flags: AccessFlags::NONE,
            max_num_sg: len.div_ceil(PAGE) as u32,
        };
        let mr = guest.vm.call(request).unwrap();
        Self {
            guest,
            mrn: mr.mrn,
            key: mr.rkey,
            registered: None,
            is_changing: false,
            iova,
            len: len as usize,
            addr,
        }
    }

    /// Whether `key` permits `access` to `len` bytes of the vault from offset `at` on.
    pub fn opens(&self, key: u32, at: usize, len: usize, access: AccessFlags) -> bool {
        let opens = |known: Registered| {
            known.access.contains(access) && known.at <= at && at + len <= known.at + known.len
        };
        self.key == key && self.registered.is_some_and(opens)
    }

    /// Whether `key` is the current key.
    pub fn has(&self, key: u32) -> bool {
        self.key == key
    }

    /// The current key, unless a work request that changes it is outstanding.
    pub fn pick(&self) -> Option<u32> {
        (!self.is_changing).then_some(self.key)
    }

    /// The current key, if a peer may invalidate it.
    pub fn pick_to_invalidate(&self) -> Option<u32> {
        self.pick().filter(|_| self.registered.is_some())
    }

    /// Begins the invalidation of the current key by the peer.
    pub fn begin_invalidate(&mut self) {
        self.is_changing = true;
    }

    /// Ends the invalidation of the current key by the peer.
    pub fn end_invalidate(&mut self) {
        (self.is_changing, self.registered) = (false, None);
    }

    /// A work request that registers or invalidates the MR. Returns its WQE, the key that becomes
    /// invalid, and the new state of the MR.
    pub fn change(&mut self, id: u64, choices: &mut Choices) -> Option<(Vec<u8>, u32, Change)> {
        if self.is_changing {
            return None;
        }
        self.is_changing = true;
        let before = self.key;
        if self.registered.is_some() {
            let change = Change {
                key: before,
                registered: None,
            };
            return Some((local_inv(id, before), before, change));
        }
        let at = choices.below(self.len / 2);
        let registered = Registered {
            at,
            len: 1 + choices.below(self.len - at),
            access: choices.of(&[
                FULL,
                FULL,
                AccessFlags::LOCAL_WRITE,
                AccessFlags::REMOTE_READ,
                AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
            ]),
        };
        let change = Change {
            key: (before & !0xff) | (before.wrapping_add(1) & 0xff),
            registered: Some(registered),
        };
        Some((self.wqe(id, change.key, registered), before, change))
    }

    fn wqe(&self, id: u64, key: u32, to: Registered) -> Vec<u8> {
        let first = (self.iova + to.at as u64) / PAGE;
        let end = (self.iova + (to.at + to.len) as u64).div_ceil(PAGE);
        let pages: Vec<_> = (first..end).map(|page| page * PAGE).collect();
        let reg = RegPages {
            base: Reg {
                mrn: self.mrn,
                key,
                access: to.access,
            },
            pages: self.guest.vm.page_list(&pages),
            npages: pages.len() as u32,
            iova: self.addr + to.at as u64,
            length: to.len as u64,
            page_shift: 12,
            reserved: [0; 4],
        };
        wqe(id, WrOpcode::RegMr, 0, &reg)
    }

    /// Applies the change of a successful work request.
    pub fn changed(&mut self, change: &Change) {
        self.is_changing = false;
        (self.key, self.registered) = (change.key, change.registered);
    }

    /// Deregisters the MR.
    pub fn destroy(&self) {
        self.guest.give_back(CmdDeregMr { mrn: self.mrn });
    }
}
