// SPDX-License-Identifier: GPL-2.0

//! The layout of I/O memory is a type.

pub use kernel::io::Region;
