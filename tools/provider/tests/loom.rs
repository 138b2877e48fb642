// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Explores every interleaving of a thread that polls a CQ with threads that call control verbs.
//! Control verbs do not wait for the CQ's lock.
#![cfg(loom)]
// The models use only a part of each module.
#![allow(dead_code)]

use loom::cell::UnsafeCell;
use loom::model::Builder;
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

/// The QP number that all QPs of these models have.
const QPN: Qpn = Qpn::new(5);

/// A QP. All QPs of a model have the same number, and `life` tells them apart. loom checks accesses
/// of `memory`: it reports a use that does not happen before the drop.
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

/// The state of polling.
#[derive(Default)]
struct State {
    next: usize,
    /// Completions before this position are not delivered.
    clean: usize,
}

/// A message: drop the completions before `end`.
struct Clean {
    end: usize,
    qp: Option<Arc<Qp>>,
    /// Whether to deliver the completions from `end` on.
    is_alive: bool,
}

/// A simplified [`CompletionRing`](virtio_rdma_provider::completion_ring::CompletionRing).
struct Cq {
    state: Lock<State>,
    qps: Table<Qp>,
    deferred: Deferred<Clean>,
    /// The producer's position.
    produced: AtomicUsize,
}

impl Cq {
    /// A CQ with a QP of life 1, which has an unpolled completion.
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

    /// Polls once. Returns the position of a completion, and the life of the QP to which it was
    /// delivered.
    fn poll(&self, state: &mut State) -> Option<(usize, usize)> {
        loop {
            let position = state.next;
            if self.produced.load(Ordering::Acquire) == position {
                return None;
            }
            let is_clean = position < state.clean;
            // SAFETY: `state` is locked, so no `Arc` is dropped before messages are applied.
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

    fn apply_deferred(&self) {
        self.deferred.drain(
            || self.state.lock_unless_kept(),
            |state, messages| self.apply(state, messages),
        );
    }

    /// Detaches the destroyed QP.
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
        self.apply_deferred();
    }

    /// Creates a QP of life 2 with the same number, and completes a work request of it.
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
        self.apply_deferred();
        self.produced.fetch_add(1, Ordering::Release);
    }
}

/// A QP is destroyed and its number given to a new QP while `poll` polls twice. Completions are
/// delivered to their own QP only, and a dropped QP is not accessed.
fn number_comes_back(poll: fn(&Cq) -> Vec<(usize, usize)>) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
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
        // SAFETY: the guard was kept above.
        let mut state = unsafe { cq.state.resume() };
        let second = cq.poll(&mut state);
        if state.end() {
            cq.apply_deferred();
        }
        first.into_iter().chain(second).collect()
    });
}
