// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Confinement of the daemon's threads once it has started.
//!
//! An attacker who finds a defect of the daemon and executes code by it is still confined to the
//! needs of the thread that runs it: a thread without privileges makes only the system calls of its
//! [kind](Kind). Everything else is opened before.
//!
//! The parts of the confinement belong to threads, not to the process. So every thread is started
//! by [`spawn`], which confines it before its work begins, and the first thread confines itself
//! last, by [`confine_main`], which refuses to go on beside a thread that was started in another
//! way.
//!
//! [`spawn`] confines only once [`turn_on`] was called. Programs that never call it, unit tests
//! among them, run as if this crate were not there.

mod filter;
mod kind;
mod landlocked;
mod lists;
mod privileges;
mod threads;
mod violation;

use std::io;
use std::sync::OnceLock;

pub use self::kind::Kind;
pub use self::lists::Uplinks;
pub use self::threads::{confine_keeper, confine_main, spawn};

use self::filter::Filters;

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list of a kind of thread does not compile.
    #[error("list of system calls of {0} threads: {1}")]
    List(Kind, String),
    /// The kernel takes no filter.
    #[error("the kernel refuses the filter of system calls (CONFIG_SECCOMP_FILTER): {0}")]
    Filter(#[source] seccompiler::Error),
    /// Privileges stay.
    #[error("can't give up privileges: {0}")]
    Privileges(#[source] io::Error),
    /// Landlock is there and does not work.
    #[error("Landlock: {0}")]
    Landlock(#[source] landlock::RulesetError),
    /// The handler of SIGSYS is not installed.
    #[error("can't handle SIGSYS: {0}")]
    Signal(#[source] io::Error),
    /// A thread was started by something else than [`spawn`].
    #[error("thread {0} is outside of the sandbox")]
    Outside(String),
    /// The threads of the process can't be listed.
    #[error("can't list the threads of the process: {0}")]
    Threads(#[source] io::Error),
    /// [`turn_on`] was called before.
    #[error("it is on already")]
    Again,
}

/// The filters that [`spawn`] gives to threads, once the sandbox is on.
static FILTERS: OnceLock<Filters> = OnceLock::new();

/// Confines all threads that [`spawn`] starts from now on, to what these uplinks need at most.
///
/// # Errors
///
/// A list of system calls does not compile, or the kernel refuses what all threads inherit.
pub fn turn_on(uplinks: Uplinks) -> Result<(), Error> {
    privileges::refuse_new()?;
    violation::install().map_err(Error::Signal)?;
    threads::warm_up();
    let filters = Filters::compile(uplinks)?;
    filter::forbid_for_ever()?;
    FILTERS.set(filters).map_err(|_| Error::Again)
}

/// Whether the sandbox is on.
pub fn is_on() -> bool {
    FILTERS.get().is_some()
}
