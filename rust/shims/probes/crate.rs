// SPDX-License-Identifier: GPL-2.0

//! The kernel crate can be used.

pub use kernel::prelude::Result;
