// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Confinement of the daemon's threads once it has started, and of their panics.
//!
//! If an attacker executes code through a defect of the daemon, this code has no privileges and can
//! make only the system calls that threads of its [kind](Kind) need. Files and sockets are opened
//! before threads are confined.
//!
//! Confinement is a property of a thread, not of the process. So every thread is started by
//! [`spawn`], which confines it before its work begins. The first thread confines itself last, by
//! [`confine_main`], which fails if a thread was started in another way.
//!
//! [`spawn`] confines threads only after [`turn_on`]. Programs that never call it, for example unit
//! tests, run as if this crate were not there.
//!
//! [`contain`] limits the harm of a panic to the port for which a thread works. A [`Pulse`] tells
//! whether a thread that works for all ports goes on, and a [`Gate`] holds threads between two
//! pieces of work.

mod contain;
mod filter;
mod gate;
mod kind;
mod landlocked;
mod lists;
mod privileges;
mod pulse;
mod reserve;
mod threads;
mod violation;

use std::io;
use std::sync::OnceLock;

pub use self::contain::{contain, end_process, end_process_on_panic, read_symbols, Panicked};
pub use self::gate::{Gate, Passer};
pub use self::kind::Kind;
pub use self::lists::Parts;
pub use self::pulse::{LastLook, Pulse};
pub use self::reserve::{fill_reserves, Reserve, Task};
pub use self::threads::{confine_broker, confine_main, spawn};

use self::filter::Filters;

/// Why the sandbox could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list of system calls of a kind of thread does not compile.
    #[error("can't compile the filter of system calls of {0} threads: {1}")]
    List(Kind, String),
    /// The kernel does not accept the filter.
    #[error("the kernel refuses the filter of system calls (CONFIG_SECCOMP_FILTER): {0}")]
    Filter(#[source] seccompiler::Error),
    /// Privileges can't be dropped.
    #[error("can't give up privileges: {0}")]
    Privileges(#[source] io::Error),
    /// The kernel has Landlock, but it does not work.
    #[error("can't restrict access to files by Landlock: {0}")]
    Landlock(#[source] landlock::RulesetError),
    /// The handler of SIGSYS is not installed.
    #[error("can't handle SIGSYS: {0}")]
    Signal(#[source] io::Error),
    /// A thread was not started by [`spawn`].
    #[error("thread {0} is outside of the sandbox")]
    Outside(String),
    /// The threads of the process can't be listed.
    #[error("can't list the threads of the process: {0}")]
    Threads(#[source] io::Error),
    /// [`turn_on`] was called before.
    #[error("the sandbox is on already")]
    Again,
}

/// The filters that [`spawn`] applies to threads. Set when the sandbox is turned on.
static FILTERS: OnceLock<Filters> = OnceLock::new();

/// Confines all threads that [`spawn`] starts from now on, and lets them make the system calls that
/// these parts need.
///
/// # Errors
///
/// A list of system calls does not compile, or the kernel refuses a setting that all threads
/// inherit.
pub fn turn_on(parts: Parts) -> Result<(), Error> {
    privileges::refuse_new()?;
    violation::install().map_err(Error::Signal)?;
    threads::warm_up();
    let filters = Filters::compile(parts)?;
    filter::forbid_for_ever()?;
    FILTERS.set(filters).map_err(|_| Error::Again)
}
