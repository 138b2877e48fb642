// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Models: loom's threads, locks and atomics, and a clock that only the model advances.

use std::cell::RefCell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use loom::model::Builder;
use loom::sync::MutexGuard;

pub use loom::hint::spin_loop;
pub use loom::sync::atomic::{
    fence, AtomicBool, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};
pub use loom::thread::{yield_now, JoinHandle};

/// Drops the `const` block of `thread_local!`, which loom's macro does not accept.
macro_rules! local {
    ($(#[$attr:meta])* static $name:ident: $type:ty = const { $init:expr };) => {
        loom::thread_local! { $(#[$attr])* static $name: $type = $init }
    };
}
pub(crate) use local as thread_local;

/// Starts a thread.
pub fn spawn(_: String, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Ok(loom::thread::spawn(work))
}

std::thread_local! {
    /// The model's clock. All threads of a model share it, because loom runs them in one thread of
    /// the operating system.
    static TIME: RefCell<Time> = RefCell::default();
}

/// Clock of a model. It does not use loom's primitives, because a read of the clock must not
/// synchronize threads.
#[derive(Default)]
struct Time {
    /// Time since the start of the model.
    elapsed: Duration,
    /// Deadlines of waiting threads, and the function that wakes each thread.
    alarms: Vec<(Instant, Box<dyn FnOnce()>)>,
}

/// Checks the interleavings of `scenario` with at most three preemptions.
pub fn check(scenario: impl Fn() + Sync + Send + 'static) {
    check_few(3, scenario);
}

/// Checks the interleavings of `scenario` with at most `interrupted` preemptions. A scenario with
/// many threads has too many interleavings to check all.
pub fn check_few(interrupted: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(interrupted);
    builder.check(move || {
        TIME.take();
        scenario();
    });
}

/// Time at which the clock of each model starts.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Current time of the model's clock.
pub fn now() -> Instant {
    start() + TIME.with_borrow(|time| time.elapsed)
}

/// Advances the model's clock by `time` and wakes the threads whose deadlines have passed.
pub fn sleep(time: Duration) {
    let due: Vec<_> = TIME.with_borrow_mut(|model| {
        model.elapsed += time;
        let now = start() + model.elapsed;
        let alarms = std::mem::take(&mut model.alarms);
        let (due, later) = alarms.into_iter().partition(|(at, _)| *at <= now);
        model.alarms = later;
        due
    });
    for (_, ring) in due {
        ring();
    }
}

#[derive(Debug, Default)]
pub struct Mutex<T>(Arc<loom::sync::Mutex<T>>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(loom::sync::Mutex::new(value)))
    }

    pub fn lock(&self) -> Guard<'_, T> {
        let held = self.0.lock().unwrap();
        Guard {
            mutex: self,
            held: Some(held),
        }
    }

    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let held = self.0.try_lock().ok()?;
        Some(Guard {
            mutex: self,
            held: Some(held),
        })
    }
}

pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
    /// The lock; `None` while the thread waits for a condition variable.
    held: Option<MutexGuard<'a, T>>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("locked")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("locked")
    }
}

#[derive(Debug, Default)]
pub struct Condvar(Arc<loom::sync::Condvar>);

impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn wait<T>(&self, guard: &mut Guard<'_, T>) {
        let held = guard.held.take().expect("locked");
        guard.held = Some(self.0.wait(held).unwrap());
    }

    /// Waits until a notification, or until the model's clock reaches `deadline`.
    pub fn wait_until<T: Send + 'static>(&self, guard: &mut Guard<'_, T>, deadline: Instant) {
        let (mutex, condvar) = (guard.mutex.0.clone(), self.0.clone());
        let ring = move || {
            // The thread holds the mutex until it waits, so the notification is not too early.
            drop(mutex.lock().unwrap());
            condvar.notify_all();
        };
        if now() < deadline {
            TIME.with_borrow_mut(|time| time.alarms.push((deadline, Box::new(ring))));
            self.wait(guard);
        }
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
