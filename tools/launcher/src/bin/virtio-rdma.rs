// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Runs commands in virtual machines that are joined by RDMA and have the caller's root.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    launcher::virtio_rdma()
}
