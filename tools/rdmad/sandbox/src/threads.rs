// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Threads that are confined before their work begins.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use rustix::thread::{gettid, Pid};

use crate::filter::{self, Filters};
use crate::{landlocked, privileges, violation, Error, Kind, FILTERS};

/// Threads that [`spawn`] has confined, including ended ones.
static CONFINED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Starts a thread that does `work`. If the sandbox is on, the thread is confined to the system
/// calls of `kind`.
///
/// # Errors
///
/// The thread can't be started or confined.
pub fn spawn(
    kind: Kind,
    name: impl Into<String>,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let builder = thread::Builder::new().name(name.into());
    let Some(filters) = FILTERS.get() else {
        return builder.spawn(work);
    };
    let (result, confined) = sync_channel(1);
    let thread = builder.spawn(move || {
        let confined = confine(filters, kind).map(drop);
        let may_work = confined.is_ok();
        // This can't fail: the thread that starts this one waits for the result.
        let _ = result.send(confined);
        if may_work {
            work();
        }
    })?;
    // `recv` fails only if the thread has panicked.
    let confined = confined.recv().map_err(io::Error::other)?;
    confined.map_err(io::Error::other)?;
    Ok(thread)
}

/// Confines the calling thread, the first of the process. To be called after all other threads have
/// been started. Returns whether the kernel has Landlock.
///
/// # Errors
///
/// The thread can't be confined, or another thread was not started by [`spawn`].
///
/// # Panics
///
/// The sandbox is off.
pub fn confine_main() -> Result<bool, Error> {
    let filters = FILTERS.get().expect("the sandbox is on");
    let own = gettid();
    let confined = CONFINED.lock();
    for task in fs::read_dir("/proc/self/task").map_err(Error::Threads)? {
        let task = task.map_err(Error::Threads)?;
        let thread = task.file_name().to_str().and_then(|name| name.parse().ok());
        let thread = thread.and_then(Pid::from_raw);
        if !thread.is_some_and(|thread| thread == own || confined.contains(&thread)) {
            // The name of a thread that has just ended can't be read.
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            return Err(Error::Outside(name.trim_end().to_owned()));
        }
    }
    drop(confined);
    confine(filters, Kind::Main)
}

/// Confines the broker, a process with one thread. The broker may remove files in `directories`. If
/// there are `folders`, it may replace files there; otherwise it may connect sockets.
///
/// # Errors
///
/// The broker can't be confined.
pub fn confine_broker<'a>(
    directories: impl IntoIterator<Item = &'a Path>,
    folders: &[BorrowedFd<'_>],
) -> Result<(), Error> {
    violation::set_kind(Kind::Broker);
    violation::install().map_err(Error::Signal)?;
    privileges::refuse_new()?;
    privileges::drop_all()?;
    landlocked::allow_broker(directories, folders)?;
    filter::apply_broker(!folders.is_empty())
}

/// Confines the calling thread. Returns whether the kernel has Landlock.
fn confine(filters: &Filters, kind: Kind) -> Result<bool, Error> {
    violation::set_kind(kind);
    let mut confined = CONFINED.lock();
    confined.push(gettid());
    drop(confined);
    privileges::drop_all()?;
    let has_landlock = landlocked::allow_nothing()?;
    filters.apply(kind)?;
    Ok(has_landlock)
}

/// Makes the C library do its one-time lookups: the maximum number of heaps, whether a heap may
/// shrink, and the source of random numbers. Some of these read files, which confined threads can't
/// do.
pub(crate) fn warm_up() {
    let thread = thread::spawn(|| {
        let random = RandomState::new().hash_one(0);
        // Each block is too small for a mapping of its own. Together they exceed the free memory
        // that a heap retains, so the heap shrinks.
        let blocks: Vec<_> = (0..16).map(|_| vec![random; 1 << 13]).collect();
        drop(black_box(blocks));
    });
    // The thread does not panic.
    let _ = thread.join();
}
