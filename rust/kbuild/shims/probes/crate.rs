// SPDX-License-Identifier: GPL-2.0

//! Compiles if the kernel crate can be used at all.

pub use kernel::prelude::Result;
