// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The pool of frame buffers.

use std::fmt;
use std::mem;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::{Frame, Frames, MAX_FRAME};

/// Lengths of buffers in bytes. Acknowledgements and short messages use short buffers.
const LENGTHS: [usize; 2] = [512, MAX_FRAME];
/// Maximum number of long buffers that a pool keeps when no frame is in use. One connection has
/// fewer packets in flight.
const KEPT: usize = 256;

/// A bounded pool of frame buffers. Clones share the buffers.
///
/// Buffers are allocated on first use. When no frame is in use, the pool frees the long buffers
/// that exceed the need of one connection.
#[derive(Clone)]
pub struct FramePool(Arc<PoolHandle>);

/// The part of a [`FramePool`] that its clones share. Free buffers hold references to their pool,
/// so that a frame takes one over instead of counting it. The handle breaks this cycle when it is
/// dropped.
struct PoolHandle(Arc<Pool>);

/// The part of a pool to which its frames refer.
pub(super) struct Pool {
    capacity: usize,
    /// Whether packets in frames of this pool are built without an ICRC.
    pub(super) offloads_icrc: bool,
    buffers: Mutex<Buffers>,
    notify: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A buffer and its pool.
pub(super) struct Buffer {
    pub(super) bytes: Box<[u8]>,
    pub(super) pool: Arc<Pool>,
}

#[derive(Default)]
struct Buffers {
    /// Free buffers of each [length](LENGTHS). The last returned buffer is reused first, because it
    /// is likely to be in a cache.
    free: [Vec<Buffer>; LENGTHS.len()],
    /// Number of buffers, free or in use; at most the capacity.
    allocated: usize,
    /// Whether somebody who got no frame has to be told when a buffer is returned.
    starved: bool,
    /// Whether the handle was dropped. Then no buffer is kept.
    is_closed: bool,
}

/// Why there is no buffer for a frame.
enum Lack {
    /// The caller must allocate one of this length in bytes.
    Unallocated(usize),
    /// All buffers are in use.
    Exhausted,
}

/// The index in [`LENGTHS`] of the buffers for frames of `len` bytes.
fn class(len: usize) -> usize {
    usize::from(len > LENGTHS[0])
}

/// Whether a pool would choose the buffer `bytes` for a frame of `len` bytes.
pub(super) fn suits(bytes: &[u8], len: usize) -> bool {
    class(bytes.len()) == class(len) && len <= bytes.len()
}

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
        Self(Arc::new(PoolHandle(Arc::new(Pool {
            capacity: frames,
            offloads_icrc,
            buffers: Mutex::default(),
            notify: OnceLock::new(),
        }))))
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.0 .0
    }

    /// Maximum total size of the pool's buffers in bytes.
    pub fn memory(&self) -> usize {
        self.pool().capacity * MAX_FRAME
    }

    /// Number of frames in use.
    pub fn in_use(&self) -> usize {
        let buffers = self.pool().buffers.lock();
        let free: usize = buffers.free.iter().map(Vec::len).sum();
        buffers.allocated - free
    }

    /// Sets `notify`. If [`take`](Self::take) or [`take_many`](Self::take_many) has found no
    /// buffer, the thread that returns the next buffer calls `notify`. Later calls of `on_free`
    /// have no effect.
    pub fn on_free(&self, notify: impl Fn() + Send + Sync + 'static) {
        let _ = self.pool().notify.set(Box::new(notify));
    }

    /// A frame of `len` bytes with unspecified content; `None` if all buffers are in use or `len`
    /// exceeds [`MAX_FRAME`].
    pub fn take(&self, len: usize) -> Option<Frame> {
        self.pool().take(len)
    }

    /// Adds frames of these `lengths` in bytes to `frames`, each as [`take`](Self::take) returns
    /// it: up to the first one that `take` would refuse, and as many as there is room for. The
    /// pool is locked while `lengths` is read: it must not drop a frame.
    pub fn take_many(&self, lengths: impl IntoIterator<Item = usize>, frames: &mut Frames) {
        let pool = self.pool();
        let mut lengths = lengths.into_iter().take_while(|len| *len <= MAX_FRAME);
        let before = frames.len();
        while let Some((lack, len)) = pool.take_free(&mut lengths, frames, before) {
            let Some(frame) = pool.allocate(lack, len) else {
                break;
            };
            frames.push(frame);
        }
    }

    /// A copy of a frame with its marks: whether it is routed, and whether it lacks an ICRC. `None`
    /// if no buffer is free.
    pub fn copy_of(&self, frame: &Frame) -> Option<Frame> {
        self.pool().copy_of(frame)
    }
}

impl Pool {
    fn take(self: &Arc<Self>, len: usize) -> Option<Frame> {
        if len > MAX_FRAME {
            return None;
        }
        let mut buffers = self.buffers.lock();
        let taken = buffers.take(self.capacity, len);
        buffers.starved |= matches!(taken, Err(Lack::Exhausted));
        drop(buffers);
        match taken {
            Ok(buffer) => Some(Frame::new(buffer, len)),
            Err(lack) => self.allocate(lack, len),
        }
    }

    /// Adds frames of these lengths to `frames`, which had `before` frames before its owner asked
    /// for more, until it is full or a buffer is lacking. Then returns why, and the length of the
    /// frame.
    fn take_free(
        &self,
        lengths: &mut impl Iterator<Item = usize>,
        frames: &mut Frames,
        before: usize,
    ) -> Option<(Lack, usize)> {
        let mut buffers = self.buffers.lock();
        while !frames.is_full() {
            let len = lengths.next()?;
            match buffers.take(self.capacity, len) {
                Ok(buffer) => frames.push(Frame::new(buffer, len)),
                Err(lack) => {
                    // A caller that got some of the frames need not be told: it goes on with them.
                    buffers.starved |= matches!(lack, Lack::Exhausted) && frames.len() == before;
                    return Some((lack, len));
                }
            }
        }
        None
    }

    /// A frame of `len` bytes in a new buffer, if the lack is that it was never allocated.
    fn allocate(self: &Arc<Self>, lack: Lack, len: usize) -> Option<Frame> {
        let Lack::Unallocated(length) = lack else {
            return None;
        };
        let buffer = Buffer {
            bytes: vec![0; length].into_boxed_slice(),
            pool: Arc::clone(self),
        };
        Some(Frame::new(buffer, len))
    }

    pub(super) fn copy_of(self: &Arc<Self>, frame: &Frame) -> Option<Frame> {
        let mut copy = self.take(frame.len)?;
        copy.copy_from_slice(frame);
        copy.is_routed = frame.is_routed;
        copy.lacks_icrc = frame.lacks_icrc;
        Some(copy)
    }
}

/// Drops the first `count` of `frames`, and returns buffers of one pool together.
pub fn discard(frames: &mut Frames, count: usize) {
    release(&mut frames[..count]);
    frames.drain(..count);
}

/// Returns the buffers of frames that the caller drops next, those of one pool together. The frames
/// are empty afterwards.
pub fn release(frames: &mut [Frame]) {
    let mut frames = frames.iter_mut().peekable();
    while let Some(first) = frames.next() {
        let Some(first) = first.take_buffer() else {
            continue;
        };
        let pool = Arc::clone(&first.pool);
        let mut buffers = pool.buffers.lock();
        buffers.give_back(first);
        let is_next = |frame: &&mut Frame| {
            frame
                .pool
                .as_ref()
                .is_some_and(|other| Arc::ptr_eq(other, &pool))
        };
        while let Some(buffer) = frames.next_if(is_next).and_then(Frame::take_buffer) {
            buffers.give_back(buffer);
        }
        let surplus = buffers.surplus();
        let starved = mem::take(&mut buffers.starved);
        drop(buffers);
        drop(surplus);
        if let Some(notify) = pool.notify.get().filter(|_| starved) {
            notify();
        }
    }
}

impl Buffers {
    /// Takes a free buffer for `len` bytes from a pool of this capacity.
    fn take(&mut self, capacity: usize, len: usize) -> Result<Buffer, Lack> {
        let fits = class(len);
        if let Some(buffer) = self.free[fits].pop() {
            return Ok(buffer);
        }
        if self.allocated < capacity {
            self.allocated += 1;
            return Err(Lack::Unallocated(LENGTHS[fits]));
        }
        match self.free[1 - fits].pop() {
            Some(buffer) if buffer.bytes.len() >= len => Ok(buffer),
            // The free buffer is too short: a long one replaces it.
            Some(_) => Err(Lack::Unallocated(LENGTHS[fits])),
            None => Err(Lack::Exhausted),
        }
    }

    fn give_back(&mut self, buffer: Buffer) {
        self.free[class(buffer.bytes.len())].push(buffer);
    }

    /// Removes the free buffers that are not kept. The caller must drop them without the lock.
    fn surplus(&mut self) -> Vec<Buffer> {
        let [short, long] = &mut self.free;
        let mut surplus = Vec::new();
        if self.is_closed {
            surplus.append(short);
            surplus.append(long);
        } else if long.len() > KEPT && short.len() + long.len() == self.allocated {
            surplus = long.split_off(KEPT);
        }
        self.allocated -= surplus.len();
        surplus
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        let mut buffers = self.0.buffers.lock();
        buffers.is_closed = true;
        let surplus = buffers.surplus();
        drop(buffers);
        drop(surplus);
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FramePool({} buffers)", self.pool().capacity)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::frame::FRAMES_AT_ONCE;

    /// The number of times that `pool` tells of a free buffer from now on.
    fn notifications(pool: &FramePool) -> Arc<AtomicUsize> {
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        pool.on_free(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        told
    }

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
        let buffers = pool.pool().buffers.lock();
        let used = used.iter().map(|frame| frame.bytes.len());
        let free = buffers
            .free
            .iter()
            .flatten()
            .map(|buffer| buffer.bytes.len());
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
        let told = notifications(&pool);
        drop(pool.take(1));
        assert_eq!(told.load(Ordering::Relaxed), 0, "nobody waits");
        let frame = pool.take(1);
        assert!(pool.take(1).is_none());
        drop(frame);
        assert_eq!(told.load(Ordering::Relaxed), 1);
        drop(pool.take(1));
        assert_eq!(told.load(Ordering::Relaxed), 1, "once");
    }

    #[test]
    fn many_frames_are_taken_as_single_ones_are() {
        let pool = FramePool::new(FRAMES_AT_ONCE + 2);
        let lengths = |frames: &Frames| Vec::from_iter(frames.iter().map(|frame| frame.len()));
        let take_many = |lengths: &[usize]| {
            let mut frames = Frames::new();
            pool.take_many(lengths.iter().copied(), &mut frames);
            frames
        };
        let mut first = Frames::new();
        pool.take_many(1.., &mut first);
        assert_eq!(lengths(&first), Vec::from_iter(1..=FRAMES_AT_ONCE));
        let rest = take_many(&[MAX_FRAME, 7, 8]);
        assert_eq!(lengths(&rest), [MAX_FRAME, 7], "two buffers are left");
        assert!(take_many(&[1]).is_empty());
        drop(rest);
        let one = take_many(&[9, MAX_FRAME + 1, 9]);
        assert_eq!(lengths(&one), [9], "no buffer is so long");
        drop((first, one));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn frames_are_released_into_their_pools() {
        let pools = [FramePool::new(3), FramePool::new(3)];
        let told = pools.each_ref().map(notifications);
        let mut frames: Vec<Frame> = { [0, 0, 1, 0, 1, 1].iter() }
            .map(|of| pools[*of].take(1).unwrap())
            .collect();
        let mut none = Frames::new();
        pools[0].take_many([1], &mut none);
        assert!(none.is_empty());
        release(&mut frames[..2]);
        assert_eq!(told[0].load(Ordering::Relaxed), 1, "it was refused once");
        assert_eq!(pools.each_ref().map(FramePool::in_use), [1, 3]);
        release(&mut frames);
        assert!(frames.iter().all(|frame| frame.is_empty()));
        drop(frames);
        assert_eq!(pools.each_ref().map(FramePool::in_use), [0, 0]);
        assert_eq!(told[0].load(Ordering::Relaxed), 1);
        assert_eq!(told[1].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_got_some_of_the_frames_is_not_told() {
        let pool = FramePool::new(2);
        let told = notifications(&pool);
        let mut frames = Frames::new();
        pool.take_many([1; 3], &mut frames);
        assert_eq!(frames.len(), 2);
        frames.pop();
        assert_eq!(told.load(Ordering::Relaxed), 0);
        // The frames that were there before do not count.
        frames.extend(pool.take(1));
        pool.take_many([1], &mut frames);
        discard(&mut frames, 1);
        assert_eq!((frames.len(), told.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn a_frame_keeps_a_buffer_that_suits_its_length() {
        let pool = FramePool::new(2);
        let mut short = pool.take(1).unwrap();
        let mut long = pool.take(MAX_FRAME).unwrap();
        assert!(short.resize(LENGTHS[0]) && !short.resize(LENGTHS[0] + 1));
        assert!(long.resize(LENGTHS[0] + 1) && !long.resize(LENGTHS[0]));
        assert!(!long.resize(MAX_FRAME + 1));
        assert_eq!((short.len(), long.len()), (LENGTHS[0], LENGTHS[0] + 1));
    }

    #[test]
    fn buffers_end_with_their_pool() {
        let pool = FramePool::new(3);
        let shared = Arc::downgrade(pool.pool());
        let mut frames = Frames::new();
        pool.take_many([1, MAX_FRAME, MAX_FRAME], &mut frames);
        frames.truncate(2);
        frames[1].fill(7);
        drop(pool);
        assert_eq!(frames[1][..], [7; MAX_FRAME], "still in use");
        let copy = frames[1].duplicate().unwrap();
        drop((frames, copy));
        assert!(shared.upgrade().is_none(), "nothing refers to the pool");
    }
}
