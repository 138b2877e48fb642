// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The RDMA devices of this machine, as sysfs shows them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

const CLASS: &str = "/sys/class/infiniband";
/// Maximum number of entries of a GID table.
const GIDS: u32 = 256;

/// A device and the entry of its GID table to use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Device {
    pub name: String,
    /// Index of the RoCE v2 GID of the device's IPv4 address.
    pub gid_index: u32,
}

/// The two devices to compare.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Devices {
    /// The virtio-rdma device.
    pub own: Device,
    pub rxe: Option<Device>,
}

impl Devices {
    pub fn find() -> Result<Self> {
        Ok(Self {
            own: device(&first(true).context("no device of virtio_rdma")?)?,
            rxe: first(false).map(|dir| device(&dir)).transpose()?,
        })
    }
}

/// Whether a device is virtio_rdma's. Its parent is the PCI function of the virtio device or, on
/// other transports, the virtio device itself.
fn is_own(dir: &Path) -> bool {
    let parent = dir.join("device");
    let children = fs::read_dir(&parent).into_iter().flatten().flatten();
    let children = children
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("virtio"))
        .map(|entry| entry.path());
    std::iter::once(parent.clone())
        .chain(children)
        .any(|device| {
            fs::read_link(device.join("driver")).is_ok_and(|driver| driver.ends_with("virtio_rdma"))
        })
}

/// The sysfs directory of the first RDMA device: of virtio-rdma if `own`, else of another driver.
fn first(own: bool) -> Option<PathBuf> {
    let devices = fs::read_dir(CLASS).ok()?.flatten();
    let devices = devices.map(|entry| entry.path());
    devices.filter(|dir| is_own(dir) == own).min()
}

/// Whether the port of the virtio-rdma device is ACTIVE.
pub fn is_active() -> bool {
    first(true).is_some_and(|device| {
        fs::read_to_string(device.join("ports/1/state"))
            .is_ok_and(|state| state.trim().ends_with("ACTIVE"))
    })
}

/// VM exits and interrupts that a device has caused, according to its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exits {
    /// Number of doorbells, each of which is a VM exit.
    pub doorbells: u64,
    /// Number of completion events, each of which is an interrupt.
    pub events: u64,
}

impl Exits {
    /// The counters' present values.
    pub fn of(device: &Device) -> Result<Self> {
        Ok(Self {
            doorbells: counter(device, "doorbells")?,
            events: counter(device, "completion_events")?,
        })
    }
}

fn counter(device: &Device, name: &str) -> Result<u64> {
    let file = Path::new(CLASS)
        .join(&device.name)
        .join(format!("ports/1/hw_counters/{name}"));
    let text =
        fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("no number in {}", file.display()))
}

/// The GID at the device's `gid_index`.
pub fn gid(device: &Device) -> Result<[u8; 16]> {
    let file = Path::new(CLASS)
        .join(&device.name)
        .join(format!("ports/1/gids/{}", device.gid_index));
    let text = fs::read_to_string(&file)?;
    let digits = u128::from_str_radix(&text.trim().replace(':', ""), 16)
        .with_context(|| format!("no GID in {}", file.display()))?;
    Ok(digits.to_be_bytes())
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
