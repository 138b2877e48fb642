// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Names and addresses of guests: a name for the IPv4 address of each port, and a name for the IPv6
//! address of each guest's first port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};

/// A name of a guest, and its address.
#[derive(Debug, PartialEq, Eq)]
pub struct Host {
    /// The guest's number.
    pub vm: usize,
    pub name: String,
    /// The address of the name.
    pub address: IpAddr,
}

/// The addresses of a port. Ports are counted from 0, guests from 1.
pub fn addresses(vm: usize, port: usize) -> Result<(Ipv4Addr, Ipv6Addr)> {
    let vm = u8::try_from(vm).context("the number of a VM must be below 256")?;
    let port = u8::try_from(port).context("the number of a port must be below 256")?;
    let v4 = Ipv4Addr::new(10, 9, port, vm);
    let v6 = Ipv6Addr::new(0xfd09, 0, 0, port.into(), 0, 0, 0, vm.into());
    Ok((v4, v6))
}

/// All names of `vms` guests with `ports` ports each.
pub fn hosts(vms: usize, ports: usize) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for vm in 1..=vms {
        let mut add = |name: String, address| hosts.push(Host { vm, name, address });
        let (v4, v6) = addresses(vm, 0)?;
        add(format!("vm{vm}"), v4.into());
        add(format!("vm{vm}-6"), v6.into());
        for port in 1..ports {
            let (v4, _) = addresses(vm, port)?;
            add(format!("vm{vm}-p{}", port + 1), v4.into());
        }
    }
    Ok(hosts)
}

/// The number of the guest whose name or address is `word`.
pub fn find(hosts: &[Host], word: &str) -> Option<usize> {
    let address: Option<IpAddr> = word.parse().ok();
    let found = hosts
        .iter()
        .find(|host| host.name == word || Some(host.address) == address);
    found.map(|host| host.vm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_a_name_and_an_address() {
        let hosts = hosts(2, 3).unwrap();
        for (word, vm) in [
            ("vm1", Some(1)),
            ("vm2", Some(2)),
            ("vm2-6", Some(2)),
            ("vm1-p2", Some(1)),
            ("vm2-p3", Some(2)),
            ("10.9.0.1", Some(1)),
            ("10.9.2.2", Some(2)),
            ("fd09::2", Some(2)),
            ("vm3", None),
            ("vm2-p4", None),
            ("vm2-p1", None),
            ("vm", None),
            ("10.9.3.1", None),
        ] {
            assert_eq!(find(&hosts, word), vm, "{word}");
        }
    }
}
