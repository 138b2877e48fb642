// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Boots virtual machines that are joined by a network and an RDMA device, and runs commands in
//! them: `testbed` for a checkout, in its sysroot, and `virtio-rdma` for users of a bundle.
#![deny(unsafe_code)]

mod accel;
mod bed;
mod cache;
mod child;
mod console;
mod ctl;
mod daemon_links;
mod demo;
mod disk;
mod host_check;
mod initramfs;
mod install;
mod junit;
mod kernel;
mod kernel_image;
mod kernel_log;
mod ktap;
mod path_in_root;
mod phases;
mod qmp;
mod rdmad;
mod reaper;
mod root;
mod router;
mod run;
mod run_dirs;
mod saved;
mod selftest;
mod shares;
mod terminal;
mod testbed_cli;
mod tsc;
mod untrusted;
mod virtio_rdma_cli;
mod vm;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;

/// The exit status if the guests can't be started or the command does not end.
const FAILED: u8 = 125;

/// The program `testbed`.
pub fn testbed() -> ExitCode {
    start("testbed", testbed_cli::main)
}

/// The program `virtio-rdma`.
pub fn virtio_rdma() -> ExitCode {
    start("virtio-rdma", virtio_rdma_cli::main)
}

/// Dispatches on the first word: the internal subcommands [`child::CHILD`] and [`child::CLEANER`],
/// or the user's command line.
fn start(name: &str, main: fn() -> Result<u8>) -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let result = match words.split_first() {
        Some((word, rest)) if word == child::CHILD => child::become_program(rest),
        Some((word, rest)) if word == child::CLEANER => child::clean(rest),
        _ => {
            host_check::raise_files();
            main()
        }
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}
