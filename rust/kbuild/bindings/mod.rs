// SPDX-License-Identifier: GPL-2.0

//! Bindings of the virtio and RDMA headers, laid over the kernel crate's.
//!
//! The kernel crate's bindings are imported by a glob, and the generated items of this module
//! shadow the kernel crate's items of the same name: for example, `ib_device` is only an opaque
//! name in the kernel crate. The abstractions of the subsystems call functions of this module. A
//! driver uses at most constants of this module, to compare them with those of its ABI.

#![allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

use kernel::ffi;
use pin_init::MaybeZeroable;

pub(crate) use kernel::bindings::*;

include!(env!("VIRTIO_RDMA_BINDINGS"));
