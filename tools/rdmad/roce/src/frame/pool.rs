// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The pool of frame buffers.

use std::fmt;
use std::mem;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use virtio_rdma_abi::number::Number;

use super::{Frame, Frames, MAX_FRAME};

/// Lengths of buffers in bytes. Acknowledgements and short messages use short buffers.
const LENGTHS: [usize; 2] = [512, MAX_FRAME];
/// Number of free long buffers that a pool always keeps. One connection has fewer packets in
/// flight.
const KEPT: usize = 256;
/// Number of buffers that a lane may use even if its receiver is crowded. Every sender makes
/// progress with them, however many senders a receiver has.
const LEAST: usize = 16;

/// Buffers that [`FramePool::shed`] has yet to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surplus {
    /// More buffers must be freed at once.
    Rest,
    /// Buffers that are not used until the next call can be freed then.
    Candidates,
    /// The pool keeps its free buffers.
    None,
}

/// A bounded pool of frame buffers. Clones share the buffers.
///
/// Buffers are allocated on first use. [`shed`](Self::shed), which must be called periodically,
/// frees long buffers that were not used since its last call.
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
    on_surplus: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The frames of a pool that are on the way to one receiver, or to [many](Self::MANY).
///
/// A lane gets no more buffers while it uses as many as it leaves free, apart from [`LEAST`]. So
/// receivers that are slow at the same time share a part of the pool, and the rest is left for
/// other receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane(u16);

impl Number for Lane {
    fn new(value: u32) -> Self {
        Self(value as u16)
    }

    fn get(self) -> u32 {
        self.0.into()
    }
}

impl Lane {
    /// The lane of frames to many receivers. It may use three times as many buffers as it leaves
    /// free, since one receiver that does not read must not block the others.
    pub const MANY: Self = Self(0);

    /// The lane with this index.
    pub const fn new(index: u16) -> Self {
        Self(index)
    }

    /// The index of the lane.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The use of a pool by one [`Lane`].
#[derive(Clone, Copy, Debug, Default)]
struct LaneUse {
    /// Number of buffers in use.
    used: usize,
    /// Number of buffers ever taken, except those that returned unsent.
    taken: u64,
    /// Set if a frame was refused: the number of used buffers at which the lane has room again.
    resumes_at: Option<usize>,
    /// Whether the receiver was crowded when a buffer was last requested.
    is_crowded: bool,
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
    /// The least number of free long buffers since the last [`shed`](FramePool::shed).
    unused_long: usize,
    /// Whether the owner of the pool was notified of a surplus and has yet to remove it.
    surplus_reported: bool,
    lanes: Box<[LaneUse]>,
    /// Whether a caller that got no frame must be notified when a buffer is returned.
    starved: bool,
    /// Whether the handle was dropped. Then no buffer is kept.
    closed: bool,
}

/// Why there is no buffer for a frame.
enum Lack {
    /// The caller must allocate one of this length in bytes.
    Unallocated(usize),
    /// All buffers are in use.
    Exhausted,
    /// The lane may use no more buffers now.
    Crowded,
}

/// The lane for which frames are taken.
#[derive(Clone, Copy)]
pub(super) struct For {
    pub(super) lane: Lane,
    /// Whether the receiver has so many frames waiting that the lane gets only [`LEAST`] buffers.
    is_crowded: bool,
}

/// Number of buffers that a lane may use while it leaves `free` buffers free.
fn limit(lane: Lane, free: usize) -> usize {
    match lane {
        Lane::MANY => 3 * free,
        _ => free,
    }
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
        Self::with(frames, 0, false)
    }

    /// A pool for an engine, which sends to `lanes` receivers. [`build_frame`] does not compute the
    /// ICRC of packets in its frames. [`complete`] must compute it before a frame is captured, or
    /// sent where it may be damaged.
    ///
    /// [`build_frame`]: crate::packet::build_frame
    /// [`complete`]: crate::packet::complete
    pub fn with_icrc_offload(frames: usize, lanes: usize) -> Self {
        Self::with(frames, lanes, true)
    }

    fn with(frames: usize, lanes: usize, offloads_icrc: bool) -> Self {
        Self(Arc::new(PoolHandle(Arc::new(Pool {
            capacity: frames,
            offloads_icrc,
            buffers: Mutex::new(Buffers {
                lanes: vec![LaneUse::default(); lanes].into_boxed_slice(),
                ..Buffers::default()
            }),
            notify: OnceLock::new(),
            on_surplus: OnceLock::new(),
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
        self.pool().capacity - self.unused()
    }

    /// Number of frames that [`take`](Self::take) would return, unless memory is short.
    pub fn unused(&self) -> usize {
        let pool = self.pool();
        pool.buffers.lock().unused(pool.capacity)
    }

    /// Number of frames of a lane in use.
    pub fn in_use_by(&self, lane: Lane) -> usize {
        let buffers = self.pool().buffers.lock();
        buffers.lanes.get(lane.index()).map_or(0, |lane| lane.used)
    }

    /// Number of frames of a lane that were ever taken and did not return unsent: the ticket of the
    /// last of them.
    pub fn ticket(&self, lane: Lane) -> u64 {
        let buffers = self.pool().buffers.lock();
        buffers.lanes.get(lane.index()).map_or(0, |lane| lane.taken)
    }

    /// Whether the frame of a lane with this ticket is in use, if frames return in order. False for
    /// [many](Lane::MANY) receivers: their frames return in any order.
    pub fn has(&self, lane: Lane, ticket: u64) -> bool {
        if lane == Lane::MANY {
            return false;
        }
        let buffers = self.pool().buffers.lock();
        let lane = buffers.lanes.get(lane.index());
        // A ticket is too high if frames that were taken before it returned unsent after it.
        lane.is_some_and(|lane| lane.used > 0 && lane.taken - (lane.used as u64) < ticket)
    }

    /// Sets `notify`. If [`take`](Self::take), [`take_many`](Self::take_many) or
    /// [`room`](Self::room) has found no buffer, the thread that returns the next buffer calls
    /// `notify`. If [`take_for`](Self::take_for) was refused because of its lane, the thread that
    /// returns enough buffers of the lane calls `notify`. Later calls of `on_free` have no effect.
    pub fn on_free(&self, notify: impl Fn() + Send + Sync + 'static) {
        let _ = self.pool().notify.set(Box::new(notify));
    }

    /// Sets `notify`. It is called when the pool has enough free buffers for [`shed`](Self::shed)
    /// to free some, but not again before `shed` has returned [`Surplus::None`]. Later calls of
    /// `on_surplus` have no effect.
    pub fn on_surplus(&self, notify: impl Fn() + Send + Sync + 'static) {
        let _ = self.pool().on_surplus.set(Box::new(notify));
    }

    /// Frees long buffers that were not used since the last call, except [`KEPT`], but at most
    /// `room`, from which it subtracts their number. After [`Surplus::Rest`], the next call
    /// continues.
    pub fn shed(&self, room: &mut usize) -> Surplus {
        let mut buffers = self.pool().buffers.lock();
        let (freed, left) = buffers.shed(*room);
        drop(buffers);
        *room -= freed.len();
        drop(freed);
        left
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
        self.take_all(lengths, None, frames);
    }

    /// Like [`take_many`](Self::take_many), for frames of a lane. If the receiver `is_crowded`, the
    /// lane gets a few buffers only.
    pub fn take_for(
        &self,
        lane: Lane,
        is_crowded: bool,
        lengths: impl IntoIterator<Item = usize>,
        frames: &mut Frames,
    ) {
        self.take_all(lengths, Some(For { lane, is_crowded }), frames);
    }

    fn take_all(
        &self,
        lengths: impl IntoIterator<Item = usize>,
        to: Option<For>,
        frames: &mut Frames,
    ) {
        let pool = self.pool();
        let mut lengths = lengths.into_iter().take_while(|len| *len <= MAX_FRAME);
        let before = frames.len();
        while let Some((lack, len)) = pool.take_free(&mut lengths, to, frames, before) {
            let Some(frame) = pool.allocate(lack, len) else {
                break;
            };
            frames.push(frame.of(to));
        }
    }

    /// Number of frames of `lane` that would get a buffer, as far as the pool knows. It is 0 if the
    /// lane was refused a buffer and did not get room again, or if no buffer is free.
    pub fn room(&self, lane: Lane) -> usize {
        let pool = self.pool();
        let mut buffers = pool.buffers.lock();
        let free = buffers.unused(pool.capacity);
        let use_of = buffers.lanes.get(lane.index()).copied();
        let LaneUse {
            used,
            resumes_at,
            is_crowded,
            ..
        } = use_of.unwrap_or_default();
        if resumes_at.is_some() {
            return 0;
        }
        buffers.starved |= free == 0;
        let limit = if is_crowded { 0 } else { limit(lane, free) };
        // At least 1: a refused attempt makes the lane wait for its notification.
        free.min(limit.max(LEAST).saturating_sub(used).max(1))
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
        to: Option<For>,
        frames: &mut Frames,
        before: usize,
    ) -> Option<(Lack, usize)> {
        let mut buffers = self.buffers.lock();
        while !frames.is_full() {
            let len = lengths.next()?;
            match buffers.take_for(self.capacity, len, to) {
                Ok(buffer) => frames.push(Frame::new(buffer, len).of(to)),
                Err(lack) => {
                    // A caller that got some of the frames need not be notified: it continues with
                    // them.
                    if frames.len() == before {
                        buffers.refused(&lack, to);
                    }
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
        let (lane, is_sent) = (first.lane, first.is_sent);
        let Some(first) = first.take_buffer() else {
            continue;
        };
        let pool = Arc::clone(&first.pool);
        let mut buffers = pool.buffers.lock();
        buffers.give_back(first, lane, is_sent);
        let is_next = |frame: &&mut Frame| {
            frame
                .pool
                .as_ref()
                .is_some_and(|other| Arc::ptr_eq(other, &pool))
        };
        while let Some(frame) = frames.next_if(is_next) {
            let (lane, is_sent) = (frame.lane, frame.is_sent);
            if let Some(buffer) = frame.take_buffer() {
                buffers.give_back(buffer, lane, is_sent);
            }
        }
        let closed = buffers.take_closed();
        let starved = mem::take(&mut buffers.starved);
        let has_surplus =
            buffers.free[1].len() > KEPT && !mem::replace(&mut buffers.surplus_reported, true);
        drop(buffers);
        drop(closed);
        if let Some(notify) = pool.notify.get().filter(|_| starved) {
            notify();
        }
        if let Some(notify) = pool.on_surplus.get().filter(|_| has_surplus) {
            notify();
        }
    }
}

impl Buffers {
    /// Takes a free buffer for `len` bytes from a pool of this capacity.
    fn take(&mut self, capacity: usize, len: usize) -> Result<Buffer, Lack> {
        let fits = class(len);
        if let Some(buffer) = self.free[fits].pop() {
            self.unused_long = self.unused_long.min(self.free[1].len());
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

    /// Like [`take`](Self::take), for a frame of a lane, which is counted. If it is refused because
    /// of its lane, [`refused`](Self::refused) arranges the notification.
    fn take_for(&mut self, capacity: usize, len: usize, to: Option<For>) -> Result<Buffer, Lack> {
        let free = self.unused(capacity);
        let lane = to.and_then(|to| Some((self.lanes.get_mut(to.lane.index())?, to.is_crowded)));
        let Some((lane, is_crowded)) = lane.filter(|_| free > 0) else {
            return self.take(capacity, len);
        };
        let limit = to.map_or(free, |to| limit(to.lane, free));
        lane.is_crowded = is_crowded;
        if lane.used >= LEAST && (is_crowded || lane.used >= limit) {
            return Err(Lack::Crowded);
        }
        lane.used += 1;
        lane.taken += 1;
        self.take(capacity, len)
    }

    /// Arranges a notification for a caller that got no frame.
    fn refused(&mut self, lack: &Lack, to: Option<For>) {
        match lack {
            Lack::Unallocated(_) => {}
            Lack::Exhausted => self.starved = true,
            Lack::Crowded => {
                let lane = to.and_then(|to| self.lanes.get_mut(to.lane.index()));
                if let Some(lane) = lane {
                    lane.resumes_at = Some(lane.used - lane.used / 4);
                }
            }
        }
    }

    /// Number of buffers of a pool of this capacity that are not in use.
    fn unused(&self, capacity: usize) -> usize {
        let free: usize = self.free.iter().map(Vec::len).sum();
        capacity + free - self.allocated
    }

    fn give_back(&mut self, buffer: Buffer, lane: Option<Lane>, is_sent: bool) {
        self.free[class(buffer.bytes.len())].push(buffer);
        let lane = lane.and_then(|lane| self.lanes.get_mut(lane.index()));
        let Some(lane) = lane else { return };
        lane.used -= 1;
        lane.taken -= u64::from(!is_sent);
        self.starved |= lane.resumes_at.take_if(|at| lane.used <= *at).is_some();
    }

    /// Removes up to `room` long buffers that were not used for a while. The caller must drop them
    /// without the lock.
    fn shed(&mut self, room: usize) -> (Vec<Buffer>, Surplus) {
        let long = &mut self.free[1];
        let surplus = self.unused_long.min(long.len().saturating_sub(KEPT));
        // The buffers that were used last are at the end.
        let freed = Vec::from_iter(long.drain(..surplus.min(room)));
        self.allocated -= freed.len();
        if freed.len() < surplus {
            self.unused_long -= freed.len();
            return (freed, Surplus::Rest);
        }
        self.unused_long = long.len();
        self.surplus_reported = long.len() > KEPT;
        let left = match self.surplus_reported {
            true => Surplus::Candidates,
            false => Surplus::None,
        };
        (freed, left)
    }

    /// Removes the free buffers of a pool that was dropped. The caller must drop them without the
    /// lock.
    fn take_closed(&mut self) -> Vec<Buffer> {
        let mut all = Vec::new();
        if self.closed {
            self.free.iter_mut().for_each(|free| all.append(free));
            self.allocated -= all.len();
        }
        all
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        let mut buffers = self.0.buffers.lock();
        buffers.closed = true;
        let closed = buffers.take_closed();
        drop(buffers);
        drop(closed);
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
    fn a_burst_is_kept_for_a_while() {
        let pool = FramePool::new(1000);
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        pool.on_surplus(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let burst =
            |frames| Vec::from_iter((0..frames).map(|_| pool.take(MAX_FRAME).expect("a buffer")));
        let size = || allocated(&pool, &[]) / MAX_FRAME;
        drop(burst(KEPT));
        assert_eq!(told.load(Ordering::Relaxed), 0);
        // Between two bursts no frame is in use, but no buffer is freed.
        for _ in 0..3 {
            drop(burst(1000));
            assert_eq!(size(), 1000);
        }
        assert_eq!(told.load(Ordering::Relaxed), 1);
        let shed = || {
            let mut room = 1000;
            let before = size();
            let left = pool.shed(&mut room);
            assert_eq!(before - size(), 1000 - room);
            left
        };
        assert_eq!(shed(), Surplus::Candidates);
        assert_eq!(size(), 1000, "all were used lately");
        drop(burst(600));
        assert_eq!(shed(), Surplus::Candidates);
        assert_eq!(size(), 600);
        assert_eq!(shed(), Surplus::None);
        assert_eq!(size(), KEPT);
        assert_eq!(shed(), Surplus::None);
        let frames = burst(1000);
        assert!(pool.take(1).is_none());
        drop(frames);
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn no_more_buffers_are_freed_at_a_time_than_asked() {
        let pool = FramePool::new(1000);
        let burst =
            |frames| Vec::from_iter((0..frames).map(|_| pool.take(MAX_FRAME).expect("a buffer")));
        let size = || allocated(&pool, &[]) / MAX_FRAME;
        drop(burst(1000));
        assert_eq!(pool.shed(&mut 0), Surplus::Candidates, "none is unused yet");
        drop(burst(500));
        let mut room = 100;
        assert_eq!(pool.shed(&mut room), Surplus::Rest);
        assert_eq!((size(), room), (900, 0));
        assert_eq!(pool.shed(&mut room), Surplus::Rest);
        assert_eq!(size(), 900);
        // Buffers that are used meanwhile are kept.
        drop(burst(700));
        room = 1000;
        assert_eq!(pool.shed(&mut room), Surplus::Candidates);
        assert_eq!((size(), room), (700, 800));
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
    fn a_lane_takes_as_many_buffers_as_it_leaves() {
        let pool = FramePool::with_icrc_offload(8 * LEAST, 4);
        let told = notifications(&pool);
        let take = |lane, is_crowded| {
            let mut taken = Vec::new();
            loop {
                let mut frames = Frames::new();
                pool.take_for(Lane::new(lane), is_crowded, [1, 1, 1], &mut frames);
                if frames.is_empty() {
                    return taken;
                }
                frames.iter_mut().for_each(Frame::set_sent);
                taken.extend(frames);
            }
        };
        let mut first = take(3, false);
        assert_eq!(first.len(), 4 * LEAST);
        let second = take(1, false);
        assert_eq!(second.len(), 2 * LEAST);
        let third = take(2, true);
        assert_eq!(third.len(), LEAST, "its receiver is crowded");
        let lanes = [3, 1, 2].map(Lane::new);
        assert_eq!(
            lanes.map(|lane| pool.in_use_by(lane)),
            [4 * LEAST, 2 * LEAST, LEAST]
        );
        let room = || lanes.map(|lane| pool.room(lane));
        assert_eq!(room(), [0; 3]);
        let ticket = pool.ticket(lanes[0]);
        assert_eq!(ticket, 4 * LEAST as u64);
        assert!(pool.has(lanes[0], 1) && pool.has(lanes[0], ticket));
        first.truncate(3 * LEAST + 1);
        assert!(!pool.has(lanes[0], 1) && pool.has(lanes[0], ticket));
        assert_eq!(told.load(Ordering::Relaxed), 0);
        assert_eq!(pool.room(lanes[0]), 0);
        first.pop();
        assert_eq!(told.load(Ordering::Relaxed), 1);
        // The lane uses more buffers than are free, so it has to try whether it gets one.
        assert_eq!(room(), [1, 0, 0]);
        drop((first, second, third));
        assert_eq!(told.load(Ordering::Relaxed), 3);
        assert_eq!(room(), [8 * LEAST, 8 * LEAST, LEAST]);
        assert_eq!(lanes.map(|lane| pool.in_use_by(lane)), [0; 3]);
        assert_eq!(pool.ticket(lanes[1]), 2 * LEAST as u64);
        assert_eq!(take(0, false).len(), 6 * LEAST, "to many receivers");
    }

    #[test]
    fn frames_that_were_not_sent_do_not_count_as_gone() {
        let pool = FramePool::with_icrc_offload(8 * LEAST, 4);
        let lane = Lane::new(1);
        let mut frames = Frames::new();
        pool.take_for(lane, false, [1; 8], &mut frames);
        frames[0].set_sent();
        let ticket = pool.ticket(lane) - 7;
        frames.truncate(1);
        assert!(pool.has(lane, ticket), "the other frames were not sent");
        assert_eq!(pool.ticket(lane), 1);
        frames.clear();
        assert!(!pool.has(lane, ticket));
        // The ticket of a frame counts frames of another thread that return unsent later.
        pool.take_for(lane, false, [1; 8], &mut frames);
        frames[7].set_sent();
        let late = pool.ticket(lane);
        frames.clear();
        assert!(late > pool.ticket(lane) && !pool.has(lane, late));
    }

    /// One of many receivers may lose a frame that was sent before those that wait for another.
    #[test]
    fn frames_to_many_receivers_return_in_any_order() {
        let pool = FramePool::with_icrc_offload(8 * LEAST, 4);
        let mut frames = Frames::new();
        pool.take_for(Lane::MANY, false, [1, 1], &mut frames);
        frames.iter_mut().for_each(Frame::set_sent);
        frames.pop();
        assert!(!pool.has(Lane::MANY, 2));
    }

    #[test]
    fn a_lane_without_a_free_buffer_has_no_room() {
        let pool = FramePool::with_icrc_offload(1, 1);
        let told = notifications(&pool);
        let lane = Lane::default();
        let mut frames = Frames::new();
        pool.take_for(lane, false, [1, 1], &mut frames);
        assert_eq!(frames.len(), 1);
        assert_eq!(pool.room(lane), 0);
        frames.clear();
        assert_eq!(
            told.load(Ordering::Relaxed),
            1,
            "the question was remembered"
        );
        assert_eq!(pool.room(lane), 1);
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
