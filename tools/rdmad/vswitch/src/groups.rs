// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The multicast addresses that engines have joined, as the switch's thread looks them up.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use roce::net::Mac;

use crate::index::PortIndex;

/// The ports whose engines have joined each address. The switch's thread takes the lock for each
/// multicast frame, so changes must be short: a tree never moves all its entries at once.
#[derive(Debug, Default)]
pub(crate) struct Groups(Mutex<BTreeMap<Mac, Vec<PortIndex>>>);

impl Groups {
    /// Replaces the contents of `members` by the ports whose engines have joined `mac`, in the
    /// order of their indices.
    pub(crate) fn members(&self, mac: &Mac, members: &mut Vec<PortIndex>) {
        members.clear();
        if let Some(all) = self.0.lock().get(mac) {
            members.extend_from_slice(all);
        }
    }

    fn add(&self, mac: Mac, port: PortIndex) {
        let mut groups = self.0.lock();
        let members = groups.entry(mac).or_default();
        if let Err(at) = members.binary_search(&port) {
            members.insert(at, port);
        }
    }

    fn remove(&self, mac: &Mac, port: PortIndex) {
        let mut groups = self.0.lock();
        if let Some(members) = groups.get_mut(mac) {
            members.retain(|member| *member != port);
            if members.is_empty() {
                groups.remove(mac);
            }
        }
    }
}

/// The addresses that the engine of one port has joined.
#[derive(Debug)]
pub(crate) struct Joined {
    groups: Arc<Groups>,
    port: PortIndex,
    /// Number of joins of each address; `None` after the end of the port. Its lock is taken before
    /// that of `groups`.
    joins: Mutex<Option<HashMap<Mac, u32>>>,
}

impl Joined {
    /// No addresses, for the engine of `port`.
    pub(crate) fn new(groups: Arc<Groups>, port: PortIndex) -> Self {
        Self {
            groups,
            port,
            joins: Mutex::new(Some(HashMap::new())),
        }
    }

    /// Joins an address. Joins are counted, since several multicast groups may map to one address.
    pub(crate) fn join(&self, mac: Mac) {
        if let Some(joins) = &mut *self.joins.lock() {
            let count = joins.entry(mac).or_default();
            *count += 1;
            if *count == 1 {
                self.groups.add(mac, self.port);
            }
        }
    }

    /// Takes one join of an address back.
    pub(crate) fn leave(&self, mac: Mac) {
        let mut joins = self.joins.lock();
        let Some(Entry::Occupied(mut count)) = joins.as_mut().map(|joins| joins.entry(mac)) else {
            return;
        };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
            self.groups.remove(&mac, self.port);
        }
    }

    /// Leaves all addresses for ever. Another port may then have the index.
    pub(crate) fn end(&self) {
        let joins = self.joins.lock().take();
        for mac in joins.iter().flat_map(HashMap::keys) {
            self.groups.remove(mac, self.port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Mac = [0x33, 0x33, 0, 0, 0, 1];
    const TWO: Mac = [0x33, 0x33, 0, 0, 0, 2];

    #[test]
    fn ports_join_and_leave() {
        let groups = Arc::<Groups>::default();
        let members = |mac| {
            let mut members = vec![PortIndex(99)];
            groups.members(&mac, &mut members);
            Vec::from_iter(members.into_iter().map(|PortIndex(port)| port))
        };
        let [first, second] = [7, 3].map(|port| Joined::new(groups.clone(), PortIndex(port)));
        first.join(ONE);
        first.join(ONE);
        second.join(ONE);
        second.join(TWO);
        assert_eq!((members(ONE), members(TWO)), (vec![3, 7], vec![3]));
        first.leave(ONE);
        assert_eq!(members(ONE), [3, 7], "it has joined twice");
        first.leave(ONE);
        first.leave(ONE);
        first.leave(TWO);
        assert_eq!((members(ONE), members(TWO)), (vec![3], vec![3]));
        second.end();
        assert_eq!((members(ONE), members(TWO)), (vec![], vec![]));
        second.leave(TWO);
        second.join(TWO);
        assert_eq!(members(TWO), [], "the port has ended");
        assert!(groups.0.lock().is_empty());
    }
}
