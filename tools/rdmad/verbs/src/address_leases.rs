// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The ports' claims on the addresses in their GID tables.
//!
//! An address belongs to one port of a runtime, whatever the ports' isolation groups: peers find a
//! port by its address and trust the address. An address that the configuration assigns to a port
//! is reserved for that port, in all VLANs. Any other address belongs, within its VLAN, to the port
//! that has the address in its GID table, until that port removes it, is reset or detached.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;
use roce::net::{ip_to_gid, link_local, Mac};
use virtio_rdma_abi::number::PortId;

use crate::error::{Errno, Result};
use crate::gid::{Address, Gid};

/// The leases of the ports of one runtime.
#[derive(Debug, Default)]
pub(crate) struct AddressLeases(Mutex<Leases>);

#[derive(Debug, Default)]
struct Leases {
    /// The port to which the configuration assigns each address.
    given: HashMap<Gid, PortId>,
    /// For each other address in use: the port whose GID table has it, and the number of entries
    /// of that table that contain it.
    held: HashMap<Address, (PortId, u32)>,
}

impl AddressLeases {
    /// Assigns `addresses` and the link-local address of `mac` to a new port.
    pub(crate) fn give(&self, port: PortId, mac: Mac, addresses: &[IpAddr]) {
        let own = [IpAddr::V6(link_local(mac))];
        let gids = addresses.iter().chain(&own).map(|ip| ip_to_gid(*ip));
        self.0.lock().given.extend(gids.map(|gid| (gid, port)));
    }

    /// Withdraws the assigned addresses of a port that is gone.
    pub(crate) fn take_back(&self, port: PortId) {
        self.0.lock().given.retain(|_, owner| *owner != port);
    }

    /// Lets `port` enter `address` in its GID table. A `restricted` port may use only the addresses
    /// assigned to it.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` if the address belongs to another port, `EPERM` if it is not assigned to
    /// `port`.
    pub(crate) fn lease(&self, port: PortId, address: Address, restricted: bool) -> Result<()> {
        let Leases { given, held } = &mut *self.0.lock();
        match given.get(&address.gid) {
            Some(&owner) if owner == port => return Ok(()),
            Some(_) => return Err(Errno::ADDRINUSE),
            None if restricted => return Err(Errno::PERM),
            None => {}
        }
        let (owner, entries) = held.entry(address).or_insert((port, 0));
        if *owner != port {
            return Err(Errno::ADDRINUSE);
        }
        *entries += 1;
        Ok(())
    }

    /// Records that an entry with `address` was cleared in the GID table of `port`. With the last
    /// such entry, the port's lease of the address ends.
    pub(crate) fn release(&self, port: PortId, address: Address) {
        if let Entry::Occupied(mut entry) = self.0.lock().held.entry(address) {
            let (owner, entries) = entry.get_mut();
            if *owner != port {
                return;
            }
            *entries -= 1;
            if *entries == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: PortId = PortId::new(1);
    const TWO: PortId = PortId::new(2);
    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));

    fn address(ip: IpAddr, vlan: Option<u16>) -> Address {
        Address {
            gid: ip_to_gid(ip),
            vlan,
        }
    }

    // abi
    #[test]
    fn an_address_is_of_one_port_in_its_vlan() {
        let leases = AddressLeases::default();
        let (plain, tagged) = (address(IP, None), address(IP, Some(5)));
        leases.lease(ONE, plain, false).unwrap();
        leases.lease(ONE, plain, false).unwrap();
        leases.lease(TWO, tagged, false).unwrap();
        assert_eq!(leases.lease(TWO, plain, false), Err(Errno::ADDRINUSE));
        assert_eq!(leases.lease(ONE, tagged, false), Err(Errno::ADDRINUSE));
        // ONE holds the address, so a release by TWO has no effect.
        leases.release(TWO, plain);
        leases.release(ONE, plain);
        assert_eq!(leases.lease(TWO, plain, false), Err(Errno::ADDRINUSE));
        leases.release(ONE, plain);
        leases.lease(TWO, plain, false).unwrap();
    }

    // abi
    #[test]
    fn a_given_address_is_of_its_port_in_all_vlans() {
        let leases = AddressLeases::default();
        let mac = |last| [2, 0, 0, 0, 0, last];
        leases.give(ONE, mac(1), &[IP]);
        leases.give(TWO, mac(2), &[]);
        let other = IpAddr::from([10, 9, 0, 2]);
        for vlan in [None, Some(5)] {
            let given = address(IP, vlan);
            assert_eq!(leases.lease(TWO, given, false), Err(Errno::ADDRINUSE));
            leases.lease(ONE, given, true).unwrap();
            leases.release(ONE, given);
            let other = address(other, vlan);
            assert_eq!(leases.lease(ONE, other, true), Err(Errno::PERM));
            leases.lease(TWO, other, false).unwrap();
            for (port, last, other) in [(ONE, 1, TWO), (TWO, 2, ONE)] {
                let own = address(link_local(mac(last)).into(), vlan);
                leases.lease(port, own, true).unwrap();
                assert_eq!(leases.lease(other, own, false), Err(Errno::ADDRINUSE));
            }
        }
        leases.take_back(ONE);
        leases.lease(TWO, address(IP, None), false).unwrap();
    }
}
