// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Access to memory by keys, within a turn.

use std::cell::Cell;
use std::sync::Arc;

use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::Pdn;

use super::mr::{KeyResult, Opened};
use super::mr_cache::Flat;
use super::{KeyFault, KeyUser, MrTable, Region};

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

    /// The memory of `key`, a key without cache entry, if the key gives work of PD `pdn` all
    /// of `access` to the `len` bytes at `addr`.
    pub(super) fn region(
        &self,
        key: u32,
        pdn: Pdn,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> KeyResult<Opened> {
        self.mrs.open(key, pdn, addr, len, access).ok_or(KeyFault)
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
            return self.region(key, by.pdn, addr, len, access);
        }
        let open = |region: &Arc<Region>| region.open(key, addr, len, access);
        let opened = windows.visit(key, by, open).flatten();
        opened.map(Opened::Region).ok_or(KeyFault)
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
        granted(match self.flat(key) {
            Some(flat) => Some(flat.allows(by.pdn, addr, len, access)),
            None => self.visit_remote(key, by, |region| region.allows(key, addr, len, access)),
        })
    }

    /// Checks that `key` grants the peer of QP `by` all of `access`, whatever the address.
    pub(crate) fn names_remote(&self, key: u32, by: KeyUser, access: AccessFlags) -> KeyResult<()> {
        granted(self.visit_remote(key, by, |region| region.names(key, access)))
    }

    #[inline]
    fn visit_remote<R>(
        &self,
        key: u32,
        by: KeyUser,
        visit: impl FnOnce(&Region) -> R,
    ) -> Option<R> {
        if self.mrs.windows().owns(key) {
            self.mrs.windows().visit(key, by, |region| visit(region))
        } else {
            self.mrs.visit(key, by.pdn, visit)
        }
    }

    /// Checks that `key` gives work of PD `pdn` all of `access` to the `len` bytes at
    /// `addr`.
    #[inline]
    pub(crate) fn check(
        &self,
        key: u32,
        pdn: Pdn,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> KeyResult<()> {
        granted(match self.flat(key) {
            Some(flat) => Some(flat.allows(pdn, addr, len, access)),
            None => self
                .mrs
                .visit(key, pdn, |region| region.allows(key, addr, len, access)),
        })
    }
}

/// Converts the result of a check to a `KeyResult`. `None` means that the key is unknown.
#[inline]
fn granted(answer: Option<bool>) -> KeyResult<()> {
    match answer {
        Some(true) => Ok(()),
        _ => Err(KeyFault),
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::number::MrNumber;

    use super::*;
    use crate::memory::{unlimited, PageMap};
    use crate::pd::PdUse;
    use crate::shuffle::Secret;

    const OURS: Pdn = Pdn::new(7);
    const THEIRS: Pdn = Pdn::new(8);
    const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE;

    fn insert(table: &MrTable, pdn: Pdn) -> (MrNumber, u32) {
        let pd = PdUse::alone(pdn);
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
            assert!(keys.check(ours, THEIRS, 0x1000, 8, ACCESS).is_err(), "PD");
            assert!(keys.check(ours, OURS, 0xfff, 8, ACCESS).is_err(), "range");
            let remote = AccessFlags::REMOTE_READ;
            assert!(
                keys.check(ours, OURS, 0x1000, 8, remote).is_err(),
                "access flag"
            );
            assert!(keys.check(theirs, THEIRS, 0x1000, 8, ACCESS).is_ok());
            assert!(keys.check(theirs, OURS, 0x1000, 8, ACCESS).is_err(), "PD");
            assert!(keys.check(0, OURS, 0x1000, 8, ACCESS).is_err(), "no key");
        }
    }
}
