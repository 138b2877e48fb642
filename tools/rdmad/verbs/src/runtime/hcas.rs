// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The HCAs of a runtime, by port and by MAC address.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use roce::net::{Mac, MacIndex};
use scheduler::MAX_PORTS;
use virtio_rdma_abi::number::PortId;

use crate::address_leases::AddressLeases;
use crate::Hca;

/// The HCAs of a runtime, which come and go.
pub(crate) struct Registry {
    hcas: ArcSwap<Hcas>,
    /// Lock that is held while `hcas` is changed.
    changes: Mutex<()>,
    /// Whether the direct path is enabled.
    pub direct: AtomicBool,
}

/// The HCAs of a runtime at one time. Turns look an HCA up by its port or its MAC address: they
/// can't visit all HCAs, so their work does not grow with the number of ports.
#[derive(Clone, Default)]
pub(super) struct Hcas {
    /// Sorted by port.
    by_port: Vec<Arc<Hca>>,
    by_mac: MacIndex<Arc<Hca>>,
}

impl Registry {
    /// A registry without HCAs.
    pub(super) fn new(direct: bool) -> Self {
        Self {
            hcas: ArcSwap::default(),
            changes: Mutex::new(()),
            direct: AtomicBool::new(direct),
        }
    }

    /// The present HCAs.
    #[inline]
    pub(super) fn load(&self) -> Guard<Arc<Hcas>> {
        self.hcas.load()
    }

    /// Chooses an unused port number, calls `make` with it, and adds the HCA that `make` returns,
    /// with its addresses.
    pub(crate) fn attach(
        &self,
        address_leases: &AddressLeases,
        make: impl FnOnce(PortId) -> Arc<Hca>,
    ) -> Arc<Hca> {
        let _change = self.changes.lock();
        let mut hcas = Hcas::clone(&self.hcas.load());
        let hca = make(hcas.unused_port());
        let config = hca.config();
        address_leases.give(hca.port(), config.macs(), &config.addresses);
        hcas.insert(hca.clone());
        self.hcas.store(Arc::new(hcas));
        hca
    }

    /// Removes an HCA, and its addresses. Returns false if the HCA was removed before, even if
    /// another one has its port number now. Workers that looked the HCA up before may still serve
    /// it on return.
    pub(crate) fn remove(&self, address_leases: &AddressLeases, hca: &Hca) -> bool {
        let _change = self.changes.lock();
        let mut hcas = Hcas::clone(&self.hcas.load());
        let removed = hcas.remove(hca);
        if removed {
            self.hcas.store(Arc::new(hcas));
            address_leases.take_back(hca.port());
        }
        removed
    }

    /// Removes all HCAs, at the end of the runtime.
    pub(super) fn clear(&self) {
        self.hcas.store(Arc::default());
    }

    /// The HCA whose port has this MAC address, if the direct path is enabled and the HCA is in
    /// isolation group `group`.
    pub(crate) fn direct_peer(&self, group: u32, mac: Mac) -> Option<Arc<Hca>> {
        let is_enabled = self.direct.load(Ordering::Relaxed);
        is_enabled.then(|| self.peer(group, mac)).flatten()
    }

    /// The HCA whose port has this MAC address, if it is in isolation group `group`.
    pub(crate) fn peer(&self, group: u32, mac: Mac) -> Option<Arc<Hca>> {
        self.hcas
            .load()
            .with_mac(&mac)
            .filter(|hca| hca.config().group == group)
            .cloned()
    }
}

impl Hcas {
    /// The lowest port number that no HCA has.
    pub(super) fn unused_port(&self) -> PortId {
        // Ports are numbered from 1. The first HCA whose port number is not 1 + its position is
        // after the first unused number.
        let gap = (1..)
            .zip(&self.by_port)
            .find(|(port, hca)| hca.port().get() != *port);
        let place = gap.map_or(self.by_port.len(), |(port, _)| port as usize - 1);
        assert!(place < MAX_PORTS as usize, "too many ports");
        PortId::new(place as u32 + 1)
    }

    /// Adds an HCA, whose port and MAC addresses no other HCA has.
    pub(super) fn insert(&mut self, hca: Arc<Hca>) {
        let place = self.search(hca.port()).unwrap_or_else(|place| place);
        for mac in hca.config().macs() {
            self.by_mac.insert(&mac, hca.clone());
        }
        self.by_port.insert(place, hca);
    }

    /// Removes an HCA. Returns whether it was in the list.
    pub(super) fn remove(&mut self, hca: &Hca) -> bool {
        let is_it = |other: &Arc<Hca>| ptr::eq(&**other, hca);
        let place = self.search(hca.port()).ok();
        let Some(place) = place.filter(|place| is_it(&self.by_port[*place])) else {
            return false;
        };
        self.by_port.remove(place);
        for mac in hca.config().macs() {
            self.by_mac.remove_if(&mac, is_it);
        }
        true
    }

    #[inline]
    pub(super) fn at(&self, port: PortId) -> Option<&Arc<Hca>> {
        // The position is the port's number less 1 unless an earlier HCA was removed.
        let place = (port.get() as usize).wrapping_sub(1);
        let hca = self.by_port.get(place);
        if hca.is_some_and(|hca| hca.port() == port) {
            return hca;
        }
        self.search(port).ok().map(|place| &self.by_port[place])
    }

    /// The HCA whose port has this MAC address, as its own or as an additional one, if there is
    /// one.
    #[inline]
    pub(super) fn with_mac(&self, mac: &Mac) -> Option<&Arc<Hca>> {
        self.by_mac.get(mac)
    }

    #[cfg(feature = "testing")]
    pub(super) fn all(&self) -> &[Arc<Hca>] {
        &self.by_port
    }

    fn search(&self, port: PortId) -> Result<usize, usize> {
        self.by_port.binary_search_by_key(&port, |hca| hca.port())
    }
}
