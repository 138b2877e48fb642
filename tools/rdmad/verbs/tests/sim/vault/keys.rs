// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Valid and former keys of a vault.

use testkit::engine::{Mr, FULL};
use virtio_rdma_abi::ctrl::{CmdDeregMr, CmdRegUserMr, CmdRegUserMrPages, CmdReregMr, ReregFlags};
use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::Pdn;
use virtio_rdma_abi::wire::Wire;

use crate::choices::Choices;
use crate::guest::Guest;
use crate::party::deregister;

use super::fast::Fast;
use super::windows::Windows;

/// Maximum number of MRs at a time.
const MRS: usize = 5;
/// Number of former MRs whose keys are still tried.
const OLD: usize = 4;

const LOCAL: AccessFlags = AccessFlags::LOCAL_WRITE;
/// All access flags, also `MW_BIND`.
const BINDABLE: AccessFlags = AccessFlags(FULL.0 | AccessFlags::MW_BIND.0);

/// Error code of commands for an MR to which a window is bound.
const EBUSY: u8 = 16;

/// An MR that covers the vault.
struct Key {
    mr: Mr,
    /// Whether the MR is in the PD of the owner's QP.
    ours: bool,
    access: AccessFlags,
}

/// All keys of a vault.
pub struct Keys<'w> {
    guest: &'w Guest,
    /// The PD of the owner's QP, and another PD.
    pdns: [Pdn; 2],
    iova: u64,
    len: u64,
    present: Vec<Key>,
    old: Vec<Mr>,
    pub windows: Windows<'w>,
    /// Keys that the peer invalidates.
    invalidated: Vec<u32>,
    /// The MR for fast registration, which only QPs of the kernel may use.
    pub fast: Option<Fast<'w>>,
}

/// Random access flags of an MR, most of the time all of them.
fn access_flags(choices: &mut Choices) -> AccessFlags {
    choices.of(&[
        BINDABLE,
        BINDABLE,
        BINDABLE,
        FULL,
        LOCAL,
        AccessFlags::REMOTE_READ,
        LOCAL | AccessFlags::REMOTE_WRITE,
        LOCAL | AccessFlags::REMOTE_ATOMIC,
        LOCAL | AccessFlags::REMOTE_READ,
        AccessFlags::NONE,
    ])
}

impl<'w> Keys<'w> {
    /// Keys of a QP of a process (`user`) or of the kernel. The parameters in parentheses are DMA
    /// address and length of the vault.
    pub fn new(guest: &'w Guest, pdns: [Pdn; 2], (iova, len): (u64, u64), user: bool) -> Self {
        let mr = guest.vm.register(pdns[0], iova, len, BINDABLE);
        Self {
            fast: (!user).then(|| Fast::new(guest, pdns[0], (iova, len, mr.addr))),
            windows: Windows::new(guest, pdns[0], iova),
            guest,
            pdns,
            iova,
            len,
            present: vec![Key {
                mr,
                ours: true,
                access: BINDABLE,
            }],
            old: Vec::new(),
            invalidated: Vec::new(),
        }
    }

    /// Whether `key` permits `access` to `len` bytes of the vault from offset `at` on, for the
    /// owner's QP.
    pub fn opens(&self, key: u32, at: usize, len: usize, access: AccessFlags) -> bool {
        let (first, end) = (self.iova + at as u64, self.iova + (at + len) as u64);
        self.present.iter().any(|known| {
            known.mr.key == key
                && known.ours
                && known.access.contains(access)
                && known.mr.iova <= first
                && end <= known.mr.iova + known.mr.len
        }) || self
            .fast
            .as_ref()
            .is_some_and(|fast| fast.opens(key, at, len, access))
    }

    /// A key to try, with the address of the vault's first byte. The key is valid, a former one or
    /// one that never existed.
    pub fn pick(&self, choices: &mut Choices) -> Mr {
        let mut mr = match choices.below(8) {
            0 if !self.old.is_empty() => self.old[choices.below(self.old.len())],
            _ => self.present[choices.below(self.present.len())].mr,
        };
        if let Some(key) = self.windows.pick(choices).filter(|_| choices.once_in(3)) {
            mr.key = key;
        } else if let Some(key) = self.pick_fast(choices) {
            mr.key = key;
        } else if choices.once_in(24) {
            // A key with another variant or another MR number, or key 0.
            mr.key = choices.of(&[mr.key ^ 1, mr.key ^ 0x100, 0]);
        }
        mr.addr = mr.addr.wrapping_add(self.iova).wrapping_sub(mr.iova);
        mr
    }

    fn pick_fast(&self, choices: &mut Choices) -> Option<u32> {
        let key = self.fast.as_ref()?.pick()?;
        choices.once_in(3).then_some(key)
    }

    /// A valid key that the peer may invalidate.
    pub fn pick_to_invalidate(&self, choices: &mut Choices) -> Option<u32> {
        let fast = self.fast.as_ref().and_then(Fast::pick_to_invalidate);
        let keys: Vec<_> = self.windows.to_invalidate().chain(fast).collect();
        (!keys.is_empty()).then(|| choices.of(&keys))
    }

    /// A key that the peer must not invalidate.
    pub fn pick_permanent(&self, choices: &mut Choices) -> u32 {
        let present = self.present.iter().map(|key| key.mr.key);
        let keys: Vec<_> = present.chain(self.windows.permanent()).chain([0]).collect();
        choices.of(&keys)
    }

    /// Begins the invalidation of `key` by the peer. Until its end, the owner does not change the
    /// key.
    pub fn begin_invalidate(&mut self, key: u32) {
        self.invalidated.push(key);
        self.windows.begin_invalidate(key);
        if let Some(fast) = self.fast.as_mut().filter(|fast| fast.has(key)) {
            fast.begin_invalidate();
        }
    }

    /// Ends the invalidation of `key` by the peer. Returns whether it had not ended before.
    pub fn end_invalidate(&mut self, key: u32) -> bool {
        let Some(at) = self.invalidated.iter().position(|known| *known == key) else {
            return false;
        };
        self.invalidated.swap_remove(at);
        self.windows.end_invalidate(key);
        if let Some(fast) = self.fast.as_mut().filter(|fast| fast.has(key)) {
            fast.end_invalidate();
        }
        true
    }

    /// The vault as an MR: the address of its first byte, for any key.
    pub fn whole(&self) -> Mr {
        let mut mr = self.present[0].mr;
        mr.addr = mr.addr.wrapping_add(self.iova).wrapping_sub(mr.iova);
        mr
    }

    /// An MR to which a window may be bound.
    pub fn bindable(&self, choices: &mut Choices) -> Option<Mr> {
        let admits = |key: &&Key| key.ours && key.access.contains(BINDABLE);
        let all: Vec<_> = self.present.iter().filter(admits).collect();
        (!all.is_empty()).then(|| all[choices.below(all.len())].mr)
    }

    /// Registers, deregisters or changes an MR.
    pub fn change(&mut self, choices: &mut Choices) {
        let at = choices.below(self.present.len());
        match choices.below(4) {
            0 if self.present.len() < MRS => self.register(choices),
            1 if self.present.len() > 1 => {
                let mrn = self.present[at].mr.mrn;
                match self.windows.show(mrn) {
                    None => return,
                    Some(true) => {
                        let refused = self.guest.vm.call(CmdDeregMr { mrn });
                        assert_eq!(refused.err(), Some(EBUSY), "a window shows it");
                        return;
                    }
                    Some(false) => {}
                }
                let key = self.present.swap_remove(at);
                deregister(self.guest, &key.mr);
                self.old.push(key.mr);
                if self.old.len() > OLD {
                    self.old.remove(0);
                }
            }
            2 => self.reregister(at, choices),
            _ => {}
        }
    }

    fn register(&mut self, choices: &mut Choices) {
        let (start, len) = match choices.once_in(3) {
            true => {
                let start = choices.below(self.len as usize) as u64;
                (start, 1 + choices.below((self.len - start) as usize) as u64)
            }
            false => (0, self.len),
        };
        let ours = !choices.once_in(5);
        let access = access_flags(choices);
        let pdn = self.pdns[usize::from(!ours)];
        let vm = &self.guest.vm;
        let mr = vm.register(pdn, self.iova + start, len, access);
        assert!(
            self.present.iter().all(|key| key.mr.key != mr.key),
            "two MRs with one key"
        );
        self.present.push(Key { mr, ours, access });
    }

    /// Changes access flags, PD or both of an MR by REREG_MR.
    fn reregister(&mut self, at: usize, choices: &mut Choices) {
        let key = &mut self.present[at];
        let flags = choices.of(&[
            ReregFlags::ACCESS,
            ReregFlags::PD,
            ReregFlags::ACCESS | ReregFlags::PD,
        ]);
        let (ours, access) = (!choices.once_in(5), access_flags(choices));
        let memory = CmdRegUserMr {
            pdn: self.pdns[usize::from(!ours)],
            access_flags: access,
            ..CmdRegUserMr::ZERO
        };
        let request = CmdReregMr {
            mrn: key.mr.mrn,
            flags,
            memory: CmdRegUserMrPages {
                base: memory,
                ..CmdRegUserMrPages::ZERO
            },
        };
        match self.windows.show(key.mr.mrn) {
            None => return,
            Some(true) => {
                let refused = self.guest.vm.call(request);
                assert_eq!(refused.err(), Some(EBUSY), "a window shows it");
                return;
            }
            Some(false) => self.guest.vm.call(request).unwrap(),
        };
        if flags.contains(ReregFlags::PD) {
            key.ours = ours;
        }
        if flags.contains(ReregFlags::ACCESS) {
            key.access = access;
        }
    }

    /// Deregisters all MRs and deallocates all windows.
    pub fn destroy(&mut self) {
        self.windows.destroy();
        if let Some(fast) = &self.fast {
            fast.destroy();
        }
        for key in self.present.drain(..) {
            deregister(self.guest, &key.mr);
        }
    }
}
