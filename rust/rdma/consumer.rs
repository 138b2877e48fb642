// SPDX-License-Identifier: GPL-2.0

//! The way to the consumers of queues: the handlers that they gave when they created them.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! A completion handler may arm, poll and post. These may call
//! [`notify_later`](Consumer::notify_later) and [`event`](Consumer::event), which therefore take no
//! lock.
//!
//! Lock order: the lock of a [`Consumer`] is held while its completion handler runs. It is thus
//! taken before the driver's locks of posting, polling and arming, none of which is held when a
//! completion handler is called. No lock at all is held when an event handler is called.

use super::{
    deferred::{
        Call,
        Deferred, //
    },
    event::Event, //
};
use crate::bindings;
use core::ptr;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        SpinLockIrq, //
    }, //
};

/// A structure of the core that has handlers.
pub trait Handled: Sized + 'static {
    /// The events that can happen to it.
    type Event: Event;

    /// The handler of events and its context.
    ///
    /// # Safety
    ///
    /// `this` is created and not destroyed during the call.
    unsafe fn event_handler(this: *mut Self) -> EventHandler;

    /// Calls the handler of completions, of objects that have one.
    ///
    /// # Safety
    ///
    /// `this` is created and not destroyed during the call.
    unsafe fn complete(_this: *mut Self) {}

    /// Where an event names the object that it is about.
    fn element(event: &mut bindings::ib_event) -> &mut *mut Self;
}

/// Implements [`Handled`] for a structure of the core: its events, the member that is the context
/// of its handlers, and its name in the union of events.
macro_rules! handled {
    ($c:ident, $event:ty, $context:ident, $element:ident, $($complete:tt)*) => {
        impl super::consumer::Handled for bindings::$c {
            type Event = $event;

            unsafe fn event_handler(this: *mut Self) -> super::consumer::EventHandler {
                // SAFETY: By the function's safety requirements; the core sets them before it
                // creates the object.
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
                // initialised.
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

/// The way to the consumer of a queue. It may be kept longer than the queue, and leads nowhere from
/// then on.
///
/// # Examples
///
/// ```
/// use crate::rdma::{cq::CqConsumer, event::CqEvent};
///
/// /// Tells the consumer of a CQ that it gets no more completions.
/// fn fail(consumer: &CqConsumer) {
///     consumer.event(CqEvent::Error);
///     consumer.notify_later();
/// }
/// ```
pub struct Consumer<Q: Handled>(Arc<Deferred<Link<Q>>>);

impl<Q: Handled> Clone for Consumer<Q> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// # Invariants
///
/// `queue` is null or a queue that is created and whose destruction does not begin as long as
/// `calling` is held, or a deferred call is under way.
#[pin_data]
struct Link<Q: Handled> {
    /// Changes with `calling` held.
    queue: Atomic<*mut Q>,
    /// The object that completions name, null whenever `queue` is.
    name: Atomic<*mut Q>,
    /// Events that the deferred call delivers: a bit for each kind of event, and [`COMPLETIONS`].
    pending: Atomic<u32>,
    /// Held while the completion handler runs.
    #[pin]
    calling: SpinLockIrq<()>,
}

/// The bit of [`Link::pending`] that stands for completions. It is above every `ib_event_type`.
const COMPLETIONS: u32 = 1 << 31;

/// The bit of an event.
fn bit(event: bindings::ib_event_type) -> u32 {
    1u32.checked_shl(event).unwrap_or(0)
}

impl<Q: Handled> Link<Q> {
    /// Calls the handler of completions.
    fn notify(&self) {
        let _guard = self.calling.lock();
        let queue = self.queue.load(Relaxed);
        if !queue.is_null() {
            // SAFETY: By the type invariants: the lock is held.
            unsafe { Q::complete(queue) };
        }
    }

    /// Adds bits to `pending`.
    fn mark(&self, bits: u32) {
        let mut old = self.pending.load(Relaxed);
        while let Err(now) = self.pending.cmpxchg(old, old | bits, Full) {
            old = now;
        }
    }

    /// Calls the handler for each kind of event in `pending`.
    ///
    /// # Safety
    ///
    /// `queue` is created and not destroyed during the call.
    unsafe fn tell(queue: *mut Q, mut pending: u32) {
        // SAFETY: By the safety requirements.
        let EventHandler {
            device,
            handler,
            context,
        } = unsafe { Q::event_handler(queue) };
        let Some(handler) = handler else { return };
        while pending != 0 {
            let mut record = bindings::ib_event {
                device,
                event: pending.trailing_zeros(),
                ..Default::default()
            };
            pending &= pending - 1;
            *Q::element(&mut record) = queue;
            // SAFETY: The consumer gave the handler with this context. It takes the events of `Q`,
            // and no others are pending.
            unsafe { handler(&mut record, context) };
        }
    }
}

impl<Q: Handled> Call for Link<Q> {
    fn call(&self) {
        let pending = self.pending.xchg(0, Full);
        // Acquire: what the creator of the queue wrote is visible.
        let queue = self.queue.load(Acquire);
        if queue.is_null() {
            return;
        }
        if pending & COMPLETIONS != 0 {
            self.notify();
        }
        // SAFETY: By the type invariants: this is the deferred call.
        unsafe { Self::tell(queue, pending & !COMPLETIONS) };
    }
}

impl<Q: Handled> Consumer<Q> {
    pub(super) fn new() -> Result<Self> {
        let link = Deferred::new(pin_init!(Link {
            queue: Atomic::new(ptr::null_mut()),
            name: Atomic::new(ptr::null_mut()),
            pending: Atomic::new(0),
            calling <- new_spinlock_irq!((), "rdma::consumer"),
        }))?;
        Ok(Self(link))
    }

    /// Tells the consumer of an event, from process context, since handlers may sleep. May be
    /// called in any context. Of events of one kind that come faster than the handler, one is told.
    pub fn event(&self, event: Q::Event) {
        self.defer(bit(event.as_raw()));
    }

    fn defer(&self, bits: u32) {
        // An event of a queue that is not linked yet, or no longer, has nobody to be told to. If
        // `unlink` comes between the two, the deferred call is disabled.
        if !self.0.queue.load(Relaxed).is_null() {
            self.0.mark(bits);
            self.0.queue();
        }
    }

    /// The queue as completions name it, null when it is being destroyed.
    pub(super) fn name(&self) -> *mut Q {
        self.0.name.load(Relaxed)
    }

    /// Leads to the consumer of `queue` from here on, which completions call `name`.
    ///
    /// # Safety
    ///
    /// `queue` is created, and [`unlink`](Self::unlink) is called before it is destroyed.
    pub(super) unsafe fn link(&self, queue: *mut Q, name: *mut Q) {
        let _guard = self.0.calling.lock();
        self.0.name.store(name, Relaxed);
        // INVARIANT: By the safety requirements; `unlink` waits for the holder of the lock and for
        // the deferred call. Release: see `Link::call`.
        self.0.queue.store(queue, Release);
    }

    /// Ends the link for good. When it returns, no handler runs or will run.
    pub(super) fn unlink(&self) {
        {
            let _guard = self.0.calling.lock();
            self.0.queue.store(ptr::null_mut(), Relaxed);
            self.0.name.store(ptr::null_mut(), Relaxed);
        }
        self.0.disable();
    }
}

impl Consumer<bindings::ib_cq> {
    /// Tells the consumer that there are completions. May be called in any context but from the
    /// consumer's verbs, for a CQ that the consumer armed.
    ///
    /// A process that has not read the last such event gets no second one.
    pub fn notify(&self) {
        self.0.notify();
    }

    /// Does the same from a work item. For callers who hold locks that the consumer's handler
    /// takes, and for verbs, which may run in that handler.
    pub fn notify_later(&self) {
        self.defer(COMPLETIONS);
    }
}
