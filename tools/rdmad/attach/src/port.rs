// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QEMU's arguments for the PCI functions of a port: a network interface and the RDMA device.

use serde_json::json;

use crate::{argument, value, Argument};

/// Paths of the datagram sockets of an Ethernet link, from QEMU's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPaths {
    /// The socket that QEMU binds.
    pub local: String,
    /// The socket that QEMU sends to.
    pub remote: String,
}

impl LinkPaths {
    /// QEMU's options for a backend named `id`, and for a network interface at `address` of the
    /// root bus. `is_first` is set for function 0 of a slot with several functions.
    pub fn interface(&self, id: &str, mac: &str, address: &str, is_first: bool) -> [Argument; 2] {
        let multifunction = if is_first { ",multifunction=on" } else { "" };
        let backend = format!(
            "dgram,id={id},local.type=unix,local.path={},remote.type=unix,remote.path={}",
            value(&self.local),
            value(&self.remote)
        );
        // Without a boot ROM, which some distributions ship in a separate package.
        let device = format!(
            "virtio-net-pci,netdev={id},mac={mac},bus=pcie.0,addr={address}{multifunction},romfile="
        );
        [argument("-netdev", backend), argument("-device", device)]
    }
}

/// A port of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Path of the device's vfio-user socket.
    pub vfio: String,
    /// The Ethernet link, if the port has one.
    pub link: Option<LinkPaths>,
    /// MAC address of the network interface.
    pub mac: String,
    /// Slot of both functions on the root bus of a q35 machine.
    pub slot: u8,
}

impl Port {
    /// QEMU's options for the network interface and the device. These are functions 0 and 1 of one
    /// slot, because the driver derives its GIDs from the interface in its own slot. Without a link
    /// the device is function 0.
    pub fn arguments(&self) -> Vec<Argument> {
        let slot = self.slot;
        let mut arguments = Vec::new();
        if let Some(link) = &self.link {
            let address = format!("{slot:x}.0");
            // A VM may have several ports, each in a slot of its own.
            let id = format!("rnet{slot:x}");
            arguments.extend(link.interface(&id, &self.mac, &address, true));
        }
        let function = u8::from(self.link.is_some());
        // Only the JSON form of -device takes the address of a socket.
        let device = json!({
            "driver": "vfio-user-pci",
            "socket": {"type": "unix", "path": self.vfio},
            "bus": "pcie.0",
            "addr": format!("{slot:x}.{function}"),
        });
        arguments.push(argument("-device", device.to_string()));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> Port {
        Port {
            vfio: "a.vfio".into(),
            link: Some(LinkPaths {
                local: "a.qemu".into(),
                remote: "a.net".into(),
            }),
            mac: "52:54:00:09:00:01".into(),
            slot: 0x1d,
        }
    }

    fn device([option, value]: &Argument) -> serde_json::Value {
        assert_eq!(option, "-device");
        serde_json::from_str(value).unwrap()
    }

    #[test]
    fn interface_and_device_share_a_slot() {
        let arguments = port().arguments();
        let [backend, interface, rdma] = &arguments[..] else {
            panic!("{arguments:?}");
        };
        assert_eq!(
            backend[1],
            "dgram,id=rnet1d,local.type=unix,local.path=a.qemu,remote.type=unix,remote.path=a.net"
        );
        assert_eq!(
            interface[1],
            "virtio-net-pci,netdev=rnet1d,mac=52:54:00:09:00:01,bus=pcie.0,addr=1d.0,\
             multifunction=on,romfile="
        );
        let expected = json!({
            "driver": "vfio-user-pci",
            "socket": {"type": "unix", "path": "a.vfio"},
            "bus": "pcie.0",
            "addr": "1d.1",
        });
        assert_eq!(device(rdma), expected);
    }

    #[test]
    fn a_device_without_a_link_is_the_only_function() {
        let alone = Port {
            link: None,
            ..port()
        };
        let arguments = alone.arguments();
        assert_eq!(arguments.len(), 1);
        assert_eq!(device(&arguments[0])["addr"], "1d.0");
    }
}
