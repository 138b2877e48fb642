// SPDX-License-Identifier: GPL-2.0

//! Compiles only if the layout of I/O memory is a type.

pub use kernel::io::Region;
