// SPDX-License-Identifier: GPL-2.0

//! Compiles only if the function `raw_try_init` exists.

pub use pin_init::raw_try_init;
