// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frames between two turns.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use parking_lot::Mutex;
use roce::Frame;

/// Frames that are looked at together: those for the same half of a QP that follow each other are
/// one run. Between the look at their ICRC and the copy of what they carry a second-level cache has
/// room for so many.
pub(super) const FRAMES_AT_ONCE: usize = 16;

/// Frames in the order in which they came.
pub(super) type Frames = ArrayVec<Frame, FRAMES_AT_ONCE>;

/// Frames that a turn took from the frame port and had no budget left for: the next turn begins
/// with them.
#[derive(Debug, Default)]
pub(crate) struct Leftover {
    /// Most turns leave none, and then nobody takes the lock.
    any: AtomicBool,
    frames: Mutex<Frames>,
}

impl Leftover {
    /// Keeps frames for the next turn, if there are any. Returns whether there are.
    pub(super) fn put(&self, frames: Frames) -> bool {
        let any = !frames.is_empty();
        if any {
            *self.frames.lock() = frames;
            self.any.store(true, Ordering::Release);
        }
        any
    }

    /// Takes what the last turn left.
    pub(super) fn take(&self) -> Frames {
        if self.any.load(Ordering::Acquire) {
            self.any.store(false, Ordering::Relaxed);
            return mem::take(&mut *self.frames.lock());
        }
        Frames::new()
    }
}
