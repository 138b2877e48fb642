// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Received frames that a turn leaves for the next one.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use roce::frame::Frames;

/// Frames that a turn took from the frame port without budget to process them. The next turn begins
/// with these frames.
#[derive(Debug, Default)]
pub(crate) struct Leftover {
    /// Whether `frames` is not empty. Most turns leave no frames, and then the lock is not taken.
    any: AtomicBool,
    frames: Mutex<Frames>,
}

impl Leftover {
    /// Stores `frames` for the next turn. Returns whether there are any.
    pub(super) fn put(&self, frames: Frames) -> bool {
        let any = !frames.is_empty();
        if any {
            *self.frames.lock() = frames;
            self.any.store(true, Ordering::Release);
        }
        any
    }

    /// Takes the frames that the last turn left.
    pub(super) fn take(&self) -> Frames {
        if self.any.load(Ordering::Acquire) {
            self.any.store(false, Ordering::Relaxed);
            return mem::take(&mut *self.frames.lock());
        }
        Frames::new()
    }
}
