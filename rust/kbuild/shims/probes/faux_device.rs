// SPDX-License-Identifier: GPL-2.0

//! Compiles only if devices of the faux bus have a type.

pub use kernel::faux::Device;
