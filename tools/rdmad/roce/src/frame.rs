// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frame buffers and the pool they return to.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// Largest Ethernet frame without FCS: a jumbo payload of 9216 bytes, the header and one VLAN tag.
pub const MAX_FRAME: usize = 9216 + 14 + 4;

struct Shared {
    capacity: usize,
    buffers: Mutex<Buffers>,
    notify: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Buffers {
    /// What was given back last is given out first: a cache is likely to have it.
    free: Vec<Box<[u8]>>,
    /// Buffers that exist, free or in use; at most the capacity.
    allocated: usize,
    /// Somebody was refused a buffer since one was last given back.
    starved: bool,
}

/// A bounded pool of frame buffers. Clones share the buffers.
///
/// Buffers are allocated on first use, so a pool costs what was once needed at the same time.
#[derive(Clone)]
pub struct FramePool(Arc<Shared>);

impl FramePool {
    /// A pool of at most `frames` buffers of [`MAX_FRAME`] bytes.
    pub fn new(frames: usize) -> Self {
        Self(Arc::new(Shared {
            capacity: frames,
            buffers: Mutex::default(),
            notify: OnceLock::new(),
        }))
    }

    /// Bytes of its buffers at most.
    pub fn memory(&self) -> usize {
        self.0.capacity * MAX_FRAME
    }

    /// Has `notify` called when a buffer comes back after [`take`](Self::take) found none, from the thread that gives it
    /// back. Only the first call counts.
    pub fn on_free(&self, notify: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.notify.set(Box::new(notify));
    }

    /// A frame of `len` bytes of unspecified content; `None` if all buffers are in use or `len` exceeds [`MAX_FRAME`].
    pub fn take(&self, len: usize) -> Option<Frame> {
        if len > MAX_FRAME {
            return None;
        }
        let shared = &self.0;
        let bytes = {
            let mut buffers = shared.buffers.lock();
            match buffers.free.pop() {
                Some(bytes) => bytes,
                None if buffers.allocated < shared.capacity => {
                    buffers.allocated += 1;
                    drop(buffers);
                    vec![0; MAX_FRAME].into_boxed_slice()
                }
                None => {
                    buffers.starved = true;
                    return None;
                }
            }
        };
        Some(Frame {
            bytes,
            len,
            is_routed: false,
            pool: Arc::clone(shared),
        })
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FramePool({} buffers)", self.0.capacity)
    }
}

/// One Ethernet frame, owned. Its buffer goes back to its pool when it is dropped.
pub struct Frame {
    bytes: Box<[u8]>,
    len: usize,
    is_routed: bool,
    pool: Arc<Shared>,
}

impl Frame {
    /// Shortens the frame to `len` bytes; no effect if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Marks the frame as one that may have come through a router.
    pub fn set_routed(&mut self) {
        self.is_routed = true;
    }

    /// Whether the frame may have come through a router: its source MAC address is the router's
    /// then, and says nothing about the sender.
    pub fn is_routed(&self) -> bool {
        self.is_routed
    }

    /// A copy in a buffer of the same pool, if there is one.
    pub fn duplicate(&self) -> Option<Self> {
        let mut copy = FramePool(Arc::clone(&self.pool)).take(self.len)?;
        copy.copy_from_slice(self);
        copy.is_routed = self.is_routed;
        Some(copy)
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
        let starved = {
            let mut buffers = self.pool.buffers.lock();
            buffers.free.push(mem::take(&mut self.bytes));
            mem::take(&mut buffers.starved)
        };
        if let Some(notify) = self.pool.notify.get().filter(|_| starved) {
            notify();
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn bounded_and_reused() {
        let pool = FramePool::new(2);
        let first = pool.take(60).unwrap();
        let second = pool.take(MAX_FRAME).unwrap();
        assert_eq!((first.len(), second.len()), (60, MAX_FRAME));
        assert!(pool.take(1).is_none());
        drop(first);
        assert!(pool.take(MAX_FRAME + 1).is_none());
        let mut third = pool.take(100).unwrap();
        third.truncate(20);
        third.truncate(50);
        assert_eq!(third.len(), 20);
        assert!(third.duplicate().is_none());
        drop(second);
        third.fill(7);
        assert_eq!(third.duplicate().unwrap()[..], [7; 20]);
        third.set_routed();
        assert!(third.duplicate().unwrap().is_routed());
        drop(third);
        assert!(!pool.take(1).unwrap().is_routed());
    }

    #[test]
    fn who_was_refused_is_told() {
        let pool = FramePool::new(1);
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        pool.on_free(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        drop(pool.take(1));
        assert_eq!(told.load(Ordering::Relaxed), 0, "nobody waits");
        let frame = pool.take(1);
        assert!(pool.take(1).is_none());
        drop(frame);
        assert_eq!(told.load(Ordering::Relaxed), 1);
        drop(pool.take(1));
        assert_eq!(told.load(Ordering::Relaxed), 1, "once");
    }
}
