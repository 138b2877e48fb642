// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QEMU's arguments for the PCI functions of a port: a network interface and the RDMA device.

use serde_json::json;

use crate::{argument, value, Argument};

/// How long QEMU waits before it connects again to the socket of a network interface.
const RECONNECT_MS: u32 = 1000;

/// QEMU's option for a network interface with the backend `id`, at `address` of the root bus.
/// `is_first` is set for function 0 of a slot with several functions.
pub fn interface(id: &str, mac: &str, address: &str, is_first: bool) -> Argument {
    let multifunction = if is_first { ",multifunction=on" } else { "" };
    // Without a boot ROM, which some distributions ship in a separate package.
    let device = format!(
        "virtio-net-pci,netdev={id},mac={mac},bus=pcie.0,addr={address}{multifunction},romfile="
    );
    argument("-device", device)
}

/// A port of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Path of the device's vfio-user socket.
    pub vfio: String,
    /// Path of the socket of the network interface, if the port has one.
    pub net: Option<String>,
    /// MAC address of the network interface.
    pub mac: String,
    /// Slot of both functions on the root bus of a q35 machine.
    pub slot: u8,
}

impl Port {
    /// QEMU's options for the network interface and the device. These are functions 0 and 1 of one
    /// slot, because the driver derives its GIDs from the interface in its own slot. Without an
    /// interface the device is function 0.
    pub fn arguments(&self) -> Vec<Argument> {
        let slot = self.slot;
        let mut arguments = Vec::new();
        if let Some(path) = &self.net {
            let address = format!("{slot:x}.0");
            // A VM may have several ports, each in a slot of its own.
            let id = format!("rnet{slot:x}");
            let backend = format!(
                "stream,id={id},server=off,addr.type=unix,addr.path={},reconnect-ms={RECONNECT_MS}",
                value(path)
            );
            arguments.push(argument("-netdev", backend));
            arguments.push(interface(&id, &self.mac, &address, true));
        }
        let function = u8::from(self.net.is_some());
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
            net: Some("a.net".into()),
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
            "stream,id=rnet1d,server=off,addr.type=unix,addr.path=a.net,reconnect-ms=1000"
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
    fn a_device_without_an_interface_is_the_only_function() {
        let alone = Port {
            net: None,
            ..port()
        };
        let arguments = alone.arguments();
        assert_eq!(arguments.len(), 1);
        assert_eq!(device(&arguments[0])["addr"], "1d.0");
    }
}
