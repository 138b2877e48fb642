// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests that check nothing on a host that lacks what they need.

use std::fmt::Display;
use std::io::{self, Write};
use std::thread;

/// Says that this test is skipped, and why. It writes to the standard error itself, because
/// `eprintln` shows nothing in a test that passes.
pub fn skipped(why: impl Display) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("test");
    // Without a standard error, the reason can't be reported.
    let _ = writeln!(io::stderr(), "{test}: skipped: {why}");
}
