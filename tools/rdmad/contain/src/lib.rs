// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! How far a panic reaches.
//!
//! A panic is a defect of the daemon. Work for one port is [contained](contain): its panic ends the
//! work, and its caller fails the port. Any other panic ends the process once
//! [`end_process_on_panic`] was called: a process that lost one of its threads would look alive and
//! serve nobody.

#![forbid(unsafe_code)]

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::fmt;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::thread;

/// Status of a process that ends by a panic: that of Rust's own.
const EXIT_STATUS: i32 = 101;

thread_local! {
    /// Contained work is going on.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Contained work panicked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    message: String,
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked: {}", self.message)
    }
}

impl Panicked {
    fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self {
            message: text.unwrap_or("no message").to_owned(),
        }
    }
}

/// Does `work` for one port.
///
/// # Errors
///
/// It panicked. Its changes may be half done: the caller fails the port, whose objects are not used
/// any more.
pub fn contain<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let outer = CONTAINED.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    done.map_err(|payload| Panicked::new(&*payload))
}

/// From now on a panic is told to `log` alone, and one that is not [contained](contain) ends the
/// process, whichever thread panics, once the log is flushed.
pub fn end_process_on_panic<W: Write>(log: impl Fn() -> W + Send + Sync + 'static) {
    panic::set_hook(Box::new(move |info| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let mut text = format!("thread '{name}' {info}\n");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            text += &if sandbox::is_on() {
                // It would be read from files, which are closed by now.
                "no backtrace in the sandbox: --sandbox none gives one\n".to_owned()
            } else {
                format!("{backtrace}\n")
            };
        }
        // A thread that is about to end has no such variable any more.
        let ends = !CONTAINED.try_with(Cell::get).unwrap_or(false);
        if ends {
            text +=
                "the process ends: a panic outside of the work of one port (please report it)\n";
        }
        let mut log = log();
        // Nobody is left to tell of an error.
        let _ = log.write_all(text.as_bytes());
        if ends {
            let _ = log.flush();
            process::exit(EXIT_STATUS);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_contained_and_told() {
        assert_eq!(contain(|| 5), Ok(5));
        let nested = contain(|| {
            let inner = contain::<()>(|| panic!("inner {}", 7));
            assert_eq!(inner.unwrap_err().to_string(), "panicked: inner 7");
            assert!(CONTAINED.get());
            panic!("outer")
        });
        assert_eq!(
            nested,
            Err::<(), _>(Panicked {
                message: "outer".to_owned()
            })
        );
        assert!(!CONTAINED.get());
    }
}
