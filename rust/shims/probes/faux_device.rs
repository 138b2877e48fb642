// SPDX-License-Identifier: GPL-2.0

//! Devices of the faux bus have a type.

pub use kernel::faux::Device;
