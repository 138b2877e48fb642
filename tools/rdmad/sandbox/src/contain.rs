// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Containment of panics.
//!
//! A panic is a defect of the daemon. Work for one port is [contained](contain): a panic ends only
//! this work, and the caller fails the port. After [`end_process_on_panic`], any other panic ends
//! the process: without one of its threads, the process would seem to run but not serve its ports.

#![forbid(unsafe_code)]

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::fmt;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::thread;

/// Exit status of a process that ends by a panic, as in Rust's runtime.
const EXIT_STATUS: i32 = 101;

thread_local! {
    /// Whether the thread executes contained work.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// The error of contained work that panicked.
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
/// The work panicked. Its changes may be incomplete, so the caller must fail the port and not use
/// its objects any more.
pub fn contain<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let outer = CONTAINED.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    done.map_err(|payload| Panicked::new(&*payload))
}

/// Reads and keeps the names that backtraces show, for all threads. Must be called by a thread that
/// is not confined, since the sandbox denies the files. It takes some tens of milliseconds, and
/// longer if debug information of libraries is installed.
pub fn read_symbols() {
    // The first backtrace reads the program's file and keeps what it has read.
    drop(Backtrace::force_capture().to_string());
}

/// The reason of a process to end that is no defect.
struct Ordered(String);

/// Ends the process as a panic outside of the work of one port does, but tells only `why`.
pub fn end_process(why: String) -> ! {
    CONTAINED.set(false);
    panic::panic_any(Ordered(why))
}

/// Installs a panic hook that reports panics, with [backtraces](read_symbols), only to `log`. If a
/// thread panics outside of [contained](contain) work, the hook then flushes the log and ends the
/// process.
pub fn end_process_on_panic<W: Write>(log: impl Fn() -> W + Send + Sync + 'static) {
    panic::set_hook(Box::new(move |info| {
        // `CONTAINED` of a thread that is about to end may be destroyed already.
        let ends = !CONTAINED.try_with(Cell::get).unwrap_or(false);
        let text = match info.payload().downcast_ref() {
            Some(Ordered(why)) => format!("{why}\n"),
            None => {
                let thread = thread::current();
                let name = thread.name().unwrap_or("<unnamed>");
                let reason = match ends {
                    true => {
                        "the process ends: a panic outside of the work of one port (please \
                         report it)\n"
                    }
                    false => "",
                };
                let backtrace = Backtrace::force_capture();
                format!("thread '{name}' {info}\n{backtrace}\n{reason}")
            }
        };
        let mut log = log();
        // An error of the log can't be reported.
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
