// SPDX-License-Identifier: GPL-2.0

//! The error codes that we use have names.

pub use kernel::error::code::{
    EADDRINUSE,
    ENOPROTOOPT,
    EOPNOTSUPP,
    EPROTONOSUPPORT, //
};
