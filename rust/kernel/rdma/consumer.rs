// SPDX-License-Identifier: GPL-2.0

//! Consumers of queues: calls of the handlers that a consumer passed when it created the queue.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! A completion handler may arm, poll and post. The driver's functions for this may in turn call
//! [`notify_later`](Consumer::notify_later) and [`event`](Consumer::event), which therefore take no
//! lock.
//!
//! Lock order: the lock of a [`Consumer`] is held while its completion handler runs. So it is taken
//! before the driver's locks of posting, polling and arming: none of these is held when a
//! completion handler is called. No lock at all is held when an event handler is called.

use super::event::Event;
use crate::{
    bindings,
    sync::{
        deferred::{
            Call,
            Deferred,
            Handle, //
        },
        workqueue::Workqueue, //
    }, //
};
use core::ptr;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            AtomicFlag,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        SpinLockIrq, //
    }, //
};

/// A structure of the core with handlers.
pub trait Handled: Sized + 'static {
    /// Asynchronous events of the object.
    type Event: Event;

    /// The event handler and its context.
    ///
    /// # Safety
    ///
    /// `this` is created and not destroyed during the call.
    unsafe fn event_handler(this: *mut Self) -> EventHandler;

    /// Calls the completion handler, if the object has one.
    ///
    /// # Safety
    ///
    /// `this` is created and not destroyed during the call.
    unsafe fn complete(_this: *mut Self) {}

    /// The member of an event that points to the object.
    fn element(event: &mut bindings::ib_event) -> &mut *mut Self;
}

/// Implements [`Handled`] for a structure of the core. The arguments are its events, its member
/// with the context of its handlers, and its member in the union of `ib_event`.
macro_rules! handled {
    ($c:ident, $event:ty, $context:ident, $element:ident, $($complete:tt)*) => {
        impl super::consumer::Handled for bindings::$c {
            type Event = $event;

            unsafe fn event_handler(this: *mut Self) -> super::consumer::EventHandler {
                // SAFETY: The object is created; the core sets these fields before it creates the
                // object.
                unsafe {
                    super::consumer::EventHandler {
                        device: (*this).device,
                        handler: (*this).event_handler,
                        context: (*this).$context,
                    }
                }
            }

            fn element(event: &mut bindings::ib_event) -> &mut *mut Self {
                // SAFETY: Any member of the union is a pointer or a number, and all bits of it are
                // initialized.
                unsafe { &mut event.element.$element }
            }

            $($complete)*
        }
    };
}
pub(super) use handled;

/// The consumer's event handler and its context.
pub struct EventHandler {
    pub(super) device: *mut bindings::ib_device,
    pub(super) handler: Option<unsafe extern "C" fn(*mut bindings::ib_event, *mut c_void)>,
    pub(super) context: *mut c_void,
}

/// A handle to the consumer of a queue. It may outlive the queue, and then has no effect.
///
/// # Examples
///
/// ```
/// use crate::rdma::{cq::CqConsumer, event::CqEvent};
///
/// /// Reports to the consumer of a CQ that no more completions arrive.
/// fn fail(consumer: &CqConsumer) {
///     consumer.event(CqEvent::Error);
///     consumer.notify_later();
/// }
/// ```
pub struct Consumer<Q: Handled>(Handle<Link<Q>>);

/// The link of a queue to its consumer, which the queue owns. Dropping it ends the deferred calls.
pub struct ConsumerLink<Q: Handled>(Deferred<Link<Q>>);

impl<Q: Handled> Clone for Consumer<Q> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// # Invariants
///
/// `queue` is null or a created queue. The destruction of the queue does not begin while `calling`
/// is held or a deferred call is running.
#[pin_data]
struct Link<Q: Handled> {
    /// The queue; changed with `calling` held.
    queue: Atomic<*mut Q>,
    /// The object that owns the queue, to which completions point; null whenever `queue` is null.
    owner: Atomic<*mut Q>,
    /// Events that the deferred call delivers: a flag for each kind of event, and [`COMPLETIONS`].
    /// A flag of its own for each kind: contexts that set different flags do not disturb each
    /// other.
    pending: [AtomicFlag; KINDS],
    /// Held while the completion handler runs.
    #[pin]
    calling: SpinLockIrq<()>,
}

/// Number of flags of [`Link::pending`].
const KINDS: usize = 32;

/// The index of the flag for completions, above those of all `ib_event_type`s.
const COMPLETIONS: bindings::ib_event_type = 31;

impl<Q: Handled> Link<Q> {
    /// Calls the completion handler.
    fn notify(&self) {
        let _guard = self.calling.lock();
        let queue = self.queue.load(Relaxed);
        if !queue.is_null() {
            // SAFETY: By the type invariants, since the lock is held.
            unsafe { Q::complete(queue) };
        }
    }

    /// Clears the flag of a kind of event, and returns whether it was set.
    fn take(&self, kind: bindings::ib_event_type) -> bool {
        let flag = &self.pending[kind as usize % KINDS];
        flag.load(Relaxed) && flag.xchg(false, Full)
    }

    /// Calls the handler for each kind of event that is pending.
    ///
    /// # Safety
    ///
    /// `queue` is created and not destroyed during the call.
    unsafe fn tell(&self, queue: *mut Q) {
        // SAFETY: By the requirements of this function.
        let EventHandler {
            device,
            handler,
            context,
        } = unsafe { Q::event_handler(queue) };
        let Some(handler) = handler else { return };
        for event in (0..COMPLETIONS).filter(|kind| self.take(*kind)) {
            let mut record = bindings::ib_event {
                device,
                event,
                ..Default::default()
            };
            *Q::element(&mut record) = queue;
            // SAFETY: The consumer passed the handler together with this context. The handler takes
            // events of `Q`, and only such events are pending.
            unsafe { handler(&mut record, context) };
        }
    }
}

impl<Q: Handled> Call for Link<Q> {
    fn call(&self) {
        // Acquire, so that the writes of the queue's creator are visible.
        let queue = self.queue.load(Acquire);
        if queue.is_null() {
            return;
        }
        if self.take(COMPLETIONS) {
            self.notify();
        }
        // SAFETY: By the type invariants, since the deferred call is running.
        unsafe { self.tell(queue) };
    }
}

impl<Q: Handled> ConsumerLink<Q> {
    /// A link without a consumer, whose deferred calls run on `work`.
    pub(super) fn new(work: &Arc<Workqueue>) -> Result<Self> {
        let link = pin_init!(Link {
            queue: Atomic::new(ptr::null_mut()),
            owner: Atomic::new(ptr::null_mut()),
            pending: [const { AtomicFlag::new(false) }; KINDS],
            calling <- new_spinlock_irq!((), "rdma::consumer"),
        });
        Ok(Self(Deferred::new(
            work,
            link,
            c"rdma::ConsumerLink",
            kernel::static_lock_class!(),
        )?))
    }

    /// A handle to the consumer.
    pub(super) fn consumer(&self) -> Consumer<Q> {
        Consumer(self.0.handle())
    }

    /// Removes the link for good. Afterwards no handler runs or begins.
    pub(super) fn unlink(&self) {
        {
            let _guard = self.0.calling.lock();
            self.0.queue.store(ptr::null_mut(), Relaxed);
            self.0.owner.store(ptr::null_mut(), Relaxed);
        }
        self.0.disable();
    }
}

impl<Q: Handled> Consumer<Q> {
    /// Delivers an event to the consumer from process context, since handlers may sleep. Can be
    /// called in any context. Events of one kind that are pending at the same time are delivered as
    /// one.
    pub fn event(&self, event: Q::Event) {
        self.defer(event.as_raw());
    }

    fn defer(&self, kind: bindings::ib_event_type) {
        // Events of a queue without a linked consumer are dropped. If `unlink` runs before the call
        // is queued, the deferred call is disabled.
        if !self.0.queue.load(Relaxed).is_null() {
            // A call that begins after `queue` sees the flag.
            self.0.pending[kind as usize % KINDS].store(true, Release);
            self.0.queue();
        }
    }

    /// The object that owns the queue, to which completions point; null while the queue is being
    /// destroyed.
    pub(super) fn owner(&self) -> *mut Q {
        self.0.owner.load(Relaxed)
    }

    /// Links the handle to the consumer of `queue`. Completions point to `owner`.
    ///
    /// # Safety
    ///
    /// `queue` is created, and [`unlink`](ConsumerLink::unlink) is called before it is destroyed.
    pub(super) unsafe fn link(&self, queue: *mut Q, owner: *mut Q) {
        let _guard = self.0.calling.lock();
        self.0.owner.store(owner, Relaxed);
        // INVARIANT: `queue` is created. `unlink` is called before its destruction, and waits for
        // the holder of the lock and for the deferred call. Release: see `Link::call`.
        self.0.queue.store(queue, Release);
    }
}

impl Consumer<bindings::ib_cq> {
    /// Calls the completion handler of a CQ that the consumer has armed. Can be called in any
    /// context, but not from the consumer's verbs.
    ///
    /// A process that has not read its last completion event gets no second event.
    pub fn notify(&self) {
        self.0.notify();
    }

    /// Calls the completion handler from a work item. For callers that hold locks which the handler
    /// takes, and for verbs, which may run in the handler.
    pub fn notify_later(&self) {
        self.defer(COMPLETIONS);
    }
}
