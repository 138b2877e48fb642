// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frame buffers and their pool.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// Largest Ethernet frame without FCS: a jumbo payload of 9216 bytes, the header and one VLAN tag.
pub const MAX_FRAME: usize = 9216 + 14 + 4;

struct Pool {
    capacity: usize,
    /// Whether packets in frames of this pool are built without an ICRC.
    offloads_icrc: bool,
    buffers: Mutex<Buffers>,
    notify: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Lengths of buffers in bytes. Acknowledgements and short messages use short buffers.
const LENGTHS: [usize; 2] = [512, MAX_FRAME];
/// Maximum number of long buffers that a pool keeps when no frame is in use. One connection has
/// fewer packets in flight.
const KEPT: usize = 256;

#[derive(Default)]
struct Buffers {
    /// Free buffers of each [length](LENGTHS). The last returned buffer is reused first, because it
    /// is likely to be in a cache.
    free: [Vec<Box<[u8]>>; LENGTHS.len()],
    /// Number of buffers, free or in use; at most the capacity.
    allocated: usize,
    /// Whether [`FramePool::take`] has found no buffer since a buffer was last returned.
    starved: bool,
}

/// A bounded pool of frame buffers. Clones share the buffers.
///
/// Buffers are allocated on first use. When no frame is in use, the pool frees the long buffers
/// that exceed the need of one connection.
#[derive(Clone)]
pub struct FramePool(Arc<Pool>);

impl FramePool {
    /// A pool of at most `frames` buffers of [`MAX_FRAME`] bytes.
    pub fn new(frames: usize) -> Self {
        Self::with(frames, false)
    }

    /// Like [`new`](Self::new), but [`build_frame`] does not compute the ICRC of packets in frames
    /// of this pool. [`complete`] must compute it before a frame is captured, or sent where it may
    /// be damaged.
    ///
    /// [`build_frame`]: crate::packet::build_frame
    /// [`complete`]: crate::packet::complete
    pub fn with_icrc_offload(frames: usize) -> Self {
        Self::with(frames, true)
    }

    fn with(frames: usize, offloads_icrc: bool) -> Self {
        Self(Arc::new(Pool {
            capacity: frames,
            offloads_icrc,
            buffers: Mutex::default(),
            notify: OnceLock::new(),
        }))
    }

    /// Maximum total size of the pool's buffers in bytes.
    pub fn memory(&self) -> usize {
        self.0.capacity * MAX_FRAME
    }

    /// Number of frames in use.
    pub fn in_use(&self) -> usize {
        let buffers = self.0.buffers.lock();
        let free: usize = buffers.free.iter().map(Vec::len).sum();
        buffers.allocated - free
    }

    /// Sets `notify`. If [`take`](Self::take) has found no buffer, the thread that returns the next
    /// buffer calls `notify`. Later calls of `on_free` have no effect.
    pub fn on_free(&self, notify: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.notify.set(Box::new(notify));
    }

    /// A frame of `len` bytes with unspecified content; `None` if all buffers are in use or `len`
    /// exceeds [`MAX_FRAME`].
    pub fn take(&self, len: usize) -> Option<Frame> {
        if len > MAX_FRAME {
            return None;
        }
        let pool = &self.0;
        let bytes = {
            let mut buffers = pool.buffers.lock();
            match buffers.take(pool.capacity, len) {
                Ok(bytes) => bytes,
                Err(Some(length)) => {
                    drop(buffers);
                    vec![0; length].into_boxed_slice()
                }
                Err(None) => {
                    buffers.starved = true;
                    return None;
                }
            }
        };
        Some(Frame {
            bytes,
            len,
            is_routed: false,
            lacks_icrc: false,
            pool: Arc::clone(pool),
        })
    }

    /// A copy of a frame with its marks: whether it is routed, and whether it lacks an ICRC. `None`
    /// if no buffer is free.
    pub fn copy_of(&self, frame: &Frame) -> Option<Frame> {
        let mut copy = self.take(frame.len)?;
        copy.copy_from_slice(frame);
        copy.is_routed = frame.is_routed;
        copy.lacks_icrc = frame.lacks_icrc;
        Some(copy)
    }
}

impl Buffers {
    /// Takes a free buffer for `len` bytes. If no buffer is free, the error is the length in bytes
    /// of the buffer that the caller must allocate, or `None` if all `capacity` buffers are in use.
    fn take(&mut self, capacity: usize, len: usize) -> Result<Box<[u8]>, Option<usize>> {
        let fits = usize::from(len > LENGTHS[0]);
        if let Some(bytes) = self.free[fits].pop() {
            return Ok(bytes);
        }
        if self.allocated < capacity {
            self.allocated += 1;
            return Err(Some(LENGTHS[fits]));
        }
        match self.free[1 - fits].pop() {
            Some(bytes) if bytes.len() >= len => Ok(bytes),
            // The free buffer is too short: a long one replaces it.
            Some(_) => Err(Some(LENGTHS[fits])),
            None => Err(None),
        }
    }

    /// Returns a buffer to the pool. The result is the buffers that the caller must free.
    fn give_back(&mut self, bytes: Box<[u8]>) -> Vec<Box<[u8]>> {
        let [short, long] = &mut self.free;
        if bytes.len() == LENGTHS[0] {
            short.push(bytes);
        } else {
            long.push(bytes);
        }
        if short.len() + long.len() < self.allocated || long.len() <= KEPT {
            return Vec::new();
        }
        let surplus = long.split_off(KEPT);
        self.allocated -= surplus.len();
        surplus
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FramePool({} buffers)", self.0.capacity)
    }
}

/// An Ethernet frame. Its buffer returns to the pool when the frame is dropped.
pub struct Frame {
    bytes: Box<[u8]>,
    len: usize,
    is_routed: bool,
    lacks_icrc: bool,
    pool: Arc<Pool>,
}

impl Frame {
    /// Shortens the frame to `len` bytes. No effect if the frame is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Marks the frame as possibly forwarded by a router.
    pub fn set_routed(&mut self) {
        self.is_routed = true;
    }

    /// Whether the frame may have been forwarded by a router. Its source MAC address may then be
    /// that of the router, and does not identify the sender.
    pub fn is_routed(&self) -> bool {
        self.is_routed
    }

    /// Whether a packet in this frame is built without an ICRC.
    pub(crate) fn offloads_icrc(&self) -> bool {
        self.pool.offloads_icrc
    }

    /// Marks the frame as a valid packet whose ICRC was not computed yet, or removes the mark.
    pub fn set_lacks_icrc(&mut self, lacks: bool) {
        self.lacks_icrc = lacks;
    }

    /// Whether the frame is a valid packet whose ICRC was not computed yet: its last 4 bytes are
    /// not the ICRC.
    pub fn lacks_icrc(&self) -> bool {
        self.lacks_icrc
    }

    /// A copy of the frame in a buffer of the same pool; `None` if no buffer is free.
    pub fn duplicate(&self) -> Option<Self> {
        FramePool(Arc::clone(&self.pool)).copy_of(self)
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
        let (starved, surplus) = {
            let mut buffers = self.pool.buffers.lock();
            let surplus = buffers.give_back(mem::take(&mut self.bytes));
            (mem::take(&mut buffers.starved), surplus)
        };
        drop(surplus);
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
    fn the_longest_frame_is_a_tagged_jumbo_frame() {
        assert_eq!(MAX_FRAME, 9234);
    }

    #[test]
    fn bounded_and_reused() {
        let pool = FramePool::new(2);
        assert_eq!(pool.memory(), 2 * MAX_FRAME);
        let first = pool.take(60).unwrap();
        let second = pool.take(MAX_FRAME).unwrap();
        assert_eq!((first.len(), second.len()), (60, MAX_FRAME));
        assert!(pool.take(1).is_none());
        assert_eq!(pool.in_use(), 2);
        drop(first);
        assert_eq!(pool.in_use(), 1);
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
        third.set_lacks_icrc(true);
        let copy = third.duplicate().unwrap();
        assert!(copy.is_routed() && copy.lacks_icrc());
        drop((copy, third));
        let fresh = pool.take(1).unwrap();
        assert!(!fresh.is_routed() && !fresh.lacks_icrc());
    }

    #[test]
    fn a_jumbo_frame_may_have_a_tag() {
        let pool = FramePool::new(1);
        let (addresses, tag, kind) = (12, 4, 2);
        let frame = pool.take(addresses + tag + kind + 9216);
        assert!(frame.is_some());
        drop(frame);
        assert!(pool.take(addresses + tag + kind + 9217).is_none());
    }

    /// Total size in bytes of the free buffers of `pool` and of the buffers of `used`.
    fn allocated(pool: &FramePool, used: &[Frame]) -> usize {
        let buffers = pool.0.buffers.lock();
        let used = used.iter().map(|frame| frame.bytes.len());
        let free = buffers.free.iter().flatten().map(|bytes| bytes.len());
        let bytes: Vec<usize> = used.chain(free).collect();
        assert_eq!(bytes.len(), buffers.allocated);
        bytes.iter().sum()
    }

    #[test]
    fn short_frames_take_short_buffers() {
        let pool = FramePool::new(3);
        let mut frames: Vec<Frame> = (0..3).map(|_| pool.take(70).unwrap()).collect();
        assert_eq!(allocated(&pool, &frames), 3 * LENGTHS[0]);
        assert!(pool.take(70).is_none() && pool.take(MAX_FRAME).is_none());
        frames.truncate(1);
        // The pool has the maximum number of buffers, all short: a long one replaces one of them.
        frames.push(pool.take(LENGTHS[0] + 1).unwrap());
        assert_eq!(allocated(&pool, &frames), 2 * LENGTHS[0] + MAX_FRAME);
        frames.clear();
        // A short frame may use the long buffer.
        frames.extend((0..3).map(|_| pool.take(1).unwrap()));
        assert!(pool.take(1).is_none());
        assert_eq!(allocated(&pool, &frames), 2 * LENGTHS[0] + MAX_FRAME);
    }

    #[test]
    fn a_burst_is_not_kept() {
        let pool = FramePool::new(1000);
        let mut frames: Vec<Frame> = (0..1000).map(|_| pool.take(MAX_FRAME).unwrap()).collect();
        frames.truncate(1);
        assert_eq!(
            allocated(&pool, &frames),
            1000 * MAX_FRAME,
            "one is on its way"
        );
        frames.clear();
        assert_eq!(allocated(&pool, &frames), KEPT * MAX_FRAME);
        frames.extend((0..1000).map(|_| pool.take(MAX_FRAME).unwrap()));
        assert!(pool.take(1).is_none());
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
