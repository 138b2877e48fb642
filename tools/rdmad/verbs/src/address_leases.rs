// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The ports' claims on the addresses in their GID tables.
//!
//! An address belongs to one port of a runtime, whatever the ports' isolation groups: peers find a
//! port by its address and trust the address. An address that the configuration assigns to a port
//! is reserved for that port, in all VLANs. Any other address belongs, within its VLAN, to the port
//! that has the address in its GID table, until that port removes it or is detached.
//!
//! A reset empties the GID table, but the port keeps its addresses for a [while](KEPT): no other VM
//! takes them while its VM starts again.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use roce::net::{ip_to_gid, link_local, Mac};
use virtio_rdma_abi::number::PortId;

use crate::error::{Reason, Refusal, Result, What};
use crate::gid::{Address, Gid};

/// How long a port keeps its addresses after a reset.
const KEPT: Duration = Duration::from_secs(60);

/// The leases of the ports of one runtime.
#[derive(Debug, Default)]
pub(crate) struct AddressLeases(Mutex<Leases>);

#[derive(Debug, Default)]
struct Leases {
    /// The port to which the configuration assigns each address.
    given: HashMap<Gid, PortId>,
    /// The holder of each other address.
    held: HashMap<Address, Holder>,
}

#[derive(Debug)]
struct Holder {
    port: PortId,
    /// Number of entries with the address in the port's GID table.
    entries: u32,
    /// When the port loses the address, if its table was cleared by a reset.
    until: Option<Instant>,
}

impl Leases {
    /// Whether the configuration assigns `gid` to `port`. Refuses an address of another port, and
    /// one that a `restricted` port was not given.
    fn is_given(&self, port: PortId, gid: Gid, restricted: bool) -> Result<bool> {
        let reason = match self.given.get(&gid) {
            Some(&owner) if owner == port => return Ok(true),
            Some(_) => Reason::OtherPort,
            None if restricted => Reason::NotPermitted,
            None => return Ok(false),
        };
        Err(Refusal::gid(reason, What::Gid, gid))
    }
}

impl AddressLeases {
    /// Assigns `addresses` and the link-local addresses of `macs` to a new port.
    pub(crate) fn give(
        &self,
        port: PortId,
        macs: impl IntoIterator<Item = Mac>,
        addresses: &[IpAddr],
    ) {
        let own = macs.into_iter().map(|mac| link_local(mac).into());
        let gids = addresses.iter().copied().chain(own).map(ip_to_gid);
        self.0.lock().given.extend(gids.map(|gid| (gid, port)));
    }

    /// Withdraws all addresses of a port that is gone.
    pub(crate) fn take_back(&self, port: PortId) {
        let Leases { given, held } = &mut *self.0.lock();
        given.retain(|_, owner| *owner != port);
        held.retain(|_, holder| holder.port != port);
    }

    /// Lets `port` enter `address` in its GID table at `now`. A `restricted` port may use only the
    /// addresses assigned to it.
    ///
    /// # Errors
    ///
    /// [`OtherPort`](Reason::OtherPort), or [`NotPermitted`](Reason::NotPermitted) if the address
    /// is not assigned to `port`.
    pub(crate) fn lease(
        &self,
        port: PortId,
        address: Address,
        restricted: bool,
        now: Instant,
    ) -> Result<()> {
        let leases = &mut *self.0.lock();
        if leases.is_given(port, address.gid, restricted)? {
            return Ok(());
        }
        let held = &mut leases.held;
        let unused = Holder {
            port,
            entries: 0,
            until: None,
        };
        let holder = held.entry(address).or_insert(unused);
        if holder.until.is_some_and(|until| until <= now) {
            holder.port = port;
        }
        if holder.port != port {
            return Err(Refusal::gid(Reason::OtherPort, What::Gid, address.gid));
        }
        holder.entries += 1;
        holder.until = None;
        Ok(())
    }

    /// Refuses a source address that the configuration assigns to another port, or one that a
    /// `restricted` port was not given.
    pub(crate) fn permits(&self, port: PortId, gid: Gid, restricted: bool) -> Result<()> {
        self.0.lock().is_given(port, gid, restricted).map(drop)
    }

    /// Records that an entry with `address` was cleared in the GID table of `port`. With the last
    /// such entry, the port's lease of the address ends.
    pub(crate) fn release(&self, port: PortId, address: Address) {
        if let Entry::Occupied(mut entry) = self.0.lock().held.entry(address) {
            let holder = entry.get_mut();
            if holder.port != port {
                return;
            }
            holder.entries -= 1;
            if holder.entries == 0 {
                entry.remove();
            }
        }
    }

    /// Records that a reset has cleared these entries of the GID table of `port` at `now`. The port
    /// keeps their addresses for a while, and those of an earlier reset only if there are none.
    pub(crate) fn cleared(&self, port: PortId, addresses: &[Address], now: Instant) {
        let held = &mut self.0.lock().held;
        if !addresses.is_empty() {
            // So a port keeps at most one table's addresses of earlier resets, beside those that
            // its table has now.
            held.retain(|_, holder| holder.port != port || holder.until.is_none());
        }
        for address in addresses {
            let holder = held.get_mut(address).filter(|holder| holder.port == port);
            if let Some(holder) = holder {
                holder.entries -= 1;
                holder.until = (holder.entries == 0).then(|| now + KEPT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::ctrl::Errno;

    use super::*;
    use crate::error::errno;

    const ONE: PortId = PortId::new(1);
    const TWO: PortId = PortId::new(2);
    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));

    fn address(ip: IpAddr, vlan: Option<u16>) -> Address {
        Address {
            gid: ip_to_gid(ip),
            vlan,
        }
    }

    /// Lets a port enter an address at a time, in seconds.
    struct Table(AddressLeases, Instant);

    impl Table {
        fn new() -> Self {
            Self(AddressLeases::default(), Instant::now())
        }

        fn at(&self, second: u64) -> Instant {
            self.1 + Duration::from_secs(second)
        }

        fn lease(
            &self,
            port: PortId,
            address: Address,
            second: u64,
        ) -> std::result::Result<(), Errno> {
            errno(self.0.lease(port, address, false, self.at(second)))
        }
    }

    // abi
    #[test]
    fn an_address_is_of_one_port_in_its_vlan() {
        let table = Table::new();
        let (plain, tagged) = (address(IP, None), address(IP, Some(5)));
        table.lease(ONE, plain, 0).unwrap();
        table.lease(ONE, plain, 0).unwrap();
        table.lease(TWO, tagged, 0).unwrap();
        assert_eq!(table.lease(TWO, plain, 0), Err(Errno::Eaddrinuse));
        assert_eq!(table.lease(ONE, tagged, 0), Err(Errno::Eaddrinuse));
        // ONE holds the address, so a release by TWO has no effect.
        table.0.release(TWO, plain);
        table.0.release(ONE, plain);
        assert_eq!(table.lease(TWO, plain, 0), Err(Errno::Eaddrinuse));
        table.0.release(ONE, plain);
        table.lease(TWO, plain, 0).unwrap();
    }

    /// A VM that starts again finds its addresses, however often its HCA is reset meanwhile.
    // abi
    #[test]
    fn a_port_keeps_its_addresses_for_a_minute_after_a_reset() {
        let table = Table::new();
        let [first, second] = [None, Some(5)].map(|vlan| address(IP, vlan));
        let cleared = |addresses: &[Address], second| {
            table.0.cleared(ONE, addresses, table.at(second));
        };
        for address in [first, first, second] {
            table.lease(ONE, address, 0).unwrap();
        }
        cleared(&[first, first, second], 10);
        cleared(&[], 20);
        for address in [first, second] {
            assert_eq!(table.lease(TWO, address, 69), Err(Errno::Eaddrinuse));
        }
        table.lease(ONE, first, 69).unwrap();
        table.lease(TWO, second, 70).unwrap();
        assert_eq!(table.lease(ONE, second, 300), Err(Errno::Eaddrinuse));
        assert_eq!(
            table.lease(TWO, first, 300),
            Err(Errno::Eaddrinuse),
            "it is in use"
        );
        // An address that the driver deletes is free at once.
        table.0.release(TWO, second);
        table.lease(ONE, second, 300).unwrap();
        // Addresses of an earlier table are not kept in addition to those of the last one.
        cleared(&[first, second], 300);
        table.lease(ONE, second, 301).unwrap();
        cleared(&[second], 301);
        table.lease(TWO, first, 302).unwrap();
        assert_eq!(table.lease(TWO, second, 302), Err(Errno::Eaddrinuse));
        table.0.take_back(ONE);
        table.lease(TWO, second, 302).unwrap();
    }

    // abi
    #[test]
    fn a_given_address_is_of_its_port_in_all_vlans() {
        let table = Table::new();
        let now = table.at(0);
        let leases = &table.0;
        let mac = |last| [2, 0, 0, 0, 0, last];
        leases.give(ONE, [mac(1)], &[IP]);
        leases.give(TWO, [mac(2)], &[]);
        let other = IpAddr::from([10, 9, 0, 2]);
        for vlan in [None, Some(5)] {
            let given = address(IP, vlan);
            assert_eq!(table.lease(TWO, given, 0), Err(Errno::Eaddrinuse));
            leases.lease(ONE, given, true, now).unwrap();
            leases.release(ONE, given);
            let other = address(other, vlan);
            let restricted = leases.lease(ONE, other, true, now);
            assert_eq!(errno(restricted), Err(Errno::Eperm));
            table.lease(TWO, other, 0).unwrap();
            for (port, last, other) in [(ONE, 1, TWO), (TWO, 2, ONE)] {
                let own = address(link_local(mac(last)).into(), vlan);
                leases.lease(port, own, true, now).unwrap();
                assert_eq!(table.lease(other, own, 0), Err(Errno::Eaddrinuse));
            }
        }
        leases.take_back(ONE);
        table.lease(TWO, address(IP, None), 0).unwrap();
    }
}
