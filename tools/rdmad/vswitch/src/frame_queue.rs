// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Bounded queues of frames between threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use roce::Frame;

/// A bounded queue of frames. Its lock is taken once for all frames that are added or taken
/// together. Its memory grows with the number of frames.
#[derive(Debug)]
pub(crate) struct FrameQueue {
    limit: usize,
    frames: Mutex<VecDeque<Frame>>,
    /// Number of frames, which is read without the lock.
    len: AtomicUsize,
}

impl FrameQueue {
    /// An empty queue of at most `limit` frames.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            frames: Mutex::default(),
            len: AtomicUsize::new(0),
        }
    }

    /// Number of frames.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are no frames. This takes the lock: whoever adds frames after this call sees
    /// what this thread did before it.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.lock().is_empty()
    }

    /// Adds frames in order, as far as there is room. Leaves the others in `frames`. Returns the
    /// number of frames added.
    pub(crate) fn push(&self, frames: &mut impl Iterator<Item = Frame>) -> usize {
        let mut queue = self.frames.lock();
        let before = queue.len();
        queue.extend(frames.take(self.limit - before));
        self.len.store(queue.len(), Ordering::Relaxed);
        queue.len() - before
    }

    /// Takes frames in order, at most `most`, and adds them to `into`.
    pub(crate) fn pop(&self, most: usize, into: &mut impl Extend<Frame>) {
        let mut queue = self.frames.lock();
        let count = most.min(queue.len());
        into.extend(queue.drain(..count));
        self.len.store(queue.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use roce::FramePool;

    use super::*;

    #[test]
    fn frames_keep_their_order_and_surplus_ones_stay() {
        let pool = FramePool::new(10);
        let queue = FrameQueue::new(4);
        let frames = |lengths: &[usize]| {
            let frames: Option<Vec<Frame>> = lengths.iter().map(|len| pool.take(*len)).collect();
            frames.unwrap().into_iter()
        };
        let taken = |most| {
            let mut into = Vec::new();
            queue.pop(most, &mut into);
            Vec::from_iter(into.iter().map(|frame| frame.len()))
        };
        assert_eq!(taken(9), []);
        assert_eq!(queue.push(&mut frames(&[1, 2, 3])), 3);
        let mut more = frames(&[4, 5, 6]);
        assert_eq!((queue.push(&mut more), more.len()), (1, 2));
        assert_eq!(queue.push(&mut more), 0);
        assert_eq!((taken(3), queue.len()), (vec![1, 2, 3], 1));
        assert_eq!((queue.push(&mut more), more.len()), (2, 0));
        assert_eq!((taken(9), queue.len()), (vec![4, 5, 6], 0));
        assert_eq!(pool.in_use(), 0);
    }
}
