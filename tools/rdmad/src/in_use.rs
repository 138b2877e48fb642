// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names, addresses and paths that must be unique among all ports.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{ensure, Result};

use crate::cli::{Mac, PortArgs};

/// Names, addresses and paths that are in use.
#[derive(Default)]
pub struct InUse<'a> {
    names: HashSet<&'a str>,
    macs: HashSet<Mac>,
    addresses: HashSet<IpAddr>,
    paths: HashSet<&'a Path>,
}

impl<'a> InUse<'a> {
    /// Adds the path of a socket. Fails if the path is in use.
    pub fn path(&mut self, path: &'a Path) -> Result<()> {
        ensure!(
            self.paths.insert(path),
            "two sockets have the path {}",
            path.display()
        );
        Ok(())
    }

    /// Adds the name, addresses and paths of a port. Fails if one of them is in use.
    pub fn port(&mut self, port: &'a PortArgs) -> Result<()> {
        ensure!(
            self.names.insert(&port.name),
            "two ports have the name {}",
            port.name
        );
        for mac in [port.mac].into_iter().chain(port.more_macs.iter().copied()) {
            ensure!(
                self.macs.insert(mac),
                "two ports have the MAC address {mac}"
            );
        }
        for address in &port.addresses {
            ensure!(
                self.addresses.insert(*address),
                "two ports have the IP address {address}"
            );
        }
        port.paths().try_for_each(|path| self.path(path))
    }
}
