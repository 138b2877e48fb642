// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reports in the Kernel Test Anything Protocol, version 1.

use std::fmt;
use std::io::Write as _;

use anyhow::{Error, Result};

/// How a test that did not fail ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It could not run here.
    Skipped(String),
}

/// The error of a test that can't run on this device.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Ends a test that can't run on this device.
pub fn skip<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::new(Skip(reason.into())))
}

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
    pub fn result(&mut self, name: &str, outcome: Result<Outcome>) {
        self.number += 1;
        match outcome {
            Ok(Outcome::Passed) => println!("ok {} {name}", self.number),
            Ok(Outcome::Skipped(reason)) => println!("ok {} {name} # SKIP {reason}", self.number),
            Err(error) => {
                self.failed += 1;
                println!("# {name}: {}", format!("{error:#}").replace('\n', "\n# "));
                println!("not ok {} {name}", self.number);
            }
        }
        // A reader on the other end of a pipe follows along; nothing is to be done if it has gone.
        let _ = std::io::stdout().flush();
    }

    /// Whether no test failed.
    pub fn passed(&self) -> bool {
        self.failed == 0
    }
}
