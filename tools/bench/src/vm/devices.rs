// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The RDMA devices of this machine, as programs are told of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

const CLASS: &str = "/sys/class/infiniband";
/// Entries that a GID table may have.
const GIDS: u32 = 256;

/// A device and the entry of its GID table to use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Index of the RoCE v2 GID of its IPv4 address.
    pub gid_index: u32,
}

/// The two that are compared.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Devices {
    /// Ours.
    pub own: Device,
    /// rxe beside it.
    pub rxe: Device,
}

impl Devices {
    /// Looks for them.
    pub fn find() -> Result<Self> {
        let mut names: Vec<_> = fs::read_dir(CLASS)
            .context("no RDMA devices")?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        names.sort();
        let find = |own: bool| {
            names
                .iter()
                .find(|dir| is_own(dir) == own)
                .with_context(|| match own {
                    true => "no device of virtio_rdma",
                    false => "no rxe: start the machines with --rxe-beside",
                })
                .and_then(|dir| device(dir))
        };
        Ok(Self {
            own: find(true)?,
            rxe: find(false)?,
        })
    }
}

/// Whether virtio_rdma drives a device.
fn is_own(dir: &Path) -> bool {
    fs::read_link(dir.join("device/driver")).is_ok_and(|driver| driver.ends_with("virtio_rdma"))
}

fn device(dir: &Path) -> Result<Device> {
    let name = dir
        .file_name()
        .context("no name")?
        .to_string_lossy()
        .into_owned();
    let port = dir.join("ports/1");
    let text = |path: String| fs::read_to_string(port.join(path)).unwrap_or_default();
    let gid_index = (0..GIDS)
        .find(|index| {
            text(format!("gid_attrs/types/{index}")).trim() == "RoCE v2"
                && is_ipv4(text(format!("gids/{index}")).trim())
        })
        .with_context(|| format!("{name} has no RoCE v2 GID of an IPv4 address"))?;
    Ok(Device { name, gid_index })
}

fn is_ipv4(gid: &str) -> bool {
    gid.starts_with("0000:0000:0000:0000:0000:ffff:")
}
