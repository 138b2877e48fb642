// SPDX-License-Identifier: GPL-2.0

//! Completions that can be waited for with a timeout and used again.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use crate::bindings;
use kernel::{
    prelude::*,
    time::{
        msecs_to_jiffies,
        Msecs, //
    },
    types::Opaque, //
};

/// A completion: one task waits for another task or for an interrupt.
///
/// # Examples
///
/// ```
/// use crate::sync::timed_completion::TimedCompletion;
///
/// let done = KBox::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
/// assert!(!done.wait_timeout(0));
/// done.complete();
/// assert!(done.wait_timeout(1000));
/// # Ok::<(), Error>(())
/// ```
#[pin_data]
pub struct TimedCompletion {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` may be used from any task.
unsafe impl Send for TimedCompletion {}

// SAFETY: A `struct completion` has a lock of its own.
unsafe impl Sync for TimedCompletion {}

impl TimedCompletion {
    /// A completion that is not completed yet.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` is valid for writes and pinned.
                unsafe { bindings::init_completion(slot) };
            }),
        })
    }

    /// Wakes one waiter, or lets the next wait return at once. Can be called in any context.
    pub fn complete(&self) {
        // SAFETY: The completion is initialized.
        unsafe { bindings::complete(self.inner.get()) };
    }

    /// Cancels all completions for which no task has waited yet.
    ///
    /// Waits that run concurrently may or may not consume them.
    pub fn reinit(&self) {
        // SAFETY: The completion is initialized.
        while unsafe { bindings::try_wait_for_completion(self.inner.get()) } {}
    }

    /// Waits, uninterruptibly, for the completion. Returns `false` if the time is over first.
    pub fn wait_timeout(&self, timeout: Msecs) -> bool {
        // SAFETY: The completion is initialized.
        unsafe {
            bindings::wait_for_completion_timeout(self.inner.get(), msecs_to_jiffies(timeout)) != 0
        }
    }
}
