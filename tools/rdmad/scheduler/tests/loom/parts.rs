// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Models of single parts of a worker: ready set, exclusive turns, grace periods.

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;
use virtio_rdma_abi::number::Qpn;

use scheduler::sync::check;
use scheduler::{Exclusive, Quiesce, ReadySet};

/// A number that is inserted while another thread takes numbers is taken exactly once.
#[test]
fn a_ready_set_loses_nothing() {
    check(|| {
        let set = Arc::new(ReadySet::<Qpn>::new(2));
        set.insert(Qpn::NONE);
        let taker = {
            let set = set.clone();
            thread::spawn(move || {
                usize::from(set.take().is_some()) + usize::from(set.take().is_some())
            })
        };
        let inserted =
            1 + usize::from(set.insert(Qpn::NONE)) + usize::from(set.insert(Qpn::new(1)));
        let mut taken = taker.join().unwrap();
        while set.take().is_some() {
            taken += 1;
        }
        assert_eq!(taken, inserted);
        assert!(set.is_empty());
    });
}

/// If a set looks empty after a number was inserted, another thread is taking numbers from the set
/// and takes that number too. So the worker that owns the set may sleep.
#[test]
fn a_number_that_is_not_seen_is_taken() {
    check(|| {
        let set = Arc::new(ReadySet::<Qpn>::new(2));
        set.insert(Qpn::NONE);
        let thief = {
            let set = set.clone();
            thread::spawn(move || std::iter::from_fn(|| set.take()).count())
        };
        let inserted = [1, 0].map(|number| usize::from(set.insert(Qpn::new(number))));
        let is_seen = !set.is_empty();
        let taken = thief.join().unwrap();
        let inserted = 1 + inserted.iter().sum::<usize>();
        assert!(is_seen || taken == inserted, "{taken} of {inserted}");
    });
}

/// Turns of two workers on the same object never overlap. After the last request for a turn, a turn
/// begins, even if the worker that made the request gets no turn itself.
#[test]
fn turns_are_exclusive_and_complete() {
    check(|| {
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
            while let Some(turn) = exclusive.run(turn) {
                last = Some(turn.result);
                if !turn.again {
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

/// After `synchronize`, no turn uses an object that was removed before.
#[test]
fn nobody_uses_what_was_removed() {
    check(|| {
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
