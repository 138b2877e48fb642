// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Bounded queues of frames between threads.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use roce::Frame;

/// A queue of frames. Its lock is taken once for all frames that are added or taken together. Its
/// memory grows with the number of frames.
#[derive(Debug, Default)]
pub(crate) struct FrameQueue {
    waiting: Mutex<Waiting>,
    /// Number of frames, which is read without the lock.
    len: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    /// Whether the receiver takes no more frames.
    is_closed: bool,
}

impl FrameQueue {
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are no frames. This takes the lock: whoever adds frames after this call sees
    /// what this thread did before it.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().frames.is_empty()
    }

    /// Adds frames in order while the queue is open and has fewer than `limit`. Leaves the others
    /// in `frames`. Returns the number of frames added.
    pub(crate) fn push(&self, limit: usize, frames: &mut impl Iterator<Item = Frame>) -> usize {
        let Waiting {
            frames: queue,
            is_closed,
        } = &mut *self.waiting.lock();
        let before = queue.len();
        let limit = if *is_closed { 0 } else { limit };
        queue.extend(frames.take(limit.saturating_sub(before)));
        self.len.store(queue.len(), Ordering::Relaxed);
        queue.len() - before
    }

    /// Takes frames in order, at most `most`, and adds them to `into`.
    pub(crate) fn pop(&self, most: usize, into: &mut impl Extend<Frame>) {
        let queue = &mut self.waiting.lock().frames;
        let count = most.min(queue.len());
        into.extend(queue.drain(..count));
        self.len.store(queue.len(), Ordering::Relaxed);
    }

    /// Closes the queue: drops its frames and accepts no others. Their buffers return to the
    /// senders, which may wait for them.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        let frames = mem::take(&mut waiting.frames);
        self.len.store(0, Ordering::Relaxed);
        drop(waiting);
        drop(frames);
    }
}

#[cfg(test)]
mod tests {
    use roce::FramePool;

    use super::*;

    #[test]
    fn frames_keep_their_order_and_surplus_ones_stay() {
        let pool = FramePool::new(10);
        let queue = FrameQueue::default();
        const LIMIT: usize = 4;
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
        assert_eq!(queue.push(LIMIT, &mut frames(&[1, 2, 3])), 3);
        let mut more = frames(&[4, 5, 6]);
        assert_eq!((queue.push(LIMIT, &mut more), more.len()), (1, 2));
        assert_eq!(queue.push(LIMIT, &mut more), 0);
        assert_eq!((taken(3), queue.len()), (vec![1, 2, 3], 1));
        assert_eq!((queue.push(LIMIT, &mut more), more.len()), (2, 0));
        assert_eq!((taken(9), queue.len()), (vec![4, 5, 6], 0));
        assert_eq!(queue.push(LIMIT, &mut frames(&[7])), 1);
        queue.close();
        let mut late = frames(&[8]);
        assert_eq!((queue.push(LIMIT, &mut late), late.len()), (0, 1));
        assert_eq!((taken(9), queue.len()), (vec![], 0));
        drop(late);
        assert_eq!(pool.in_use(), 0);
    }
}
