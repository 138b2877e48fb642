// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The HCAs of a runtime, by port and by MAC address.

use std::ptr;
use std::sync::Arc;

use roce::net::{Mac, MacIndex};
use virtio_rdma_abi::number::PortId;

use super::MAX_PORTS;
use crate::Hca;

/// The HCAs of a runtime. Turns look an HCA up by its port or its MAC address: they can't
/// visit all HCAs, so their work does not grow with the number of ports.
#[derive(Clone, Default)]
pub(crate) struct Hcas {
    /// Sorted by port.
    by_port: Vec<Arc<Hca>>,
    by_mac: MacIndex<Arc<Hca>>,
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

    /// Removes an HCA. Returns whether it was there.
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

    /// The HCA at `port`, if there is one.
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

    /// The HCA whose port has this MAC address, its own or a further one, if there is one.
    #[inline]
    pub(super) fn with_mac(&self, mac: &Mac) -> Option<&Arc<Hca>> {
        self.by_mac.get(mac)
    }

    /// All HCAs.
    #[cfg(feature = "testing")]
    pub(super) fn all(&self) -> &[Arc<Hca>] {
        &self.by_port
    }

    fn search(&self, port: PortId) -> Result<usize, usize> {
        self.by_port.binary_search_by_key(&port, |hca| hca.port())
    }
}
