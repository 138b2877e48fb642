// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Spare threads: a confined daemon can't start threads.
//!
//! A reserve starts a thread when there is work for it, until all reserves are
//! [filled](fill_reserves) while the process still can start threads. So the daemon can serve VMs
//! before it has its spare threads.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::mem::take;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::set_name;

use crate::{spawn, Kind};

type Work = Box<dyn FnOnce() + Send>;

/// The reserves that may lack threads.
static RESERVES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Starts the threads that reserves still lack. To be called before a confined thread uses a
/// reserve.
///
/// # Errors
///
/// The threads can't be started or confined.
pub fn fill_reserves() -> io::Result<()> {
    let reserves = take(&mut *RESERVES.lock());
    for reserve in reserves.iter().filter_map(Weak::upgrade) {
        let mut state = reserve.state.lock();
        while state.missing > 0 {
            reserve.start_thread(&mut state)?;
        }
    }
    Ok(())
}

/// Confined threads of one kind that wait for work. Dropping the reserve ends its idle threads.
#[derive(Debug)]
pub struct Reserve(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    kind: Kind,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of waiting threads minus the number of queued pieces of work.
    idle: usize,
    /// Number of threads that are not started yet.
    missing: usize,
    waiting: VecDeque<(String, Work)>,
    is_closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} idle, {} missing", self.idle, self.missing)
    }
}

/// A handle by which a caller waits for the end of work that it has passed to a [`Reserve`].
#[derive(Debug)]
pub struct Task(Arc<Done>);

#[derive(Debug, Default)]
struct Done {
    yes: Mutex<bool>,
    changed: Condvar,
}

/// Guard of a piece of work. Dropping the guard marks the work as done. If the work has panicked,
/// its thread does not return to the reserve.
struct Doing(Arc<Shared>, Arc<Done>);

impl Reserve {
    /// A reserve of `count` threads of `kind`.
    pub fn new(kind: Kind, count: usize) -> Self {
        let shared = Arc::new(Shared {
            kind,
            state: Mutex::new(State {
                missing: count,
                ..State::default()
            }),
            changed: Condvar::new(),
        });
        RESERVES.lock().push(Arc::downgrade(&shared));
        Self(shared)
    }

    /// Number of threads without work.
    pub fn idle(&self) -> usize {
        let state = self.0.state.lock();
        state.idle + state.missing
    }

    /// Passes `work` to one of the threads, which is named `name` while it does the work.
    ///
    /// # Errors
    ///
    /// All threads have work, or a thread can't be started.
    pub fn run(
        &self,
        name: impl Into<String>,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<Task> {
        let mut state = self.0.state.lock();
        if state.idle == 0 && state.missing > 0 {
            self.0.start_thread(&mut state)?;
        }
        let idle = state.idle.checked_sub(1);
        let idle =
            idle.ok_or_else(|| io::Error::other(format!("all {} threads have work", self.0.kind)))?;
        state.idle = idle;
        let done = Arc::new(Done::default());
        let doing = Doing(self.0.clone(), done.clone());
        let work = move || {
            let _doing = doing;
            work();
        };
        state.waiting.push_back((name.into(), Box::new(work)));
        self.0.changed.notify_one();
        Ok(Task(done))
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn start_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let shared = self.clone();
        spawn(self.kind, self.kind.name(), move || shared.serve())?;
        state.missing -= 1;
        state.idle += 1;
        Ok(())
    }

    fn serve(&self) {
        loop {
            let mut state = self.state.lock();
            let is_idle = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
            self.changed.wait_while(&mut state, is_idle);
            let Some((name, work)) = state.waiting.pop_front() else {
                return;
            };
            drop(state);
            rename(&name);
            work();
            rename(self.kind.name());
        }
    }
}

/// Sets the name of the calling thread, which tools such as ps show.
fn rename(name: &str) {
    if let Ok(name) = CString::new(name) {
        // An error is ignored: the name is only informative.
        let _ = set_name(&name);
    }
}

impl Task {
    /// Waits until the work is done.
    pub fn wait(&self) {
        self.0
            .changed
            .wait_while(&mut self.0.yes.lock(), |yes| !*yes);
    }

    /// Waits until the work is done, but at most `patience`. Returns whether the work is done.
    pub fn wait_for(&self, patience: Duration) -> bool {
        let mut yes = self.0.yes.lock();
        self.0
            .changed
            .wait_while_for(&mut yes, |yes| !*yes, patience);
        *yes
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        let Self(shared, done) = self;
        if !thread::panicking() {
            shared.state.lock().idle += 1;
        }
        *done.yes.lock() = true;
        done.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn threads_do_one_work_after_the_other() {
        let reserve = Reserve::new(Kind::Service, 2);
        let (sender, results) = channel();
        for number in 0..10 {
            let sender = sender.clone();
            let task = reserve.run("test", move || sender.send(number).unwrap());
            task.unwrap().wait();
            assert_eq!(reserve.idle(), 2);
        }
        drop(sender);
        assert!(results.iter().eq(0..10));
    }

    #[test]
    fn threads_start_with_their_work_or_when_reserves_are_filled() {
        let reserve = Reserve::new(Kind::Service, 3);
        let missing = || reserve.0.state.lock().missing;
        let work = || reserve.run("test", || {}).unwrap().wait();
        work();
        work();
        assert_eq!((missing(), reserve.idle()), (2, 3));
        fill_reserves().unwrap();
        assert_eq!((missing(), reserve.idle()), (0, 3));
    }

    #[test]
    fn work_beyond_the_threads_is_refused() {
        let reserve = Reserve::new(Kind::Socket, 1);
        let (go, may) = channel::<()>();
        let task = reserve.run("test", move || may.recv().unwrap()).unwrap();
        let error = reserve.run("more", || {}).unwrap_err();
        assert_eq!(error.to_string(), "all socket threads have work");
        assert!(!task.wait_for(Duration::from_millis(1)));
        go.send(()).unwrap();
        task.wait();
    }

    /// The values that the closure of the work owns are dropped before the work counts as done.
    #[test]
    fn work_is_dropped_before_it_is_done() {
        let reserve = Reserve::new(Kind::Socket, 1);
        let held = Arc::new(());
        let of_work = held.clone();
        let task = reserve.run("test", move || drop(Arc::clone(&of_work)));
        task.unwrap().wait();
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
