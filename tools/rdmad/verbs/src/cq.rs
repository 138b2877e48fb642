// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completion queues.

mod held;
mod on_order;
mod saved;

use std::cell::{Cell, RefCell};
use std::thread;
use std::time::Instant;

use budget::Charge;
use chaos::Hook;
use dma::DmaView;
use sandbox::contain;
use scheduler::shared::Mutex;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ctrl::NotifyFlags;
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::ib::AsyncEvent;
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::wire::Wire;

use self::held::Held;
pub(crate) use self::saved::CqState;
use crate::counters::Counter;
use crate::details::{self, CqDetails};
use crate::error::{refusal, Reason, Result, What};
use crate::event::EventSource;
use crate::memory::{CompletionProducer, CompletionView, CqProgress, RingMem};
use crate::moderation::{Moderation, Moderator};
use crate::turn::done;
use crate::users::Users;
use crate::Hca;

/// A completion queue.
///
/// Lock order: after the locks of QPs, before the lock of an event queue.
#[derive(Debug)]
pub(crate) struct Cq {
    number: Cqn,
    /// Doorbell page from which the CQ may be rung.
    pub doorbell_page: u32,
    event_queue: u16,
    cookie: u64,
    /// The place among all CQs that the driver has created since the last reset, from 1.
    order: u32,
    inner: Mutex<CqInner>,
    /// QPs that complete to this CQ.
    pub(crate) users: Users,
    _charge: Charge,
}

#[derive(Debug)]
struct CqInner {
    queue: CompletionProducer,
    moderator: Moderator,
    held: Held,
    state: Life,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Live,
    /// The CQ overflowed or its ring is corrupt: completions are dropped.
    Dead,
    /// The CQ's memory belongs to the driver again.
    Destroyed,
}

/// Attributes of a new CQ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqAttr {
    /// Doorbell page from which the CQ may be rung.
    pub doorbell_page: u32,
    /// Event queue for the CQ's completion events.
    pub event_queue: u16,
    /// The driver's cookie, which the CQ's events carry.
    pub cookie: u64,
    /// The place among all CQs that the driver has created since the last reset, from 1.
    pub order: u32,
}

impl Cq {
    pub(crate) fn new(
        number: Cqn,
        queue: CompletionProducer,
        attr: CqAttr,
        charge: Charge,
    ) -> Self {
        Self {
            number,
            doorbell_page: attr.doorbell_page,
            event_queue: attr.event_queue,
            cookie: attr.cookie,
            order: attr.order,
            inner: Mutex::new(CqInner {
                queue,
                moderator: Moderator::default(),
                held: Held::default(),
                state: Life::Live,
            }),
            users: Users::default(),
            _charge: charge,
        }
    }

    pub(crate) fn number(&self) -> Cqn {
        self.number
    }

    /// Writes CQEs of `completions` of a QP to the CQ and publishes them.
    #[inline]
    fn complete(&self, hca: &Hca, view: &DmaView, completions: &[PendingCqe]) {
        if hca.rules().has(Hook::Completion) {
            return self.complete_on_order(hca, view, completions);
        }
        // At most `BATCH`, so the cast does not truncate.
        let added = completions.len() as u32;
        self.update(hca, view, added, |queue| {
            completions
                .iter()
                .all(|completion| queue.push(&completion.cqe, completion.solicited).is_ok())
        });
    }

    /// Arms a CQ in virtqueue mode: an interrupt is sent for the next completion of
    /// the kind in `flags` that the driver has not polled yet.
    pub(crate) fn request_notify(&self, hca: &Hca, flags: NotifyFlags) {
        self.update(hca, &hca.space.enter(), 0, |queue| {
            queue.request_notify(flags);
            true
        });
    }

    /// Makes the CQ dead after the driver reset its virtqueue. On return the virtqueue's
    /// memory is not accessed any more.
    pub(crate) fn virtqueue_reset(&self, hca: &Hca) {
        if let Some(queue) = self.inner.lock().queue.as_virtqueue() {
            queue.retire();
        }
        self.update(hca, &hca.space.enter(), 0, |_| false);
    }

    /// Number of completions that the driver has not polled; `None` if its position is invalid.
    pub(crate) fn unpolled(&self, view: &DmaView) -> Option<u32> {
        self.inner.lock().queue.progress(view).unpolled
    }

    /// Handles the CQ's doorbell or deadline: sends the completion event that the arm word
    /// requests, if a matching completion is unpolled, and the delayed event, if its time has come.
    pub(crate) fn doorbell(&self, hca: &Hca, view: &DmaView) {
        done::notified(1);
        self.update(hca, view, 0, |_| true);
    }

    /// Sets the moderation of the CQ. A delayed event is sent.
    pub(crate) fn moderate(&self, hca: &Hca, moderation: Option<Moderation>) {
        let inner = &mut *self.inner.lock();
        if inner.moderator.change(moderation) && inner.state == Life::Live {
            self.notify(hca, inner);
        }
    }

    /// Replaces the CQ's ring by `ring`, for `cqe` entries. Returns the position at which the old
    /// ring ends. On return the old ring is not accessed any more.
    ///
    /// # Errors
    ///
    /// The CQ is dead, or has more than `cqe` unpolled completions.
    pub(crate) fn resize(&self, hca: &Hca, ring: RingMem, cqe: u32) -> Result<u32> {
        let view = hca.space.enter();
        // Send the event if the old ring's arm word requests it now. For later completions the
        // consumer arms the new ring.
        self.doorbell(hca, &view);
        let mut inner = self.inner.lock();
        self.let_locked_go(hca, &view, &mut inner);
        let failed = refusal(Reason::Failed, What::Cqn, self.number.get());
        match inner.state {
            Life::Live => inner.queue.resize(&view, ring, cqe).unwrap_or(Err(failed)),
            Life::Dead | Life::Destroyed => Err(failed),
        }
    }

    /// Runs `change`, publishes the new CQEs, of which there are `added`, and sends the completion
    /// event if it is due and not to be delayed. The CQ becomes dead if `change` returns false.
    fn update(
        &self,
        hca: &Hca,
        view: &DmaView,
        added: u32,
        change: impl FnOnce(&mut CompletionView<'_>) -> bool,
    ) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        // A failed HCA reports no completions to its driver: the VM may have lost the memory
        // that the operations accessed.
        if inner.state != Life::Live || hca.has_failed() {
            return;
        }
        let mut queue = inner.queue.enter(view);
        let is_sound = change(&mut queue);
        if is_sound && !queue.lost() && inner.held.holds(hca) {
            return;
        }
        // After an overflow, the CQEs that were written before it are published.
        let is_due = !queue.lost() && queue.publish();
        let is_dead = !is_sound || queue.lost();
        let mut sends = inner.moderator.sends(hca, self.number, is_due, added);
        if is_dead {
            sends |= inner.moderator.change(None);
        }
        if sends {
            self.notify(hca, inner);
        }
        if inner.held.takes_event(hca) {
            self.send_event(hca, inner);
        }
        if is_dead {
            if self.forget_held(hca, inner).has_event() {
                self.send_event(hca, inner);
            }
            inner.state = Life::Dead;
            hca.note_raised(0, AsyncEvent::CqErr, self.cookie);
            hca.events()
                .asynchronous(EventSource::Cq(self.number), AsyncEvent::CqErr, self.cookie);
            drop(guard);
            self.users.fail(hca);
        }
    }

    /// The state of the CQ; `None` if the CQ is destroyed.
    pub(crate) fn details(&self, hca: &Hca) -> Option<CqDetails> {
        let view = hca.space.enter();
        let inner = self.inner.lock();
        if inner.state == Life::Destroyed {
            return None;
        }
        let CqProgress {
            completions,
            unpolled,
            arm,
            latch,
        } = inner.queue.progress(&view);
        let event = match arm.kind {
            ArmKind::None => "none is requested".to_owned(),
            _ if arm.sequence == latch.fired => "was sent, and none is requested since".to_owned(),
            kind => {
                let which = match kind {
                    ArmKind::Solicited => "solicited completion",
                    _ => "completion",
                };
                format!("is requested for the next {which} after {}", latch.from)
            }
        };
        let delayed = inner.moderator.delayed();
        let left = |until: Instant| {
            let left = until.saturating_duration_since(hca.now());
            u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)
        };
        Some(CqDetails {
            cqn: self.number.get(),
            is_live: inner.state == Life::Live,
            completions,
            unpolled,
            event,
            delayed: delayed.map(left),
            held: inner.held.until().map(left),
            qps: details::numbers(self.users.qpns()),
        })
    }

    /// Sends the completion event that is due.
    fn notify(&self, hca: &Hca, inner: &mut CqInner) {
        let times = match hca.rules().has(Hook::Event) {
            false => 1,
            true => self.events_on_order(hca, &mut inner.held),
        };
        for _ in 0..times {
            self.send_event(hca, inner);
        }
    }

    /// Sends the completion event, or an interrupt if the CQ is a virtqueue.
    fn send_event(&self, hca: &Hca, inner: &CqInner) {
        hca.counters.add(Counter::CompletionEvents, 1);
        match inner.queue.as_virtqueue() {
            None => hca
                .events()
                .completion(self.event_queue, self.number, self.cookie),
            Some(virtqueue) => hca.virtqueues().interrupt(virtqueue.number()),
        }
    }

    /// Stops using the ring's memory and drops events not yet sent.
    pub(crate) fn destroy(&self, hca: &Hca) {
        {
            let inner = &mut *self.inner.lock();
            inner.state = Life::Destroyed;
            inner.moderator.stop(hca, self.number);
            self.forget_held(hca, inner);
        }
        hca.events()
            .forget(self.event_queue, EventSource::Completions(self.number));
        hca.events()
            .forget(FIRST_EVENT_QUEUE, EventSource::Cq(self.number));
    }
}

/// Number of completions that are delivered at a time.
const BATCH: usize = 8;

/// A completion that is not yet delivered to its CQ.
#[derive(Clone, Copy, Debug)]
struct PendingCqe {
    cqe: Cqe,
    /// Whether the sender requested a solicited event or the completion is an error.
    solicited: bool,
}

/// Completions of a worker's turn. They are delivered in batches: the CQ is locked, and its
/// consumer notified, once for each batch. The drop delivers the rest, while the half of the QP
/// whose work completes is still locked.
pub(crate) struct Completions<'a> {
    cq: &'a Cq,
    hca: &'a Hca,
    view: &'a DmaView,
    waiting: RefCell<[PendingCqe; BATCH]>,
    count: Cell<usize>,
}

impl<'a> Completions<'a> {
    /// An empty batch of completions of a QP to `cq`.
    pub(crate) fn new(cq: &'a Cq, hca: &'a Hca, view: &'a DmaView) -> Self {
        let none = PendingCqe {
            cqe: Cqe::ZERO,
            solicited: false,
        };
        Self {
            cq,
            hca,
            view,
            waiting: RefCell::new([none; BATCH]),
            count: Cell::new(0),
        }
    }

    /// Adds a completion. `solicited` is true if the sender requested a solicited event, and for
    /// every error.
    #[inline]
    pub(crate) fn push(&self, cqe: Cqe, solicited: bool) {
        let count = self.count.get();
        self.waiting.borrow_mut()[count] = PendingCqe { cqe, solicited };
        self.count.set(count + 1);
        if count + 1 == BATCH {
            self.deliver();
        }
    }

    /// Delivers the completions gathered so far.
    #[inline]
    pub(crate) fn deliver(&self) {
        let count = self.count.take();
        if count > 0 {
            let waiting = &self.waiting.borrow()[..count];
            self.cq.complete(self.hca, self.view, waiting);
        }
    }
}

impl Drop for Completions<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // The thread is panicking. The CQ may belong to the peer's port, which must get its
            // completions. If the delivery panics too, they are lost.
            let _ = contain(|| self.deliver());
        } else {
            self.deliver();
        }
    }
}
