// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Boots virtual machines that are joined by a network and an RDMA device, and runs commands in
//! them: `testbed` for a checkout, in its sysroot, and `virtio-rdma` for everybody else.
#![deny(unsafe_code)]

mod accel;
mod bed;
mod checkout;
mod child;
mod demo;
mod disk;
mod initramfs;
mod install;
mod joint;
mod junit;
mod kernel_log;
mod ktap;
mod machine;
mod places;
mod product;
mod rdmad;
mod root;
mod router;
mod run;
mod selftest;
mod shares;
mod terminal;
mod tsc;
mod vm;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;

/// The status where the guests could not be started or the command not be finished.
const FAILED: u8 = 125;

/// The program `testbed`.
pub fn testbed() -> ExitCode {
    start("testbed", checkout::main)
}

/// The program `virtio-rdma`.
pub fn virtio_rdma() -> ExitCode {
    start("virtio-rdma", product::main)
}

/// Does what this process was started for: by itself, for a moment before another program, or by
/// its user.
fn start(name: &str, main: fn() -> Result<u8>) -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let result = match words.split_first() {
        Some((word, rest)) if word == child::CHILD => child::become_program(rest),
        Some((word, rest)) if word == child::KEEPER => child::keep(rest),
        _ => main(),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}
