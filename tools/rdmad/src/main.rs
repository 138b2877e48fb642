// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! `virtio-rdmad`: a software virtio-rdma device for stock QEMU. See
//! Documentation/man/virtio-rdmad.1.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    virtio_rdmad::main()
}
