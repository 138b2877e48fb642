// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! RDMA ports of this guest.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

/// Directory with an entry for each RDMA device.
const DEVICES: &str = "/sys/class/infiniband";
const LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until `number` RDMA devices have an active port. The kernel registers a device and reports
/// its link some time after the module is loaded. Until then, programs fail.
pub fn await_active(number: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        let states = states(Path::new(DEVICES));
        if states.iter().filter(|state| is_active(state)).count() >= number {
            return Ok(());
        }
        if start.elapsed() > LIMIT {
            bail!(
                "{number} active RDMA ports expected, found: {}; virtio devices: {}; drivers: {}",
                list(&states),
                list(&virtio_ids()),
                list(&virtio_drivers())
            );
        }
        thread::sleep(PAUSE);
    }
}

/// Name of each RDMA device and the state of its port, for example `rxe0 4: ACTIVE`.
fn states(devices: &Path) -> Vec<String> {
    let mut states: Vec<_> = fs::read_dir(devices)
        .into_iter()
        .flatten()
        .flatten()
        .map(|device| {
            let state = fs::read_to_string(device.path().join("ports/1/state"));
            let name = device.file_name();
            format!(
                "{} {}",
                name.to_string_lossy(),
                state.as_deref().unwrap_or("without state").trim()
            )
        })
        .collect();
    states.sort();
    states
}

fn is_active(state: &str) -> bool {
    state.ends_with(" ACTIVE")
}

/// The ids of all virtio devices.
fn virtio_ids() -> Vec<String> {
    fs::read_dir("/sys/bus/virtio/devices")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("device")).ok())
        .map(|id| id.trim().to_owned())
        .collect()
}

/// The names of all drivers of virtio devices.
fn virtio_drivers() -> Vec<String> {
    let drivers = fs::read_dir("/sys/bus/virtio/drivers");
    let names = drivers.into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn list(items: &[String]) -> String {
    match items {
        [] => "none".into(),
        _ => items.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_a_link_are_not_active() {
        let dir = tempfile::tempdir().unwrap();
        for (device, state) in [
            ("b0", Some("4: ACTIVE\n")),
            ("a0", Some("1: DOWN\n")),
            ("c0", None),
        ] {
            let port = dir.path().join(device).join("ports/1");
            fs::create_dir_all(&port).unwrap();
            if let Some(state) = state {
                fs::write(port.join("state"), state).unwrap();
            }
        }
        let states = states(dir.path());
        assert_eq!(states, ["a0 1: DOWN", "b0 4: ACTIVE", "c0 without state"]);
        let active: Vec<_> = states.iter().filter(|state| is_active(state)).collect();
        assert_eq!(active, ["b0 4: ACTIVE"]);
        assert!(!is_active("d0 5: ACTIVE_DEFER"));
    }
}
