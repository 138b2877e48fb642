// SPDX-License-Identifier: GPL-2.0

//! Slots for objects that are called while another task may remove them.

use super::timed_completion::TimedCompletion;
use core::cell::UnsafeCell;
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed,
        Release, //
    },
    time::Msecs, //
};

/// The slot has no value.
const VACANT: u64 = 0;

/// A value is being inserted or removed.
const CHANGING: u64 = 1;

/// The state of a slot that has a value with this key.
fn occupied(key: u32) -> u64 {
    u64::from(key) + 2
}

/// Interval in ms at which a task that removes a value looks again for calls. The last call wakes
/// the task earlier.
const LOOK_MS: Msecs = 1_000;

/// A place for a value that can be called in any context. The removal waits until no call runs.
///
/// A call takes no lock and writes only to the slot, which has its cache lines for itself. So calls
/// of values in different slots do not disturb each other, and a removal waits only for calls of
/// its own slot, not for a grace period.
///
/// # Examples
///
/// ```
/// use crate::sync::call_slot::CallSlot;
///
/// let slot = KBox::pin_init(CallSlot::new(), GFP_KERNEL)?;
/// assert!(slot.insert(7, "seven").is_ok());
/// slot.call(7, |value| assert_eq!(*value, "seven"));
/// slot.call(8, |_| panic!("the key of an earlier or later value"));
/// assert_eq!(slot.remove(7), Some("seven"));
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// - `value` is written only by the task that has set `state` to `CHANGING`. If the state was
///   `occupied` before, the task writes only after `calls` was 0 since then.
/// - `value` is read only by calls, between an increment and a decrement of `calls`, if the state
///   was `occupied` after the increment.
#[pin_data]
#[repr(align(64))]
pub struct CallSlot<T> {
    /// [`VACANT`], [`CHANGING`] or [`occupied`].
    state: Atomic<u64>,
    /// Number of running calls, and of calls that look whether the value is still there.
    calls: Atomic<i32>,
    value: UnsafeCell<Option<T>>,
    /// Completed by the last call if a removal may wait.
    #[pin]
    idle: TimedCompletion,
}

// SAFETY: The slot owns the value.
unsafe impl<T: Send> Send for CallSlot<T> {}

// SAFETY: Values are shared by calls, and inserted and removed by any thread.
unsafe impl<T: Send + Sync> Sync for CallSlot<T> {}

impl<T> CallSlot<T> {
    /// A slot without a value.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state: Atomic::new(VACANT),
            calls: Atomic::new(0),
            value: UnsafeCell::new(None),
            idle <- TimedCompletion::new(),
        })
    }

    /// Inserts a value.
    ///
    /// # Errors
    ///
    /// Returns `value` if the slot has a value.
    pub fn insert(&self, key: u32, value: T) -> Result<(), T> {
        if self.state.cmpxchg(VACANT, CHANGING, Full).is_err() {
            return Err(value);
        }
        // SAFETY: By the type invariants nothing else writes the value, and no call reads it: calls
        // of the earlier value have ended before its removal did.
        unsafe { *self.value.get() = Some(value) };
        self.state.store(occupied(key), Release);
        Ok(())
    }

    /// Calls `f` with the value, if the slot has a value with this key. Can be called in any
    /// context in which `f` can be called.
    #[inline]
    pub fn call(&self, key: u32, f: impl FnOnce(&T)) {
        self.call_if(|state| state == occupied(key), f);
    }

    /// Calls `f` with the value, if there is one, whatever its key is.
    pub fn call_any(&self, f: impl FnOnce(&T)) {
        self.call_if(|state| state != VACANT && state != CHANGING, f);
    }

    #[inline]
    fn call_if(&self, is_wanted: impl Fn(u64) -> bool, f: impl FnOnce(&T)) {
        // Calls that find nothing are not counted, so they can't delay a removal indefinitely.
        if !is_wanted(self.state.load(Relaxed)) {
            return;
        }
        // Full, before the state is read: a removal first changes the state, then reads the number
        // of calls. So either the removal waits for this call, or this call sees the change.
        self.calls.fetch_add(1, Full);
        if is_wanted(self.state.load(Acquire)) {
            // SAFETY: By the type invariants nothing writes the value until `calls` is decremented.
            if let Some(value) = unsafe { &*self.value.get() } {
                f(value);
            }
        }
        // Full, for the same reason: the removal sees the decrement, or this call sees the state.
        if self.calls.fetch_sub(1, Full) == 1 && self.state.load(Relaxed) == CHANGING {
            self.idle.complete();
        }
    }

    /// Removes and returns the value with this key; `None` if the slot has no such value.
    /// Afterwards no call of the value runs or begins. May sleep, and must not be called by a call
    /// of the value.
    pub fn remove(&self, key: u32) -> Option<T> {
        self.state.cmpxchg(occupied(key), CHANGING, Full).ok()?;
        while self.calls.fetch_add(0, Full) != 0 {
            self.idle.wait_timeout(LOOK_MS);
        }
        // SAFETY: By the type invariants: `calls` was 0 while the state is `CHANGING`.
        let value = unsafe { (*self.value.get()).take() };
        self.state.store(VACANT, Release);
        value
    }
}
