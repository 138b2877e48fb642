// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The libFuzzer program for one target, whose name is in the environment variable `FUZZ_TARGET`.
//! `fuzz run` starts this program.

#![no_main]

use std::env;
use std::sync::LazyLock;

use fuzz::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    fuzz::target(&name).unwrap_or_else(|| panic!("no target has the name {name}"))
});

/// Ignores SIGPIPE, as the daemon does: Rust's runtime ignores it before `main`, which is
/// libFuzzer's here.
fn ignore_broken_pipes() {
    // SAFETY: No handler is installed that could run.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

// libFuzzer's panic hook ends the process at each panic, so panics that the daemon would contain
// are findings too.
fuzz_target!(
    init: ignore_broken_pipes(),
    |data: &[u8]| (TARGET.run)(data)
);
