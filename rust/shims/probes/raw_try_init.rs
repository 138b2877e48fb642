// SPDX-License-Identifier: GPL-2.0

//! A function initializes memory.

pub use pin_init::raw_try_init;
