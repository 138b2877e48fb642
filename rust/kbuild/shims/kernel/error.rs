// SPDX-License-Identifier: GPL-2.0

//! Error codes that the kernel crate does not name.

pub use stock::error::*;

/// Error codes.
pub mod code {
    use stock::bindings;
    use stock::error::Error;

    pub use stock::error::code::*;

    macro_rules! codes {
        ($($name:ident)*) => {
            $(
                #[doc = concat!("The error code `", stringify!($name), "`.")]
                pub const $name: Error = {
                    const ERRNO: i32 = -(bindings::$name as i32);
                    const { assert!(ERRNO < 0 && ERRNO >= -(bindings::MAX_ERRNO as i32)) };
                    // SAFETY: `Error` is a transparent `NonZero<i32>`, and `ERRNO` is a valid error
                    // number.
                    unsafe { core::mem::transmute::<i32, Error>(ERRNO) }
                };
            )*
        };
    }

    codes! {
        EADDRINUSE
        ENOPROTOOPT
        EOPNOTSUPP
        EPROTONOSUPPORT
    }
}
