// SPDX-License-Identifier: GPL-2.0

//! Compiles only if the kernel crate names the error codes that we use.

pub use kernel::error::code::{
    EADDRINUSE,
    ENOPROTOOPT,
    EOPNOTSUPP,
    EPROTONOSUPPORT, //
};
