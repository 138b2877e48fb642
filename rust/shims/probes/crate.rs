// SPDX-License-Identifier: GPL-2.0

//! The kernel crate can be used at all.

pub use kernel::prelude::Result;
