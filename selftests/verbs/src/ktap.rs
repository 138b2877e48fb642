// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reports in the Kernel Test Anything Protocol, version 1.

use std::io::Write as _;

use anyhow::Result;

/// A report on standard output.
pub struct Report {
    number: usize,
    failed: usize,
}

impl Report {
    /// Starts a report of `count` tests.
    pub fn start(count: usize) -> Self {
        println!("KTAP version 1\n1..{count}");
        Self {
            number: 0,
            failed: 0,
        }
    }

    /// Reports the next test.
    pub fn result(&mut self, name: &str, outcome: Result<()>) {
        self.number += 1;
        match outcome {
            Ok(()) => println!("ok {} {name}", self.number),
            Err(error) => {
                self.failed += 1;
                println!("# {name}: {}", format!("{error:#}").replace('\n', "\n# "));
                println!("not ok {} {name}", self.number);
            }
        }
        flush();
    }

    /// Reports the next test as skipped.
    pub fn skipped(&mut self, name: &str, reason: &str) {
        self.number += 1;
        println!("ok {} {name} # SKIP {reason}", self.number);
        flush();
    }

    /// Whether no test failed.
    pub fn passed(&self) -> bool {
        self.failed == 0
    }
}

/// Flushes standard output, so that a reader of a pipe sees each result at once. Errors are
/// ignored: the reader may have exited.
fn flush() {
    let _ = std::io::stdout().flush();
}
