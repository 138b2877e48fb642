// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Every interleaving of what workers and those who give them work do without a common lock.
#![cfg(loom)]
// The models need a part of each module.
#![allow(dead_code)]

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;

#[path = "../src/fabric/exclusive.rs"]
mod exclusive;
#[path = "../src/fabric/quiesce.rs"]
mod quiesce;
#[path = "../src/fabric/ready.rs"]
mod ready;
#[path = "../src/fabric/sleep.rs"]
mod sleep;

/// The model checker's counterparts of `fabric::sync`.
mod sync {
    pub use loom::sync::atomic::{fence, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};
    use loom::sync::MutexGuard;

    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> Guard<'_, T> {
            Guard(Some(self.0.lock().unwrap()))
        }

        pub fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock().ok().map(|guard| Guard(Some(guard)))
        }
    }

    pub struct Guard<'a, T>(Option<MutexGuard<'a, T>>);

    #[derive(Debug, Default)]
    pub struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub fn wait<T>(&self, guard: &mut Guard<'_, T>) {
            let held = guard.0.take().expect("locked");
            guard.0 = Some(self.0.wait(held).unwrap());
        }

        /// No model lets time pass.
        pub fn wait_until<T>(&self, guard: &mut Guard<'_, T>, _: std::time::Instant) {
            self.wait(guard);
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

use exclusive::Exclusive;
use quiesce::Quiesce;
use ready::ReadySet;
use sleep::Sleep;

/// A worker that sleeps while nothing is ready takes all that becomes ready.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let shared = Arc::new((ReadySet::new(2), Sleep::default()));
        let givers: Vec<_> = (0..2)
            .map(|number| {
                let shared = shared.clone();
                thread::spawn(move || {
                    if shared.0.insert(number) {
                        shared.1.wake();
                    }
                })
            })
            .collect();
        let (ready, sleep) = &*shared;
        let mut taken = 0;
        while taken < 2 {
            match ready.take() {
                Some(_) => taken += 1,
                // A lost wake-up ends in a deadlock, which the checker reports.
                None => sleep.sleep(|| !ready.is_empty(), || None),
            }
        }
        for giver in givers {
            giver.join().unwrap();
        }
        assert_eq!(ready.take(), None);
        assert!(ready.is_empty());
    });
}

/// What is inserted while another thread takes is taken now or later, once.
#[test]
fn a_ready_set_loses_nothing() {
    loom::model(|| {
        let set = Arc::new(ReadySet::new(2));
        set.insert(0);
        let taker = {
            let set = set.clone();
            thread::spawn(move || {
                usize::from(set.take().is_some()) + usize::from(set.take().is_some())
            })
        };
        let inserted = 1 + usize::from(set.insert(0)) + usize::from(set.insert(1));
        let mut taken = taker.join().unwrap();
        while set.take().is_some() {
            taken += 1;
        }
        assert_eq!(taken, inserted);
        assert!(set.is_empty());
    });
}

/// Workers that come to the same object never overlap, and the last request is seen by a turn.
#[test]
fn turns_are_exclusive_and_complete() {
    loom::model(|| {
        let shared = Arc::new((
            Exclusive::default(),
            AtomicUsize::new(0),
            AtomicBool::new(false),
        ));
        let work = |shared: &(Exclusive, AtomicUsize, AtomicBool)| {
            let (exclusive, requests, inside) = shared;
            requests.fetch_add(1, Ordering::Release);
            let turn = || {
                assert!(!inside.swap(true, Ordering::Relaxed), "two at a time");
                let seen = requests.load(Ordering::Acquire);
                inside.store(false, Ordering::Relaxed);
                seen
            };
            let mut last = None;
            while let Some((seen, again)) = exclusive.run(turn) {
                last = Some(seen);
                if !again {
                    break;
                }
            }
            last
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || work(&shared))
        };
        let ours = work(&shared);
        let theirs = other.join().unwrap();
        assert_eq!(ours.max(theirs), Some(2), "a request was left");
    });
}

/// After `synchronize` no turn uses what was removed before it.
#[test]
fn nobody_uses_what_was_removed() {
    loom::model(|| {
        let shared = Arc::new((
            Quiesce::new(1),
            AtomicBool::new(true),
            AtomicBool::new(false),
        ));
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (quiesce, present, freed) = &*shared;
                let _turn = quiesce.begin(0);
                if present.load(Ordering::Relaxed) {
                    assert!(!freed.load(Ordering::Relaxed), "used after it was freed");
                }
            })
        };
        let (quiesce, present, freed) = &*shared;
        present.store(false, Ordering::Relaxed);
        quiesce.synchronize();
        freed.store(true, Ordering::Relaxed);
        worker.join().unwrap();
    });
}
