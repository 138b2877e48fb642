// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The GID table of the port.

use parking_lot::RwLock;
use roce::net::{gid_to_ip, vlan_id};
use serde::{Deserialize, Serialize};

use crate::error::{at_most, refusal, Reason, Refusal, Result, What};

/// A GID, in network byte order.
pub(crate) type Gid = [u8; 16];

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) gid: Gid,
    /// VLAN id, if packets from and to the address carry a VLAN tag.
    pub(crate) vlan: Option<u16>,
}

/// The VLAN of a packet with this tag, or `None` for an untagged packet. A tag with VLAN id 0 (a
/// priority tag of IEEE 802.1Q) counts as untagged.
pub(crate) fn vlan_of(tag: Option<u16>) -> Option<u16> {
    tag.map(vlan_id).filter(|id| *id != 0)
}

/// The GID table: addresses by index, as the driver sets them.
#[derive(Debug)]
pub(crate) struct GidTable {
    entries: RwLock<Box<[Option<Address>]>>,
}

impl GidTable {
    /// An empty table with `size` entries.
    pub(crate) fn new(size: u16) -> Self {
        Self {
            entries: RwLock::new(vec![None; size.into()].into()),
        }
    }

    /// Sets an entry, unless it is in use. Refuses a GID that no port can have.
    pub(crate) fn add(&self, index: u16, address: Address) -> Result<()> {
        let ip = gid_to_ip(address.gid);
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(Refusal::gid(Reason::NotUnicast, What::Gid, address.gid));
        }
        let mut entries = self.entries.write();
        match entry(&mut entries, index)? {
            Some(_) => Err(refusal(Reason::Exists, What::Index, index)),
            entry => {
                *entry = Some(address);
                Ok(())
            }
        }
    }

    /// Clears an entry and returns the address that it contained.
    pub(crate) fn delete(&self, index: u16) -> Result<Option<Address>> {
        let mut entries = self.entries.write();
        Ok(entry(&mut entries, index)?.take())
    }

    /// The entry at `index`.
    pub(crate) fn get(&self, index: u8) -> Option<Address> {
        self.entries
            .read()
            .get(usize::from(index))
            .copied()
            .flatten()
    }

    /// Whether the table has an entry for `gid` in the VLAN of `tag`, or an untagged one if there
    /// is no tag.
    pub(crate) fn contains(&self, gid: Gid, tag: Option<u16>) -> bool {
        let vlan = vlan_of(tag);
        self.entries.read().contains(&Some(Address { gid, vlan }))
    }

    /// Whether the table has an entry in the VLAN of `tag`, or an untagged entry if there is no
    /// tag.
    pub(crate) fn have_vlan(&self, tag: Option<u16>) -> bool {
        let vlan = vlan_of(tag);
        let entries = self.entries.read();
        entries.iter().flatten().any(|entry| entry.vlan == vlan)
    }

    /// The entries and their indices.
    pub(crate) fn all(&self) -> Vec<(u16, Address)> {
        let entries = self.entries.read();
        let entries = (0..).zip(&**entries);
        entries
            .filter_map(|(index, entry)| Some((index, (*entry)?)))
            .collect()
    }

    /// Clears all entries and returns their addresses.
    pub(crate) fn clear(&self) -> Vec<Address> {
        let mut entries = self.entries.write();
        entries.iter_mut().filter_map(Option::take).collect()
    }
}

fn entry(entries: &mut [Option<Address>], index: u16) -> Result<&mut Option<Address>> {
    at_most(What::Index, index, entries.len().saturating_sub(1) as u64)?;
    Ok(&mut entries[usize::from(index)])
}
