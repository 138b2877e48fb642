// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frame buffers and the pool they return to.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

/// Largest Ethernet frame without FCS: a jumbo payload of 9216 bytes, the header and one VLAN tag.
pub const MAX_FRAME: usize = 9216 + 14 + 4;

#[derive(Debug)]
struct Shared {
    free: ArrayQueue<Box<[u8]>>,
    /// Buffers that exist, free or in use; at most the capacity of `free`.
    allocated: AtomicUsize,
}

/// A bounded pool of frame buffers. Clones share the buffers.
///
/// Buffers are allocated on first use, so a pool costs what was once needed at the same time.
#[derive(Clone, Debug)]
pub struct FramePool(Arc<Shared>);

impl FramePool {
    /// A pool of at most `frames` buffers of [`MAX_FRAME`] bytes.
    pub fn new(frames: usize) -> Self {
        Self(Arc::new(Shared {
            free: ArrayQueue::new(frames.max(1)),
            allocated: AtomicUsize::new(0),
        }))
    }

    /// A frame of `len` bytes of unspecified content; `None` if all buffers are in use or `len` exceeds [`MAX_FRAME`].
    pub fn take(&self, len: usize) -> Option<Frame> {
        if len > MAX_FRAME {
            return None;
        }
        let shared = &self.0;
        let bytes = shared.free.pop().or_else(|| {
            shared
                .allocated
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                    (n < shared.free.capacity()).then_some(n + 1)
                })
                .ok()
                .map(|_| vec![0; MAX_FRAME].into_boxed_slice())
        })?;
        Some(Frame {
            bytes,
            len,
            pool: Arc::clone(shared),
        })
    }

    /// Whether [`take`](Self::take) would find a buffer now.
    pub fn has_free(&self) -> bool {
        !self.0.free.is_empty() || self.0.allocated.load(Ordering::Relaxed) < self.0.free.capacity()
    }
}

/// One Ethernet frame, owned. Its buffer goes back to its pool when it is dropped.
pub struct Frame {
    bytes: Box<[u8]>,
    len: usize,
    pool: Arc<Shared>,
}

impl Frame {
    /// Shortens the frame to `len` bytes; no effect if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for Frame {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // Never full: `allocated` bounds the buffers. Were it, the buffer would be freed.
        let _ = self.pool.free.push(std::mem::take(&mut self.bytes));
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_reused() {
        let pool = FramePool::new(2);
        let first = pool.take(60).unwrap();
        let second = pool.take(MAX_FRAME).unwrap();
        assert_eq!((first.len(), second.len()), (60, MAX_FRAME));
        assert!(!pool.has_free());
        assert!(pool.take(1).is_none());
        drop(first);
        assert!(pool.has_free());
        assert!(pool.take(MAX_FRAME + 1).is_none());
        let mut third = pool.take(100).unwrap();
        third.truncate(20);
        third.truncate(50);
        assert_eq!(third.len(), 20);
        assert!(pool.take(1).is_none());
    }
}
