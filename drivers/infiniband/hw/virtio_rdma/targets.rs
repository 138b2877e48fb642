// SPDX-License-Identifier: GPL-2.0

//! Receivers of events: the table behind the [cookies](Cookie).
//!
//! Entry 0 is the device itself.
//!
//! Lock order: no other lock is taken while the table's lock is held. Targets are called without
//! the table's lock.

use crate::{
    abi::ib::AsyncEvent,
    decode::event::Cookie, //
};
use core::mem::replace;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full, //
        },
        new_spinlock_irq,
        Arc,
        Completion,
        SpinLockIrq, //
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

/// End of the list of free entries.
const NONE: u32 = u32::MAX;

/// Counts the calls of a target.
#[pin_data]
struct Calls {
    /// Number of users: one for the registration, and one for each running call.
    users: Atomic<i32>,
    #[pin]
    unused: Completion,
}

impl Calls {
    fn put(&self) {
        if self.users.fetch_sub(1, Full) == 1 {
            self.unused.complete_all();
        }
    }
}

/// A target and its calls.
#[derive(Clone)]
struct RegisteredTarget {
    target: Arc<dyn EventTarget>,
    calls: Arc<Calls>,
}

impl RegisteredTarget {
    fn new(target: Arc<dyn EventTarget>) -> Result<Self> {
        let calls = pin_init!(Calls {
            users: Atomic::new(1),
            unused <- Completion::new(),
        });
        Ok(Self {
            target,
            calls: Arc::pin_init(calls, GFP_KERNEL)?,
        })
    }

    /// Counts a call that begins; [`call`](Self::call) ends it. Called with the table's lock held.
    fn begin(&self) -> Self {
        self.calls.users.fetch_add(1, Full);
        self.clone()
    }

    /// Runs `f` on the target and ends the call.
    fn call(self, f: impl FnOnce(&dyn EventTarget)) {
        let Self { target, calls } = self;
        f(&*target);
        // Dropped before the call ends. The registration waits for the end and drops the last
        // reference in process context: memory of a target may not be freeable in an interrupt.
        drop(target);
        calls.put();
    }
}

struct Entry {
    generation: u32,
    /// Index of the next free entry, if this entry is free.
    next: u32,
    registered: Option<RegisteredTarget>,
}

struct Entries {
    chunks: KVec<KVec<Entry>>,
    /// List of free entries. The entry that was freed first is reused first, so that generations
    /// repeat as late as possible.
    head: u32,
    tail: u32,
}

impl Entry {
    /// Begins a call of the entry's target, if a target is registered.
    fn begin(&self) -> Option<RegisteredTarget> {
        self.registered.as_ref().map(RegisteredTarget::begin)
    }
}

impl Entries {
    fn get(&mut self, index: u32) -> Option<&mut Entry> {
        let index = usize::try_from(index).ok()?;
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }

    fn append_free(&mut self, index: u32) {
        match self.tail {
            NONE => self.head = index,
            tail => {
                if let Some(entry) = self.get(tail) {
                    entry.next = index;
                }
            }
        }
        self.tail = index;
    }

    fn take_free(&mut self) -> Option<u32> {
        let index = self.head;
        let next = replace(&mut self.get(index)?.next, NONE);
        self.head = next;
        if next == NONE {
            self.tail = NONE;
        }
        Some(index)
    }
}

/// The table of targets.
#[pin_data]
pub(crate) struct EventTargets {
    #[pin]
    entries: SpinLockIrq<Entries>,
}

impl EventTargets {
    /// A table for `max` targets besides the device itself.
    pub(crate) fn new(max: usize) -> Result<Arc<Self>> {
        let chunks = KVec::with_capacity((1 + max).div_ceil(CHUNK), GFP_KERNEL)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                entries <- new_spinlock_irq!(
                    Entries { chunks, head: NONE, tail: NONE },
                    "virtio_rdma::targets"
                ),
            }),
            GFP_KERNEL,
        )?;
        this.grow()?;
        // Entry 0 is the device's.
        let _ = this.entries.lock().take_free();
        Ok(this)
    }

    /// Adds a chunk of entries.
    fn grow(&self) -> Result {
        let mut chunk = KVec::with_capacity(CHUNK, GFP_KERNEL)?;
        for _ in 0..CHUNK {
            chunk.push_within_capacity(Entry {
                generation: Cookie::FIRST_GENERATION,
                next: NONE,
                registered: None,
            })?;
        }
        let mut entries = self.entries.lock();
        let first = u32::try_from(entries.chunks.len() * CHUNK)?;
        if entries.chunks.push_within_capacity(chunk).is_err() {
            return Err(ENOSPC);
        }
        for index in first..first + CHUNK as u32 {
            entries.append_free(index);
        }
        Ok(())
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
        let registered = RegisteredTarget::new(target)?;
        loop {
            let mut entries = self.entries.lock();
            if let Some(index) = entries.take_free() {
                let entry = entries.get(index).ok_or(EINVAL)?;
                entry.registered = Some(registered.clone());
                let generation = entry.generation;
                return Ok(EventRegistration {
                    targets: self.clone(),
                    index,
                    generation,
                    registered,
                });
            }
            drop(entries);
            self.grow()?;
        }
    }

    /// Registers `target` for the events of the device and its port.
    ///
    /// # Errors
    ///
    /// [`EBUSY`] if a target is registered already, [`ENOMEM`].
    pub(crate) fn register_device(
        self: &Arc<Self>,
        target: Arc<dyn EventTarget>,
    ) -> Result<EventRegistration> {
        let registered = RegisteredTarget::new(target)?;
        let mut entries = self.entries.lock();
        let Cookie { index, generation } = Cookie::DEVICE;
        let entry = entries.get(index).ok_or(EINVAL)?;
        if entry.registered.is_some() {
            return Err(EBUSY);
        }
        entry.generation = generation;
        entry.registered = Some(registered.clone());
        drop(entries);
        Ok(EventRegistration {
            targets: self.clone(),
            index,
            generation,
            registered,
        })
    }

    /// Calls `f` with the target of `cookie`, if it is still registered.
    pub(crate) fn with(&self, cookie: Cookie, f: impl FnOnce(&dyn EventTarget)) {
        let Cookie { index, generation } = cookie;
        let mut entries = self.entries.lock();
        let registered = match entries.get(index) {
            Some(entry) if entry.generation == generation => entry.begin(),
            _ => None,
        };
        drop(entries);
        if let Some(registered) = registered {
            registered.call(f);
        }
    }

    /// Tells every target that the device has stopped.
    pub(crate) fn stopped(&self) {
        let mut index = 0;
        loop {
            let mut entries = self.entries.lock();
            let Some(entry) = entries.get(index) else {
                return;
            };
            let registered = entry.begin();
            drop(entries);
            if let Some(registered) = registered {
                registered.call(|target| target.stopped());
            }
            index += 1;
        }
    }
}

/// The registration of a target.
///
/// Dropping it may sleep. Afterwards no call of the target runs or begins.
pub(crate) struct EventRegistration {
    targets: Arc<EventTargets>,
    index: u32,
    generation: u32,
    registered: RegisteredTarget,
}

impl EventRegistration {
    /// The cookie that the device puts into events for this target.
    pub(crate) fn cookie(&self) -> u64 {
        let Self {
            index, generation, ..
        } = *self;
        Cookie { index, generation }.value()
    }
}

impl Drop for EventRegistration {
    fn drop(&mut self) {
        let mut entries = self.targets.entries.lock();
        let removed = entries.get(self.index).and_then(|entry| {
            if self.index != 0 {
                // The generation of entry 0 does not change, since this entry is always the
                // device's.
                entry.generation = Cookie::next_generation(entry.generation);
            }
            entry.registered.take()
        });
        if self.index != 0 {
            entries.append_free(self.index);
        }
        drop(entries);
        drop(removed);
        let calls = &self.registered.calls;
        calls.put();
        calls.unused.wait_for_completion();
    }
}
