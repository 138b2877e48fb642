// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! System calls of a polling program per message: the difference between a longer and a shorter
//! run.

use std::fs;

use anyhow::{Context, Result};

use super::own_file;

/// Number of messages in the shorter and the longer run.
pub const MESSAGES: [u64; 2] = [1000, 3000];

/// A program's command line under strace, and the file that strace writes.
pub fn counted(argv: Vec<String>) -> (Vec<String>, std::path::PathBuf) {
    let file = own_file("strace");
    let mut all: Vec<String> = ["strace", "-f", "-c", "-o"].map(str::to_owned).into();
    all.push(file.display().to_string());
    all.extend(argv);
    (all, file)
}

/// The number of system calls that strace has counted.
pub fn calls(file: &std::path::Path) -> Result<u64> {
    let text =
        fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    total(&text).context("strace printed no total")
}

fn total(summary: &str) -> Option<u64> {
    // The columns: % time, seconds, usecs/call, calls, sometimes errors, "total".
    let line = summary.lines().find(|line| line.ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n \
            60.00    0.000600          12        50           read\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.001000          10       100         3 total\n";
        assert_eq!(total(summary), Some(100));
        assert_eq!(total("nothing"), None);
    }
}
