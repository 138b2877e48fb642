// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A guest that starts without a description: the host saves it while it waits for one, and
//! restores it as any of its guests. Then it gets a description, devices, the time and new
//! randomness.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use guest::proto::{Frame, Kind};
use guest::setup::{Resumption, Setup};
use guest::{EARLY_MODULES, RESTORED_PHASE};
use rustix::time::{clock_settime, ClockId, Timespec};

use crate::{marks, messages, modules, port};

/// How long to wait for what the kernel does at the same time.
const LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// The kernel's message that its random numbers are no longer those of the saved guest. It knows by
/// the identity in QEMU's vmgenid device, which is another one in each restored guest.
const RESEEDED: &str = "crng reseeded due to virtual machine fork";

/// Waits for this guest's description and its devices. Also returns the lines of these phases.
pub fn await_setup() -> Result<(Setup, String)> {
    let mut modules: Vec<_> = fs::read_dir(EARLY_MODULES)
        .with_context(|| format!("can't read {EARLY_MODULES}"))?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    // Their names begin with numbers of equal length.
    modules.sort();
    for module in modules {
        modules::insert(&module)?;
    }
    let mut port = until(|| port::open().ok()).context("the host's port does not appear")?;
    let mut log = messages::open()?;
    log.seek(SeekFrom::End(0))?;
    Frame::new(Kind::Hello, 0, []).write(&mut port)?;

    // The host saves the guest here.
    let frame = Frame::read(&mut port).context("the host's port closed")?;
    let mut phases = marks::line(RESTORED_PHASE);
    if frame.kind != Kind::Setup {
        bail!("{:?} instead of a description", frame.kind);
    }
    let Resumption { setup, time } = serde_json::from_slice(&frame.payload)?;
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs())?,
        tv_nsec: time.subsec_nanos().into(),
    };
    clock_settime(ClockId::Realtime, time).context("can't set the clock")?;
    until(|| says(&mut log, RESEEDED)).context("the kernel has not renewed its random numbers")?;
    // The saved guest had none of the devices.
    fs::write("/sys/bus/pci/rescan", "1").context("can't look for devices")?;
    phases += &marks::line("devices");
    Ok((setup, phases))
}

/// Tries until there is a value. `None` after [`LIMIT`].
fn until<T>(mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        if let Some(value) = find() {
            return Some(value);
        }
        if began.elapsed() > LIMIT {
            return None;
        }
        thread::sleep(PAUSE);
    }
}

/// Whether a new record of the kernel's log has a text.
fn says(log: &mut File, text: &str) -> Option<()> {
    let mut record = [0; messages::RECORD];
    // An error means that there is no record yet, or that records were lost.
    while let Ok(length) = log.read(&mut record) {
        if String::from_utf8_lossy(&record[..length]).contains(text) {
            return Some(());
        }
    }
    None
}
