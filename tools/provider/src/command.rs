// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands of uverbs without a driver's part.

/// Calls `$function` of libibverbs, which sends a command, with the arguments, and then with the
/// command and the response, each followed by its size. The call is unsafe.
macro_rules! command {
    ($function:ident($($argument:expr),* $(,)?), $command:ident $(, $response:ident)?) => {{
        let mut command: $crate::ffi::$command = $crate::ffi::Zeroed::zeroed();
        $(let mut response: $crate::ffi::$response = $crate::ffi::Zeroed::zeroed();)?
        $crate::ffi::$function(
            $($argument,)*
            &mut command,
            std::mem::size_of::<$crate::ffi::$command>(),
            $(&mut response, std::mem::size_of::<$crate::ffi::$response>(),)?
        )
    }};
}

pub(crate) use command;
