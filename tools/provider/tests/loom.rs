// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Every interleaving of a thread that polls a CQ and control verbs in others, which share no lock
//! with it.
#![cfg(loom)]
// The models need a part of each module.
#![allow(dead_code)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering;
use loom::thread;

#[path = "../src/allocation.rs"]
mod allocation;
#[path = "../src/arc.rs"]
mod arc;
#[path = "../src/deferred.rs"]
mod deferred;
#[path = "../src/lock.rs"]
mod lock;
#[path = "../src/table.rs"]
mod table;

/// The model checker's counterparts of the library's `sync`.
mod sync {
    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::AtomicPtr;
    pub use loom::sync::atomic::AtomicU8;
    pub use loom::sync::atomic::AtomicUsize;
    pub use loom::sync::atomic::Ordering;
    pub use loom::sync::Mutex;
    pub use loom::thread::yield_now;
}

use arc::Arc;
use deferred::Deferred;
use lock::Lock;
use lock::Threads;
use table::Table;
use virtio_rdma_abi::number::Qpn;

/// The number of the QPs of these models.
const QPN: Qpn = Qpn::new(5);

/// One life of that number. Its memory is watched: a use that its end does not come after is an
/// error.
struct Qp {
    life: usize,
    memory: UnsafeCell<()>,
}

impl Qp {
    fn new(life: usize) -> Arc<Self> {
        let memory = UnsafeCell::new(());
        Arc::try_new(Self { life, memory }).unwrap()
    }

    fn complete(&self) -> usize {
        self.memory.with(|_| self.life)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.memory.with_mut(|_| ());
    }
}

/// State of the thread that polls.
#[derive(Default)]
struct State {
    next: usize,
    /// Completions before it are not delivered.
    clean: usize,
}

/// Drop the completions before `end`.
struct Clean {
    end: usize,
    qp: Option<Arc<Qp>>,
    /// Whether the completions from there on are to be delivered.
    is_alive: bool,
}

/// A CQ as [`CompletionRing`](virtio_rdma_provider::completion_ring::CompletionRing) is one.
struct Cq {
    state: Lock<State>,
    qps: Table<Qp>,
    deferred: Deferred<Clean>,
    /// The producer's position.
    produced: AtomicUsize,
}

impl Cq {
    /// With a QP of life 1, of which a completion waits.
    fn new() -> loom::sync::Arc<Self> {
        let this = Self {
            state: Lock::new(State::default(), Threads::MANY),
            qps: Table::new(),
            deferred: Deferred::new(),
            produced: AtomicUsize::new(1),
        };
        this.qps.slot(QPN).unwrap().replace(Some(Qp::new(1)));
        this.deferred.reserve(2).unwrap();
        loom::sync::Arc::new(this)
    }

    /// Polls once: the position of a completion, and the life that it is said to be of.
    fn poll(&self, state: &mut State) -> Option<(usize, usize)> {
        loop {
            let position = state.next;
            if self.produced.load(Ordering::Acquire) == position {
                return None;
            }
            let is_clean = position < state.clean;
            // SAFETY: with `state` locked nothing is dropped before the messages are taken.
            let qp = unsafe { self.qps.get(QPN) }.filter(|_| !is_clean);
            let Some(qp) = qp else {
                if !is_clean && self.deferred.has(|_| true) {
                    self.deferred.apply(|messages| self.apply(state, messages));
                    self.deferred.drop_applied();
                } else {
                    state.next += 1;
                }
                continue;
            };
            state.next += 1;
            return Some((position, qp.complete()));
        }
    }

    fn apply(&self, state: &mut State, messages: &mut [Clean]) {
        for Clean { end, qp, is_alive } in messages {
            state.clean = state.clean.max(*end);
            if *is_alive {
                *qp = self.qps.slot(QPN).unwrap().replace(qp.take());
            }
        }
    }

    fn settle(&self) {
        self.deferred.settle(
            || self.state.lock_unless_kept(),
            |state, messages| self.apply(state, messages),
        );
    }

    /// Destroys the QP.
    fn detach(&self) {
        let slot = self.qps.slot(QPN).unwrap();
        let end = self.produced.load(Ordering::Acquire);
        self.deferred.defer(|messages| {
            messages.push_back(Clean {
                end,
                qp: slot.replace(None),
                is_alive: false,
            });
        });
        self.settle();
    }

    /// Creates it again, and the device completes work of its second life.
    fn attach(&self) {
        let slot = self.qps.slot(QPN).unwrap();
        let end = self.produced.load(Ordering::Acquire);
        let qp = Some(Qp::new(2));
        self.deferred.defer(|messages| {
            if messages.is_empty() {
                slot.replace(qp);
            } else {
                messages.push_back(Clean {
                    end,
                    qp,
                    is_alive: true,
                });
            }
        });
        self.settle();
        self.produced.fetch_add(1, Ordering::Release);
    }
}

/// A QP is destroyed and its number given to another while `poll` polls twice: completions are
/// delivered to the life that they are of, and a life that is over is not looked at.
fn number_comes_back(poll: fn(&Cq) -> Vec<(usize, usize)>) {
    loom::model(move || {
        let cq = Cq::new();
        let control = thread::spawn({
            let cq = cq.clone();
            move || {
                cq.detach();
                cq.attach();
            }
        });
        let mut polled = poll(&cq);
        control.join().unwrap();
        polled.extend(poll(&cq));
        for (position, life) in &polled {
            assert_eq!(position + 1, *life);
        }
        assert_eq!(polled.last(), Some(&(1, 2)), "that of the second life");
        assert!(!cq.deferred.is_pending());
    });
}

#[test]
fn a_number_comes_back_beside_a_poller() {
    number_comes_back(|cq| {
        let mut state = cq.state.lock();
        cq.poll(&mut state).into_iter().collect()
    });
}

#[test]
fn a_number_comes_back_beside_a_batch() {
    number_comes_back(|cq| {
        let mut state = cq.state.lock();
        let first = cq.poll(&mut state);
        state.begin();
        // SAFETY: kept above.
        let mut state = unsafe { cq.state.resume() };
        let second = cq.poll(&mut state);
        if state.end() {
            cq.settle();
        }
        first.into_iter().chain(second).collect()
    });
}
