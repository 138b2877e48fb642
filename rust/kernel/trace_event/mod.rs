// SPDX-License-Identifier: GPL-2.0

//! Trace events whose values are numbers and strings.
//!
//! `declare_trace!` of the kernel crate generates an `unsafe` function for each tracepoint, since
//! the C code may require anything of its arguments. The functions of `trace_events!` are safe:
//! they pass only values that C can copy whatever they are. They also need no argument while the
//! tracepoint is off.
//!
//! C header: [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

use kernel::{
    prelude::*,
    str::CStr, //
};

/// A value of a trace event.
///
/// # Examples
///
/// ```
/// use crate::trace_event::Value;
///
/// assert_eq!(7u64.argument(), 7);
/// assert_eq!((-1i64).argument(), -1);
/// ```
pub trait Value {
    /// The type of the argument in C.
    type Argument;

    /// The argument of the C function. It is valid as long as the value.
    fn argument(&self) -> Self::Argument;
}

impl Value for i64 {
    type Argument = i64;

    fn argument(&self) -> i64 {
        *self
    }
}

impl Value for u64 {
    type Argument = u64;

    fn argument(&self) -> u64 {
        *self
    }
}

impl Value for &CStr {
    type Argument = *const c_char;

    fn argument(&self) -> *const c_char {
        self.as_char_ptr()
    }
}

/// Declares functions for tracepoints that a C file defines by `TRACE_EVENT()` after
/// `CREATE_RUST_TRACE_POINTS`.
///
/// The function of a tracepoint takes a closure that returns the values. The closure runs only
/// while the tracepoint is on; a tracepoint that is off costs one instruction, which does nothing.
///
/// # Examples
///
/// ```ignore
/// trace_events! {
///     /// The device has answered a command after `us` microseconds.
///     fn answer = rng_answer(dev: &'a CStr, us: u64);
/// }
///
/// answer(|| (dev.name(), 17));
/// ```
#[macro_export]
macro_rules! trace_events {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident = $tracepoint:ident($($value:ident: $type:ty),* $(,)?);
    )*) => {$(
        $(#[$attribute])*
        #[inline(always)]
        // Only names of variables are expanded in unsafe blocks.
        #[allow(unsafe_code, clippy::macro_metavars_in_unsafe)]
        $visibility fn $name<'a>(values: impl FnOnce() -> ($($type,)*)) {
            #[cfg(CONFIG_TRACEPOINTS)]
            ::kernel::macros::paste! {
                // SAFETY: The static key of a tracepoint is a real one, defined by C.
                let is_on = unsafe {
                    ::kernel::jump_label::static_branch_unlikely!(
                        $crate::bindings::[< __tracepoint_ $tracepoint >],
                        $crate::bindings::tracepoint,
                        key
                    )
                };
                if is_on {
                    let ($($value,)*) = values();
                    // SAFETY: The arguments are numbers and strings. The strings are terminated by
                    // NUL, and live until the call has copied them.
                    unsafe {
                        $crate::bindings::[< rust_do_trace_ $tracepoint >](
                            $($crate::trace_event::Value::argument(&$value)),*
                        )
                    };
                }
            }
            // The compiler checks the arguments and drops the code.
            #[cfg(not(CONFIG_TRACEPOINTS))]
            if false {
                let ($($value,)*) = values();
                $(let _ = $crate::trace_event::Value::argument(&$value);)*
            }
        }
    )*};
}
