// SPDX-License-Identifier: GPL-2.0

//! Receivers of events: the table of the [cookies](Cookie).
//!
//! Entry 0 is the device itself. An event takes no lock: entries never move, and the call of a
//! target writes only to the target's entry. So event queues do not disturb each other.
//!
//! Lock order: no other lock is taken while `EventTargets::unused` is held. Targets are called
//! without a lock.

use crate::{
    abi::ib::AsyncEvent,
    decode::event::{
        Cookie,
        UnusedCookie, //
    },
    sync::call_slot::CallSlot, //
};
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex,
        SetOnce, //
    },
};

/// An object that receives events.
pub(crate) trait EventTarget: Send + Sync {
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

/// An entry of the table. The key is the generation of the object's cookie.
type Entry = CallSlot<Arc<dyn EventTarget>>;

/// The table of targets.
#[pin_data]
pub(crate) struct EventTargets {
    /// The chunks before the first empty one exist.
    chunks: KVec<SetOnce<Pin<KBox<[Entry; CHUNK]>>>>,
    /// The cookies of free entries. The vector has room for those of all entries in `chunks`.
    #[pin]
    unused: Mutex<KVVec<UnusedCookie>>,
}

impl EventTargets {
    /// A table for `max` targets besides the device itself.
    pub(crate) fn new(max: usize) -> Result<Arc<Self>> {
        let count = (1 + max).div_ceil(CHUNK);
        let mut chunks = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            chunks.push_within_capacity(SetOnce::new())?;
        }
        let this = Arc::pin_init(
            pin_init!(Self {
                chunks,
                unused <- new_mutex!(KVVec::new(), "virtio_rdma::targets"),
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

    /// Registers `target` for the events of a new cookie.
    ///
    /// # Errors
    ///
    /// [`ENOSPC`] if the table is full, [`ENOMEM`].
    pub(crate) fn register(
        self: &Arc<Self>,
        target: Arc<dyn EventTarget>,
    ) -> Result<EventRegistration> {
        let mut unused = self.unused.lock();
        if unused.is_empty() {
            self.grow(&mut unused)?;
        }
        let cookie = unused.pop().ok_or(ENOSPC)?.take();
        drop(unused);
        self.register_as(cookie, target)
    }

    /// Registers `target` for the events of the device and its port.
    ///
    /// # Errors
    ///
    /// [`EBUSY`] if a target is registered already.
    pub(crate) fn register_device(
        self: &Arc<Self>,
        target: Arc<dyn EventTarget>,
    ) -> Result<EventRegistration> {
        self.register_as(Cookie::DEVICE, target)
    }

    fn register_as(
        self: &Arc<Self>,
        cookie: Cookie,
        target: Arc<dyn EventTarget>,
    ) -> Result<EventRegistration> {
        let entry = self.entry(cookie).ok_or(EINVAL)?;
        entry.insert(cookie.generation, target).map_err(|_| EBUSY)?;
        Ok(EventRegistration {
            targets: self.clone(),
            cookie,
        })
    }

    /// Calls `f` with the target of `cookie`, if it is still registered.
    #[inline]
    pub(crate) fn with(&self, cookie: Cookie, f: impl FnOnce(&dyn EventTarget)) {
        if let Some(entry) = self.entry(cookie) {
            entry.call(cookie.generation, |target| f(&**target));
        }
    }

    /// Tells every target that the device has stopped.
    pub(crate) fn stopped(&self) {
        for entry in self
            .chunks
            .iter()
            .map_while(SetOnce::as_ref)
            .flat_map(|chunk| chunk.iter())
        {
            entry.call_any(|target| target.stopped());
        }
    }
}

/// The registration of a target.
///
/// Dropping it may sleep. Afterwards no call of the target runs or begins.
pub(crate) struct EventRegistration {
    targets: Arc<EventTargets>,
    cookie: Cookie,
}

impl EventRegistration {
    /// The cookie that the device puts into events for this target.
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie.value()
    }
}

impl Drop for EventRegistration {
    fn drop(&mut self) {
        let target = self
            .targets
            .entry(self.cookie)
            .and_then(|entry| entry.remove(self.cookie.generation));
        // Dropped here, in process context: memory of a target may not be freeable in an interrupt.
        drop(target);
        // The cookie of the device is always that of the device.
        if self.cookie != Cookie::DEVICE {
            let next = UnusedCookie::after(self.cookie);
            // The vector has room for the cookies of all entries.
            let _ = self.targets.unused.lock().push_within_capacity(next);
        }
    }
}
