// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The devices of a runtime, by port and by MAC address.

use std::ptr;
use std::sync::Arc;

use roce::net::{Mac, MacIndex};
use virtio_rdma_abi::number::PortId;

use super::MAX_PORTS;
use crate::Device;

/// The devices of a runtime. Turns look a device up by its port or its MAC address: they can't
/// visit all devices, so their work does not grow with the number of ports.
#[derive(Clone, Default)]
pub(crate) struct Devices {
    /// Sorted by port.
    by_port: Vec<Arc<Device>>,
    by_mac: MacIndex<Arc<Device>>,
}

impl Devices {
    /// The lowest port number that no device has.
    pub(super) fn unused_port(&self) -> PortId {
        // Ports are numbered from 1. The first device whose port number is not 1 + its position is
        // after the first unused number.
        let gap = (1..)
            .zip(&self.by_port)
            .find(|(port, device)| device.port().get() != *port);
        let place = gap.map_or(self.by_port.len(), |(port, _)| port as usize - 1);
        assert!(place < MAX_PORTS as usize, "too many ports");
        PortId::new(place as u32 + 1)
    }

    /// Adds a device, whose port and MAC addresses no other device has.
    pub(super) fn insert(&mut self, device: Arc<Device>) {
        let place = self.search(device.port()).unwrap_or_else(|place| place);
        for mac in device.config().macs() {
            self.by_mac.insert(&mac, device.clone());
        }
        self.by_port.insert(place, device);
    }

    /// Removes a device. Returns whether it was there.
    pub(super) fn remove(&mut self, device: &Device) -> bool {
        let is_it = |other: &Arc<Device>| ptr::eq(&**other, device);
        let place = self.search(device.port()).ok();
        let Some(place) = place.filter(|place| is_it(&self.by_port[*place])) else {
            return false;
        };
        self.by_port.remove(place);
        for mac in device.config().macs() {
            self.by_mac.remove_if(&mac, is_it);
        }
        true
    }

    /// The device at `port`, if there is one.
    #[inline]
    pub(super) fn at(&self, port: PortId) -> Option<&Arc<Device>> {
        // The position is the port's number less 1 unless an earlier device was removed.
        let place = (port.get() as usize).wrapping_sub(1);
        let device = self.by_port.get(place);
        if device.is_some_and(|device| device.port() == port) {
            return device;
        }
        self.search(port).ok().map(|place| &self.by_port[place])
    }

    /// The device whose port has this MAC address, its own or a further one, if there is one.
    #[inline]
    pub(super) fn with_mac(&self, mac: &Mac) -> Option<&Arc<Device>> {
        self.by_mac.get(mac)
    }

    /// All devices.
    #[cfg(feature = "testing")]
    pub(super) fn all(&self) -> &[Arc<Device>] {
        &self.by_port
    }

    fn search(&self, port: PortId) -> Result<usize, usize> {
        self.by_port
            .binary_search_by_key(&port, |device| device.port())
    }
}
