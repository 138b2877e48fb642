// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Instructions of a post and a poll in a program. A script of the provider counts them with
//! callgrind.

use std::process::Command;

use anyhow::{Context, Result};

use crate::figure::{Key, Report};
use crate::program::output;

const SCRIPT: &str = "tools/provider/count-instructions";
/// The name of the figure.
pub const PROVIDER: &str = "provider, post and poll of one WRITE";

/// Counts the instructions.
pub fn count() -> Result<Report> {
    let line = output(&mut Command::new(SCRIPT))?;
    let [post, poll, sum] = counts(&line).with_context(|| format!("no counts in {line:?}"))?;
    let mut report = Report::default();
    for (name, count) in [
        ("provider, post_send of one WRITE", post),
        ("provider, poll_cq of its completion", poll),
        (PROVIDER, sum),
    ] {
        report.add(Key::new(name, "direct", "instructions"), count);
    }
    Ok(report)
}

/// The numbers in a line `post_send 119 + poll_cq 131 = 250 instructions`.
fn counts(line: &str) -> Option<[f64; 3]> {
    let numbers: Vec<_> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_read() {
        let line = "post_send 119 + poll_cq 131 = 250 instructions\n";
        assert_eq!(counts(line), Some([119.0, 131.0, 250.0]));
        assert_eq!(counts("post_send + poll_cq\n"), None);
    }
}
