// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The kernel's messages, as dmesg shows them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};
use rustix::fs::OFlags;

/// The longest record of the kernel's log, in bytes.
pub const RECORD: usize = 8192;

/// Opens the log. A read returns one record, or fails if there is none yet.
pub fn open() -> Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits())?;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open("/dev/kmsg")
        .context("can't open /dev/kmsg")
}

/// Prints all messages.
pub fn show() -> Result<()> {
    let mut log = open()?;
    let mut record = vec![0; RECORD];
    loop {
        match log.read(&mut record) {
            Ok(length) => {
                if let Some(line) = line(&String::from_utf8_lossy(&record[..length])) {
                    println!("{line}");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // Messages were overwritten before they were read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Formats a record, "priority,number,microseconds,flags;text" with lines of details.
fn line(record: &str) -> Option<String> {
    let (head, text) = record.split_once(';')?;
    let time: u64 = head.split(',').nth(2)?.parse().ok()?;
    let text = text.lines().next()?;
    Some(format!(
        "[{:5}.{:06}] {text}",
        time / 1_000_000,
        time % 1_000_000
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_become_lines() {
        let record = "6,339,5140900,-;NET: Registered\n SUBSYSTEM=net\n";
        assert_eq!(line(record).unwrap(), "[    5.140900] NET: Registered");
        assert!(line("").is_none());
    }
}
