// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Spare threads, started before they have work: a confined daemon can't start threads.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::set_name;

use crate::{spawn, Kind};

type Work = Box<dyn FnOnce() + Send>;

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
    waiting: VecDeque<(String, Work)>,
    is_closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} idle", self.idle)
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
    /// Starts `count` threads of `kind`.
    ///
    /// # Errors
    ///
    /// The threads can't be started or confined.
    pub fn start(kind: Kind, count: usize) -> io::Result<Self> {
        let reserve = Self(Arc::new(Shared {
            kind,
            state: Mutex::default(),
            changed: Condvar::new(),
        }));
        for _ in 0..count {
            let shared = reserve.0.clone();
            spawn(kind, kind.name(), move || shared.serve())?;
            reserve.0.state.lock().idle += 1;
        }
        Ok(reserve)
    }

    /// Number of threads without work.
    pub fn idle(&self) -> usize {
        self.0.state.lock().idle
    }

    /// Passes `work` to one of the threads, which is named `name` while it does the work.
    ///
    /// # Errors
    ///
    /// All threads have work.
    pub fn run(
        &self,
        name: impl Into<String>,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<Task> {
        let mut state = self.0.state.lock();
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
        let reserve = Reserve::start(Kind::Service, 2).unwrap();
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
    fn work_beyond_the_threads_is_refused() {
        let reserve = Reserve::start(Kind::Socket, 1).unwrap();
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
        let reserve = Reserve::start(Kind::Socket, 1).unwrap();
        let held = Arc::new(());
        let of_work = held.clone();
        let task = reserve.run("test", move || drop(Arc::clone(&of_work)));
        task.unwrap().wait();
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
