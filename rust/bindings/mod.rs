// SPDX-License-Identifier: GPL-2.0

//! Bindings of the virtio and RDMA headers, laid over the kernel crate's.
//!
//! The kernel crate's bindings come in by a glob, and the generated items of this module shadow
//! those of the same name: `ib_device`, for one, is a mere opaque name there. The abstractions of
//! the subsystems call functions of this module. A driver takes constants from it at most, to
//! compare them with those of its ABI.

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
