// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Access to memory by keys, within a turn.

use std::cell::Cell;
use std::sync::Arc;

use virtio_rdma_abi::ib::AccessFlags;

use super::key_fault::{KeyFault, KeyResult};
use super::mr::Opened;
use super::mr_cache::Flat;
use super::{KeyUser, MrTable, Region};

/// Lookup of MRs and windows of an HCA by key. A worker creates it for one turn.
///
/// The last MR cache entry that was read is kept: the key of a work request is looked up when the
/// work request is checked and when it is executed, and the next work request often has the same
/// key. The content of an entry is valid until the turn ends.
pub(crate) struct Keys<'a> {
    mrs: &'a MrTable,
    recent: Cell<(u32, Flat)>,
}

impl<'a> Keys<'a> {
    /// Lookup of the keys of `mrs`.
    pub(crate) fn new(mrs: &'a MrTable) -> Self {
        Self {
            mrs,
            // Key 0 does not exist.
            recent: Cell::new((0, Flat::NOTHING)),
        }
    }

    /// The MR cache entry of `key`, if there is one. Keys of windows have no entry.
    #[inline]
    pub(super) fn flat(&self, key: u32) -> Option<Flat> {
        let (recent, flat) = self.recent.get();
        if recent == key && key != 0 {
            return Some(flat);
        }
        let flat = self.mrs.flat(key)?;
        self.recent.set((key, flat));
        Some(flat)
    }

    /// The memory of `key`, a key without cache entry, if the key gives work of QP `by` all of
    /// `access` to the `len` bytes at `addr`.
    pub(super) fn region(
        &self,
        key: u32,
        by: KeyUser,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> KeyResult<Opened> {
        let opened = self.mrs.open(key, by.pdn, addr, len, access);
        opened.ok_or_else(|| self.mrs.fault(key, by.pdn, Some((addr, len)), access))
    }

    /// Like [`region`](Self::region), for a request of the peer of QP `by`, which may also use keys
    /// of windows.
    pub(super) fn region_remote(
        &self,
        key: u32,
        by: KeyUser,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> KeyResult<Opened> {
        let windows = self.mrs.windows();
        if !windows.owns(key) {
            return self.region(key, by, addr, len, access);
        }
        let open = |region: &Arc<Region>| region.open(key, addr, len, access);
        let opened = windows.visit(key, by, open).flatten();
        let fault = || windows.fault(key, by, Some((addr, len)), access);
        opened.map(Opened::Region).ok_or_else(fault)
    }

    /// Checks that `key` gives the peer of QP `by` all of `access` to the `len` bytes at
    /// `addr`.
    #[inline]
    pub(crate) fn check_remote(
        &self,
        key: u32,
        by: KeyUser,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> KeyResult<()> {
        let granted = match self.flat(key) {
            Some(flat) => flat.allows(by.pdn, addr, len, access),
            None => self.visit_remote(key, by, |region| region.allows(key, addr, len, access)),
        };
        granted_or(granted, || {
            self.fault_remote(key, by, Some((addr, len)), access)
        })
    }

    /// Checks that `key` grants the peer of QP `by` all of `access`, whatever the address.
    pub(crate) fn names_remote(&self, key: u32, by: KeyUser, access: AccessFlags) -> KeyResult<()> {
        let granted = self.visit_remote(key, by, |region| region.names(key, access));
        granted_or(granted, || self.fault_remote(key, by, None, access))
    }

    /// The result of `visit` for the memory of `key`; false if the key is unknown.
    #[inline]
    fn visit_remote(&self, key: u32, by: KeyUser, visit: impl FnOnce(&Region) -> bool) -> bool {
        let visited = if self.mrs.windows().owns(key) {
            self.mrs.windows().visit(key, by, |region| visit(region))
        } else {
            self.mrs.visit(key, by.pdn, visit)
        };
        visited == Some(true)
    }

    /// Why `key`, the key of an MR, does not give work of QP `by` all of `access` to the byte at
    /// `addr`.
    #[cold]
    pub(super) fn fault(&self, key: u32, by: KeyUser, addr: u64, access: AccessFlags) -> KeyFault {
        self.mrs.fault(key, by.pdn, Some((addr, 1)), access)
    }

    #[cold]
    fn fault_remote(
        &self,
        key: u32,
        by: KeyUser,
        range: Option<(u64, u64)>,
        access: AccessFlags,
    ) -> KeyFault {
        let windows = self.mrs.windows();
        match windows.owns(key) {
            true => windows.fault(key, by, range, access),
            false => self.mrs.fault(key, by.pdn, range, access),
        }
    }

    /// Checks that `key` gives work of QP `by` all of `access` to the `len` bytes at `addr`.
    #[inline]
    pub(crate) fn check(
        &self,
        key: u32,
        by: KeyUser,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> KeyResult<()> {
        let granted = match self.flat(key) {
            Some(flat) => flat.allows(by.pdn, addr, len, access),
            None => {
                let allows = |region: &Region| region.allows(key, addr, len, access);
                self.mrs.visit(key, by.pdn, allows) == Some(true)
            }
        };
        granted_or(granted, || {
            self.mrs.fault(key, by.pdn, Some((addr, len)), access)
        })
    }
}

/// The result of a check; `fault` looks for the reason if it has failed.
#[inline]
fn granted_or(granted: bool, fault: impl FnOnce() -> KeyFault) -> KeyResult<()> {
    match granted {
        true => Ok(()),
        false => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    use roce::work::WcReason;
    use virtio_rdma_abi::number::{MrNumber, Pdn, Qpn};

    use super::*;
    use crate::memory::{unlimited, PageMap};
    use crate::pd::PdUse;
    use crate::shuffle::Secret;

    const OURS: KeyUser = KeyUser {
        pdn: Pdn::new(7),
        qpn: Qpn::new(2),
    };
    const THEIRS: KeyUser = KeyUser {
        pdn: Pdn::new(8),
        qpn: Qpn::new(3),
    };
    const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE;

    fn insert(table: &MrTable, by: KeyUser) -> (MrNumber, u32) {
        let pd = PdUse::alone(by.pdn);
        let charge = table.charge(0).unwrap();
        let (number, key) = table
            .insert(pd, ACCESS, 0x1000, PageMap::everything(), charge)
            .unwrap();
        (number, key)
    }

    #[test]
    fn a_key_opens_for_as_long_as_the_turn() {
        let table = MrTable::new(&Secret::new(None), &unlimited(), 8, 0, 8);
        let (number, key) = insert(&table, OURS);
        let turn = Keys::new(&table);
        let opens = |keys: &Keys<'_>| keys.check(key, OURS, 0x1000, 8, ACCESS).is_ok();
        assert!(opens(&turn));
        table.remove(number).unwrap();
        assert!(opens(&turn), "who took it away waits for the turn");
        assert!(!opens(&Keys::new(&table)));
    }

    #[test]
    fn what_is_remembered_is_checked_again() {
        let table = MrTable::new(&Secret::new(None), &unlimited(), 8, 0, 8);
        let (_, ours) = insert(&table, OURS);
        let (_, theirs) = insert(&table, THEIRS);
        let keys = Keys::new(&table);
        for _ in 0..3 {
            assert!(keys.check(ours, OURS, 0x1000, 8, ACCESS).is_ok());
            let fault = |key, by, addr, access| {
                let checked = keys.check(key, by, addr, 8, access);
                checked.err().map(|fault| fault.0)
            };
            let remote = AccessFlags::REMOTE_READ;
            for (key, by, addr, access, reason) in [
                (ours, THEIRS, 0x1000, ACCESS, WcReason::OtherPd),
                (ours, OURS, 0xfff, ACCESS, WcReason::OutOfBounds),
                (ours, OURS, 0x1000, remote, WcReason::AccessNotGranted),
                (ours ^ 1, OURS, 0x1000, ACCESS, WcReason::NoSuchKey),
                (theirs, OURS, 0x1000, ACCESS, WcReason::OtherPd),
                (0, OURS, 0x1000, ACCESS, WcReason::NoSuchKey),
            ] {
                assert_eq!(fault(key, by, addr, access), Some(reason));
            }
            assert_eq!(fault(theirs, THEIRS, 0x1000, ACCESS), None);
        }
    }
}
