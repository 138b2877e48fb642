// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The ends of the phases of this guest's start, of which the host makes a table.

use std::fs::{self, OpenOptions};
use std::io::Write;

use anyhow::{Context, Result};
use rustix::time::{clock_gettime, ClockId};

/// A line for each phase: its end in seconds since the kernel's start, and its name.
const FILE: &str = "/run/virtio-rdma/phases";

/// The line of a phase that ends now.
pub fn line(phase: &str) -> String {
    let now = clock_gettime(ClockId::Monotonic);
    format!("{}.{:09} {phase}\n", now.tv_sec, now.tv_nsec)
}

/// Adds lines to the file.
pub fn write(lines: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(FILE);
    file.and_then(|mut file| file.write_all(lines.as_bytes()))
        .context(FILE)
}

/// Ends a phase.
pub fn end(phase: &str) -> Result<()> {
    write(&line(phase))
}

/// The lines of all phases.
pub fn read() -> Result<String> {
    fs::read_to_string(FILE).context(FILE)
}
