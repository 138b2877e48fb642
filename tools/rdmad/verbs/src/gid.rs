// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The GID table of the port.

use parking_lot::RwLock;

use crate::error::{require, Errno, Result};

/// A GID, in network byte order.
pub(crate) type Gid = [u8; 16];

/// GIDs by index, as the driver sets them.
#[derive(Debug)]
pub(crate) struct GidTable {
    entries: RwLock<Box<[Option<Gid>]>>,
}

impl GidTable {
    /// An empty table with `size` entries.
    pub(crate) fn new(size: u16) -> Self {
        Self {
            entries: RwLock::new(vec![None; size.into()].into()),
        }
    }

    /// Sets an entry. `EINVAL` for an index beyond the table or the zero GID, `EEXIST` if the entry is in use.
    pub(crate) fn add(&self, index: u16, gid: Gid) -> Result<()> {
        require(gid != Gid::default())?;
        let mut entries = self.entries.write();
        match entries.get_mut(usize::from(index)).ok_or(Errno::INVAL)? {
            Some(_) => Err(Errno::EXIST),
            entry => {
                *entry = Some(gid);
                Ok(())
            }
        }
    }

    /// Clears an entry, which may be clear already. `EINVAL` for an index beyond the table.
    pub(crate) fn delete(&self, index: u16) -> Result<()> {
        *self
            .entries
            .write()
            .get_mut(usize::from(index))
            .ok_or(Errno::INVAL)? = None;
        Ok(())
    }

    /// The GID at `index`.
    pub(crate) fn get(&self, index: u8) -> Option<Gid> {
        self.entries
            .read()
            .get(usize::from(index))
            .copied()
            .flatten()
    }

    /// Whether `gid` is in the table.
    pub(crate) fn contains(&self, gid: Gid) -> bool {
        self.entries.read().contains(&Some(gid))
    }

    /// Clears all entries.
    pub(crate) fn clear(&self) {
        self.entries.write().fill(None);
    }
}
