// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completion queues.

use std::cell::{Cell, RefCell};
use std::thread;

use budget::Charge;
use contain::contain;
use dma::DmaView;
use parking_lot::Mutex;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ctrl::NotifyFlags;
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::ib::AsyncEvent;
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::wire::Wire;

use crate::counters::Counter;
use crate::error::{require, Result};
use crate::event::EventSource;
use crate::memory::{CompletionProducer, CompletionView, RingMem, VirtqueueMem};
use crate::users::Users;
use crate::Device;

/// A completion queue.
///
/// Its lock comes after the locks of QPs and before that of an event queue.
#[derive(Debug)]
pub(crate) struct Cq {
    number: Cqn,
    /// Doorbell page that rings it.
    pub doorbell_page: u32,
    event_queue: u16,
    cookie: u64,
    inner: Mutex<CqInner>,
    /// QPs that complete here.
    pub(crate) users: Users,
    _charge: Charge,
}

#[derive(Debug)]
struct CqInner {
    queue: CompletionProducer,
    state: CqState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CqState {
    Live,
    /// It overflowed or its ring made no sense: completions vanish.
    Dead,
    /// Its memory is not ours any more.
    Destroyed,
}

/// Attributes of a new CQ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqAttr {
    /// Doorbell page that rings it.
    pub doorbell_page: u32,
    /// Event queue of its completion events.
    pub event_queue: u16,
    /// Cookie of its events.
    pub cookie: u64,
}

impl Cq {
    /// A new CQ.
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
            inner: Mutex::new(CqInner {
                queue,
                state: CqState::Live,
            }),
            users: Users::default(),
            _charge: charge,
        }
    }

    /// Its handle.
    pub(crate) fn number(&self) -> Cqn {
        self.number
    }

    /// Delivers completions.
    fn complete(&self, device: &Device, view: &DmaView, completions: &[PendingCqe]) {
        self.update(device, view, |queue| {
            completions
                .iter()
                .all(|completion| queue.push(&completion.cqe, completion.solicited).is_ok())
        });
    }

    /// Arms a CQ that is a virtqueue: an interrupt for the next completion that the driver has not
    /// polled yet and that is of this kind.
    pub(crate) fn request_notify(&self, device: &Device, flags: NotifyFlags) {
        self.update(device, &device.space.enter(), |queue| {
            queue.request_notify(flags);
            true
        });
    }

    /// The driver has reset the virtqueue that this CQ is: it is dead, and its memory is not ours
    /// any more.
    pub(crate) fn virtqueue_reset(&self, device: &Device) {
        if let Some(queue) = self.inner.lock().queue.as_virtqueue() {
            queue.retire();
        }
        self.update(device, &device.space.enter(), |_| false);
    }

    /// Answers the doorbell: the arm word may ask for an event that is due.
    pub(crate) fn doorbell(&self, device: &Device, view: &DmaView) {
        self.update(device, view, |_| true);
    }

    /// Goes on in `ring`, for `cqe` entries, and returns the position that the old one ends with.
    /// The old one is not accessed any more on return.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the CQ is dead, or more completions than `cqe` are not polled yet.
    pub(crate) fn resize(&self, device: &Device, ring: RingMem, cqe: u32) -> Result<u32> {
        let view = device.space.enter();
        // The owner's request in the old ring is answered there; for the rest it asks again in the
        // new one.
        self.doorbell(device, &view);
        let mut inner = self.inner.lock();
        require(inner.state == CqState::Live)?;
        inner.queue.resize(&view, ring, cqe)
    }

    /// Makes `change`, publishes it and fires the event if it is due. Kills the CQ if `change`
    /// returns false.
    fn update(
        &self,
        device: &Device,
        view: &DmaView,
        change: impl FnOnce(&mut CompletionView<'_>) -> bool,
    ) {
        let mut inner = self.inner.lock();
        // The driver of a failed device learns nothing more: what completes may have read or
        // written lost memory.
        if inner.state != CqState::Live || device.has_failed() {
            return;
        }
        let mut queue = inner.queue.enter(view);
        let is_sound = change(&mut queue);
        // CQEs that were lost are not to be seen.
        let is_due = !queue.lost() && queue.publish();
        let is_dead = !is_sound || queue.lost();
        if is_due {
            self.notify(device, inner.queue.as_virtqueue());
        }
        if is_dead {
            inner.state = CqState::Dead;
            device.events().asynchronous(
                EventSource::Cq(self.number),
                AsyncEvent::CqErr,
                self.cookie,
            );
            drop(inner);
            self.users.fail(device);
        }
    }

    /// Drops its device side and makes it anew of its committed state.
    #[cfg(feature = "testing")]
    pub(crate) fn rebuild(&self) {
        let mut inner = self.inner.lock();
        if inner.state == CqState::Live {
            inner.queue.rebuild();
        }
    }

    /// Sends the completion event, which is an interrupt if the CQ is a virtqueue.
    fn notify(&self, device: &Device, virtqueue: Option<&VirtqueueMem>) {
        device.counters.add(Counter::CompletionEvents, 1);
        match virtqueue {
            None => device
                .events()
                .completion(self.event_queue, self.number, self.cookie),
            Some(virtqueue) => device.virtqueues().interrupt(virtqueue.number()),
        }
    }

    /// Ends the use of the ring's memory and forgets events that wait.
    pub(crate) fn destroy(&self, device: &Device) {
        self.inner.lock().state = CqState::Destroyed;
        device
            .events()
            .forget(self.event_queue, EventSource::Completions(self.number));
        device
            .events()
            .forget(FIRST_EVENT_QUEUE, EventSource::Cq(self.number));
    }
}

/// Completions that are delivered at a time.
const BATCH: usize = 8;

/// A completion on its way to its CQ.
#[derive(Clone, Copy, Debug)]
struct PendingCqe {
    cqe: Cqe,
    /// The sender marked it so, or it is an error.
    solicited: bool,
}

/// Completions of a worker's turn, delivered some at a time: the CQ is locked, and its consumer
/// told, once for all of them. Completions that are left go when it is dropped, before the lock of
/// the half of the QP that they came from.
pub(crate) struct Completions<'a> {
    cq: &'a Cq,
    device: &'a Device,
    view: &'a DmaView,
    waiting: RefCell<[PendingCqe; BATCH]>,
    count: Cell<usize>,
}

impl<'a> Completions<'a> {
    /// None yet.
    pub(crate) fn new(cq: &'a Cq, device: &'a Device, view: &'a DmaView) -> Self {
        let none = PendingCqe {
            cqe: Cqe::ZERO,
            solicited: false,
        };
        Self {
            cq,
            device,
            view,
            waiting: RefCell::new([none; BATCH]),
            count: Cell::new(0),
        }
    }

    /// One more. `solicited` is true for those that the sender marked so and for every error.
    #[inline]
    pub(crate) fn push(&self, cqe: Cqe, solicited: bool) {
        let count = self.count.get();
        self.waiting.borrow_mut()[count] = PendingCqe { cqe, solicited };
        self.count.set(count + 1);
        if count + 1 == BATCH {
            self.deliver();
        }
    }

    /// Delivers those that wait.
    #[inline]
    pub(crate) fn deliver(&self) {
        let count = self.count.take();
        if count > 0 {
            let waiting = &self.waiting.borrow()[..count];
            self.cq.complete(self.device, self.view, waiting);
        }
    }
}

impl Drop for Completions<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Completions of the peer's port are owed to it. Completions of which the delivery
            // panics once more are lost.
            let _ = contain(|| self.deliver());
        } else {
            self.deliver();
        }
    }
}
