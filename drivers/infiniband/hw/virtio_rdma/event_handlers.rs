// SPDX-License-Identifier: GPL-2.0

//! Event handlers: the table of the [cookies](Cookie).
//!
//! Entry 0 is the device itself. An event takes no lock: entries never move, and the call of a
//! handler writes only to the handler's entry. So event queues do not disturb each other.
//!
//! Lock order: no other lock is taken while `EventHandlers::unused` is held. Handlers are called
//! without a lock.

use crate::{
    abi::{
        event::EventKind,
        ib::AsyncEvent, //
    },
    decode::event::{
        Cookie,
        KnownEvent,
        UnusedCookie, //
    },
    sync::call_slot::CallSlot,
    trace, //
};
use kernel::{
    device::Device,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        new_mutex,
        Arc,
        Mutex,
        SetOnce, //
    },
};

/// The handler of an object's events.
pub(crate) trait EventHandler: Send + Sync {
    /// The kind of the object, for traces.
    fn object(&self) -> &'static CStr;

    /// An armed CQ has a completion. Called in interrupt context.
    fn completion(&self) {}

    /// The device refused to arm a CQ, so no completion event will follow. Called in interrupt
    /// context.
    fn arming_refused(&self) {}

    /// An asynchronous event. Called in interrupt context.
    fn async_event(&self, event: AsyncEvent) {
        let _ = event;
    }

    /// The device has stopped: it accesses no memory and will report nothing any more. Called once,
    /// in process context, by the task that noticed it, possibly in the middle of a command: must
    /// not take a lock that is held while commands run.
    fn stopped(&self) {}
}

/// Number of entries that are allocated at a time. Entries never move.
const CHUNK: usize = 128;

/// An entry of the table.
#[pin_data]
struct Entry {
    /// The handler. Its key is the generation of the object's cookie.
    #[pin]
    handler: CallSlot<Arc<dyn EventHandler>>,
    /// The object's number as traces show it, once the device has assigned it.
    number: Atomic<i64>,
    /// Number of events of the object.
    events: Atomic<u32>,
}

impl Entry {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            handler <- CallSlot::new(),
            number: Atomic::new(trace::NO_NUMBER),
            events: Atomic::new(0),
        })
    }
}

/// The table of event handlers.
#[pin_data]
pub(crate) struct EventHandlers {
    /// The chunks before the first empty one exist.
    chunks: KVec<SetOnce<Pin<KBox<[Entry; CHUNK]>>>>,
    /// The cookies of free entries. The vector has room for those of all entries in `chunks`.
    #[pin]
    unused: Mutex<KVVec<UnusedCookie>>,
}

impl EventHandlers {
    /// A table for `max` event handlers besides the device itself.
    pub(crate) fn new(max: usize) -> Result<Arc<Self>> {
        let count = (1 + max).div_ceil(CHUNK);
        let mut chunks = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            chunks.push_within_capacity(SetOnce::new())?;
        }
        let this = Arc::pin_init(
            pin_init!(Self {
                chunks,
                unused <- new_mutex!(KVVec::new(), "virtio_rdma::event_handlers"),
            }),
            GFP_KERNEL,
        )?;
        this.grow(&mut this.unused.lock())?;
        Ok(this)
    }

    /// Adds a chunk of entries to a table without free entries.
    fn grow(&self, unused: &mut KVVec<UnusedCookie>) -> Result {
        let is_empty = |chunk: &SetOnce<_>| chunk.as_ref().is_none();
        let number = self.chunks.iter().position(is_empty).ok_or(ENOSPC)?;
        let first = u32::try_from(number * CHUNK)?;
        unused.reserve((number + 1) * CHUNK, GFP_KERNEL)?;
        let entries = pin_init::pin_init_array_from_fn(|_| Entry::new());
        self.chunks[number].populate(KBox::pin_init(entries, GFP_KERNEL)?);
        for index in (first..first + CHUNK as u32).rev() {
            if index != Cookie::DEVICE.index {
                unused.push_within_capacity(UnusedCookie::first(index))?;
            }
        }
        Ok(())
    }

    /// The entry of a cookie, whatever its generation.
    #[inline]
    fn entry(&self, cookie: Cookie) -> Option<&Entry> {
        let index = usize::try_from(cookie.index).ok()?;
        self.chunks.get(index / CHUNK)?.as_ref()?.get(index % CHUNK)
    }

    /// Registers `handler` for the events of a new cookie.
    ///
    /// # Errors
    ///
    /// [`ENOSPC`] if the table is full, [`ENOMEM`].
    pub(crate) fn register(
        self: &Arc<Self>,
        handler: Arc<dyn EventHandler>,
    ) -> Result<EventRegistration> {
        let mut unused = self.unused.lock();
        if unused.is_empty() {
            self.grow(&mut unused)?;
        }
        let cookie = unused.pop().ok_or(ENOSPC)?.take();
        drop(unused);
        self.register_as(cookie, handler)
    }

    /// Registers `handler` for the events of the device and its port.
    ///
    /// # Errors
    ///
    /// [`EBUSY`] if a handler is registered already.
    pub(crate) fn register_device(
        self: &Arc<Self>,
        handler: Arc<dyn EventHandler>,
    ) -> Result<EventRegistration> {
        self.register_as(Cookie::DEVICE, handler)
    }

    fn register_as(
        self: &Arc<Self>,
        cookie: Cookie,
        handler: Arc<dyn EventHandler>,
    ) -> Result<EventRegistration> {
        let entry = self.entry(cookie).ok_or(EINVAL)?;
        entry.number.store(trace::NO_NUMBER, Relaxed);
        entry.events.store(0, Relaxed);
        entry
            .handler
            .insert(cookie.generation, handler)
            .map_err(|_| EBUSY)?;
        Ok(EventRegistration {
            event_handlers: self.clone(),
            cookie,
        })
    }

    /// Calls `f` with the handler of `cookie`, if it is still registered.
    pub(crate) fn with(&self, cookie: Cookie, f: impl FnOnce(&dyn EventHandler)) {
        self.with_entry(cookie, |_, handler| f(handler));
    }

    #[inline]
    fn with_entry(&self, cookie: Cookie, f: impl FnOnce(&Entry, &dyn EventHandler)) {
        if let Some(entry) = self.entry(cookie) {
            entry
                .handler
                .call(cookie.generation, |handler| f(entry, &**handler));
        }
    }

    /// Passes an event of `dev` to its handler. Called in interrupt context.
    pub(crate) fn deliver(&self, dev: &Device, event: &KnownEvent) {
        let mut is_taken = false;
        self.with_entry(event.object, |entry, handler| {
            is_taken = true;
            entry.events.fetch_add(1, Relaxed);
            trace::event(|| {
                let (kind, object) = (event.kind.c_name(), handler.object());
                let number = entry.number.load(Relaxed);
                (dev.name(), kind, object, number, event.object.value())
            });
            match event.kind {
                EventKind::Completion => handler.completion(),
                EventKind::Async(kind) => handler.async_event(kind),
            }
        });
        if !is_taken {
            // The object was destroyed meanwhile.
            trace::event(|| {
                let (kind, value) = (event.kind.c_name(), event.object.value());
                (dev.name(), kind, c"NONE", trace::NO_NUMBER, value)
            });
        }
    }

    /// Tells every handler that the device has stopped.
    pub(crate) fn stopped(&self) {
        for entry in self
            .chunks
            .iter()
            .map_while(SetOnce::as_ref)
            .flat_map(|chunk| chunk.iter())
        {
            entry.handler.call_any(|handler| handler.stopped());
        }
    }
}

/// The registration of a handler.
///
/// Dropping it may sleep. Afterwards no call of the handler runs or begins.
pub(crate) struct EventRegistration {
    event_handlers: Arc<EventHandlers>,
    cookie: Cookie,
}

impl EventRegistration {
    /// The cookie that the device puts into events for this handler.
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie.value()
    }

    /// The registration of an object that the device has created, with the number by which traces
    /// name it.
    pub(crate) fn numbered(self, number: impl Into<u32>) -> Self {
        if let Some(entry) = self.event_handlers.entry(self.cookie) {
            entry.number.store(number.into().into(), Relaxed);
        }
        self
    }

    /// Number of events that the device has reported of the object.
    pub(crate) fn events(&self) -> u32 {
        let entry = self.event_handlers.entry(self.cookie);
        entry.map_or(0, |entry| entry.events.load(Relaxed))
    }
}

impl Drop for EventRegistration {
    fn drop(&mut self) {
        let handler = self
            .event_handlers
            .entry(self.cookie)
            .and_then(|entry| entry.handler.remove(self.cookie.generation));
        // Dropped here, in process context: memory of a handler may not be freeable in an
        // interrupt.
        drop(handler);
        // The cookie of the device is always that of the device.
        if self.cookie != Cookie::DEVICE {
            let next = UnusedCookie::after(self.cookie);
            // The vector has room for the cookies of all entries.
            let _ = self.event_handlers.unused.lock().push_within_capacity(next);
        }
    }
}
