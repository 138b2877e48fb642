// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The virtio-serial port to the host.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use guest::PORT_NAME;

/// Directory with an entry for each port.
const PORTS: &str = "/sys/class/virtio-ports";

/// Opens the port.
pub fn open() -> Result<File> {
    let path = path()?;
    let port = OpenOptions::new().read(true).write(true).open(&path);
    port.with_context(|| format!("can't open {}", path.display()))
}

fn path() -> Result<PathBuf> {
    for entry in fs::read_dir(PORTS).context(PORTS)?.flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == PORT_NAME {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    anyhow::bail!("no virtio-serial port of the name {PORT_NAME}")
}
