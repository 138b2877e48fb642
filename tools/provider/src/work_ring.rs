// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The common parts of sending and receiving: the ring of a queue, with the application's id of
//! each work request in it, and lists of work requests.
//!
//! Posting and polling share no lock. Posting threads use the queue's own lock. The polling side
//! runs under the lock of the one CQ that the queue completes to, and stores the position up to
//! which work is complete. A posting thread reads this position when it finds no free slot.

use std::hint::assert_unchecked;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use libc::c_int;
use virtio_rdma_abi::uverbs::UserRing;
use virtio_rdma_abi::wqe::Sge;
use virtio_rdma_ring::WorkQueue;

use crate::allocation::defaults;
use crate::ffi;
use crate::lock::Lock;
use crate::lock::Threads;
use crate::memory::RingMap;
use crate::memory::RingSlot;
use crate::send::SendWqe;

/// The state that threads which post share.
struct State {
    queue: WorkQueue,
    batch: Batch,
}

/// Send work requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    /// The WQE in progress, which may still get a payload.
    pub wqe: Option<SendWqe>,
    /// The first error, or 0.
    pub error: i32,
}

/// The ring of a send or receive queue.
///
/// # Invariants
///
/// `wr_ids` is as long as `memory` has slots.
pub struct WorkRing {
    memory: RingMap,
    posting: Lock<State>,
    /// The application's id of the work request in each slot. The device sees the position as the
    /// id of a work request.
    wr_ids: Box<[AtomicU64]>,
    /// Position of the oldest slot that is not complete. Written by the polling side.
    tail: AtomicU32,
    /// Position after the last slot that the device may have. Written by the posting side.
    head: AtomicU32,
}

impl WorkRing {
    /// A new queue in `memory`, whose bytes are all zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(memory: RingMap, threads: Threads) -> io::Result<Self> {
        let layout = *memory.layout();
        let slots = layout.slots() as usize;
        let wr_ids = defaults(slots)?;
        let posting = State {
            queue: WorkQueue::new(layout),
            batch: Batch::default(),
        };
        // INVARIANT: `wr_ids` has the layout's number of slots.
        Ok(Self {
            posting: Lock::new(posting, threads),
            memory,
            wr_ids,
            tail: AtomicU32::new(0),
            head: AtomicU32::new(0),
        })
    }

    pub fn memory(&self) -> &RingMap {
        &self.memory
    }

    /// The address and the layout of the ring in this process.
    pub fn user_ring(&self) -> UserRing {
        self.memory.user_ring()
    }

    #[inline]
    pub fn slots(&self) -> u32 {
        self.memory.layout().slots()
    }

    /// Starts to post. Other threads can't post until the result is dropped.
    #[inline]
    pub fn lock(&self) -> Posting<'_> {
        self.posting.lock().keep();
        // INVARIANT: the guard was kept, and threads that lock wait from now on.
        Posting { ring: self }
    }

    /// Starts a batch, which begins as `batch`. Other threads can't post until the batch ends.
    #[inline]
    pub fn begin_batch(&self, batch: Batch) {
        let mut state = self.posting.lock();
        state.batch = batch;
        state.keep();
    }

    /// The batch that this thread has started. Its end is the drop of the [inner
    /// value](ManuallyDrop::into_inner): until then, the lock is held between calls.
    ///
    /// # Safety
    ///
    /// This thread has [started](Self::begin_batch) a batch that has not ended, and uses no other
    /// result of this function now.
    #[inline]
    pub unsafe fn batch(&self) -> ManuallyDrop<Posting<'_>> {
        // INVARIANT: begin_batch() has kept the guard, and the caller uses no other result.
        ManuallyDrop::new(Posting { ring: self })
    }

    /// The application's id of the work request at `position`.
    #[inline(always)]
    fn wr_id(&self, position: u32) -> &AtomicU64 {
        let index = self.memory.layout().slot_index(position);
        debug_assert!(index < self.wr_ids.len());
        // SAFETY: by the invariants, there is an id for each slot.
        unsafe { self.wr_ids.get_unchecked(index) }
    }

    /// Frees completed slots and takes the next slot. A stale tail, from before a
    /// [reset](Self::reset), frees nothing.
    // Inlined: a call would cost each post the registers of its arguments.
    #[inline(always)]
    fn reclaim(&self, queue: &mut WorkQueue) -> Option<u32> {
        queue.reclaim(self.tail.load(Ordering::Acquire)).ok()?;
        queue.reserve()
    }

    /// Completes the work request at `position` and all earlier work requests; called when its
    /// completion is polled. Returns the application's id, or `None` if the work request is not
    /// outstanding.
    #[inline]
    pub fn complete(&self, position: u64) -> Option<u64> {
        let position = u32::try_from(position).ok()?;
        let tail = self.tail.load(Ordering::Relaxed);
        let outstanding = self.head.load(Ordering::Relaxed).wrapping_sub(tail);
        if position.wrapping_sub(tail) >= outstanding {
            return not_outstanding();
        }
        let wr_id = self.wr_id(position).load(Ordering::Relaxed);
        self.tail.store(position.wrapping_add(1), Ordering::Release);
        Some(wr_id)
    }

    /// Empties the queue of a QP that has entered RESET. A concurrent poller may still store the
    /// tail of an earlier completion. Such a tail frees no slots, and the next completion corrects
    /// it.
    pub fn reset(&self) {
        let tail = self.posting.lock().queue.reset();
        self.tail.store(tail, Ordering::Release);
    }
}

/// A ring whose lock this thread holds, to post work requests. The drop releases the lock.
///
/// # Invariants
///
/// This thread has kept the guard of the ring's lock, and uses no other value of this type for it.
pub struct Posting<'a> {
    ring: &'a WorkRing,
}

impl<'a> Posting<'a> {
    #[inline(always)]
    fn state(&mut self) -> &mut State {
        // SAFETY: by the invariants, this thread has the lock. The state is borrowed from `self`.
        unsafe { self.ring.posting.kept() }
    }

    /// This value for a call, which gets one register instead of an address in memory.
    #[inline(always)]
    pub fn slots(&mut self) -> Slots<'_> {
        // INVARIANT: `self` is borrowed as long as this value is used.
        Slots(ManuallyDrop::new(Posting { ring: self.ring }))
    }

    /// The batch that the `ibv_wr_*` functions are building.
    #[inline(always)]
    pub fn batch(&mut self) -> &mut Batch {
        &mut self.state().batch
    }

    /// The slot at `position`.
    #[inline(always)]
    pub fn slot(&self, position: u32) -> RingSlot<'a> {
        self.ring.memory.slot(position)
    }

    /// The WQE in progress of the batch, and its slot.
    #[inline(always)]
    pub fn wqe(&mut self) -> Option<(&mut SendWqe, RingSlot<'a>)> {
        let ring = self.ring;
        let wqe = self.batch().wqe.as_mut()?;
        let slot = ring.memory.slot(wqe.position());
        Some((wqe, slot))
    }

    /// Gives the reserved slots back, and releases the lock.
    #[inline]
    pub fn withdraw(mut self) {
        self.state().queue.withdraw();
    }

    /// Hands the WQEs in the reserved slots to the device, and releases the lock. Returns whether
    /// the doorbell must be rung. That may take long, since the device may be emulated, so it is
    /// done without the lock.
    #[inline]
    pub fn publish(mut self) -> bool {
        let ring = self.ring;
        let queue = &mut self.state().queue;
        // A poller that sees a completion of these work requests sees this store too.
        ring.head.store(queue.reserved(), Ordering::Relaxed);
        // SAFETY: the queue was made with the layout of the ring.
        queue.publish(unsafe { ring.memory.unchecked() })
    }
}

impl Drop for Posting<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: by the invariants, this thread has kept the guard.
        drop(unsafe { self.ring.posting.resume() });
    }
}

/// The slots of a ring, for one call under the lock of a [`Posting`].
pub struct Slots<'a>(ManuallyDrop<Posting<'a>>);

impl<'a> Slots<'a> {
    /// Takes the next slot for a work request with the application's id `wr_id`. Returns the
    /// position and the slot, or `None` when the queue is full.
    #[inline]
    pub fn reserve(mut self, wr_id: u64) -> Option<(u32, RingSlot<'a>)> {
        let ring = self.0.ring;
        let queue = &mut self.0.state().queue;
        let position = match queue.reserve() {
            Some(position) => position,
            None => ring.reclaim(queue)?,
        };
        let slot = ring.memory.slot(position);
        ring.wr_id(position).store(wr_id, Ordering::Relaxed);
        Some((position, slot))
    }
}

/// The result for a work request that is not outstanding.
// Cold, so that the usual case needs no jump.
#[cold]
fn not_outstanding() -> Option<u64> {
    None
}

/// A list of work requests of type `W`.
pub struct List<'a, W> {
    first: *mut W,
    lifetime: PhantomData<&'a W>,
}

impl<'a, W: WorkRequest + 'a> List<'a, W> {
    /// The list that starts with `first`.
    ///
    /// # Safety
    ///
    /// `first` and each `next` are null or work requests that are valid during `'a`. So are their
    /// SGEs and, for inline work requests, the memory of these SGEs. Address handles are of this
    /// provider; windows and their MRs are valid.
    pub unsafe fn new(first: *mut W) -> Self {
        Self {
            first,
            lifetime: PhantomData,
        }
    }

    /// The first work request that is still on the list, or null.
    #[inline]
    pub fn first(&self) -> *mut W {
        self.first
    }

    /// The work request at [`first`](Self::first), if there is one.
    #[inline(always)]
    pub fn front(&self) -> Option<W::View<'a>> {
        // SAFETY: by the contract of new(), this is null or a valid work request.
        let wr: Option<&'a W> = unsafe { self.first.as_ref() };
        wr.map(|wr| wr.view())
    }

    /// Removes the first work request from the list.
    #[inline(always)]
    pub fn pop(&mut self) {
        // SAFETY: as in `front`.
        if let Some(wr) = unsafe { self.first.as_ref() } {
            self.first = wr.next();
        }
    }

    /// Calls `post` with each work request and removes it from the list, until `post` fails.
    /// Returns the error number of `post`, or 0.
    #[inline]
    pub fn try_each(&mut self, mut post: impl FnMut(W::View<'a>) -> Result<(), c_int>) -> c_int {
        while let Some(wr) = self.front() {
            if let Err(errno) = post(wr) {
                return errno;
            }
            self.pop();
        }
        0
    }
}

/// A work request of C.
pub trait WorkRequest: Sized {
    /// The type with which the provider reads the work request.
    type View<'a>
    where
        Self: 'a;
    /// The view of this work request.
    fn view(&self) -> Self::View<'_>;
    /// The next work request of its list, or null.
    fn next(&self) -> *mut Self;
}

/// `num_sge` SGEs at `list`, or `None` if their number is negative or greater than `max`.
///
/// # Safety
///
/// The SGEs are valid for `'a`.
#[inline]
pub unsafe fn sges<'a>(
    list: *const ffi::ibv_sge,
    num_sge: i32,
    max: u32,
) -> Option<impl ExactSizeIterator<Item = &'a ffi::ibv_sge> + Clone> {
    let count = num_sge as u32;
    let sge = move |index: u32| {
        // SAFETY: `index` is less than the number of the caller's SGEs.
        let sge = unsafe { list.add(index as usize) };
        // SAFETY: the SGE is valid.
        unsafe { assert_unchecked(!sge.is_null()) };
        // SAFETY: the SGE is valid.
        unsafe { &*sge }
    };
    (count <= max).then(|| (0..count).map(sge))
}

/// Writes `sges` at `offset`.
///
/// # Safety
///
/// The slot has room for them.
#[inline]
pub unsafe fn write_sges<'a>(
    slot: RingSlot<'_>,
    offset: usize,
    mut sges: impl Iterator<Item = &'a ffi::ibv_sge>,
) {
    // SAFETY: the slot has room for the SGEs.
    let write = |index: usize, sge: &ffi::ibv_sge| unsafe {
        slot.write(offset + index * Sge::SIZE, &Sge::from(sge).to_bytes())
    };
    // Most work requests have one SGE, which needs no loop.
    if let Some(first) = sges.next() {
        write(0, first);
        for (index, sge) in sges.enumerate() {
            write(index + 1, sge);
        }
    }
}

impl From<&ffi::ibv_sge> for Sge {
    #[inline]
    fn from(sge: &ffi::ibv_sge) -> Self {
        Self {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        }
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::ring::RingKind;
    use virtio_rdma_abi::ring::RingLayout;

    use super::*;

    fn ring(slots: u32) -> WorkRing {
        let memory =
            RingMap::in_memory(RingLayout::new(RingKind::Work, slots, 7).unwrap()).unwrap();
        WorkRing::new(memory, Threads::MANY).unwrap()
    }

    fn reserve(ring: &WorkRing, wr_id: u64) -> Option<u32> {
        reserve_next(&mut ring.lock(), wr_id)
    }

    fn reserve_next(posting: &mut Posting<'_>, wr_id: u64) -> Option<u32> {
        let reserved = posting.slots().reserve(wr_id);
        reserved.map(|(position, _)| position)
    }

    #[test]
    fn completions_free_slots_and_return_the_application_s_ids() {
        let ring = ring(4);
        for turn in 0..50_000u64 {
            let mut posting = ring.lock();
            let mut positions = Vec::new();
            while let Some(position) =
                reserve_next(&mut posting, (turn << 8) + positions.len() as u64)
            {
                positions.push(position);
            }
            assert_eq!(positions.len(), 4);
            posting.publish();
            assert_eq!(ring.complete(u64::from(positions[0])), Some(turn << 8));
            assert_eq!(
                ring.complete(u64::from(positions[3])),
                Some((turn << 8) + 3),
                "those without a completion of their own go with a later one"
            );
        }
    }

    #[test]
    fn a_position_that_does_not_exist_completes_nothing() {
        let ring = ring(4);
        assert_eq!(ring.complete(0x1_0000_0000), None);
        assert_eq!(ring.complete(u64::MAX), None);
    }

    #[test]
    fn a_work_request_completes_once() {
        let ring = ring(4);
        for turn in 0..50_000u64 {
            let mut posting = ring.lock();
            let positions = [0, 1, 2].map(|id| reserve_next(&mut posting, 3 * turn + id).unwrap());
            let complete = |at: usize| ring.complete(positions[at].into());
            assert_eq!(complete(0), None, "not posted");
            posting.publish();
            let unposted = positions[2].wrapping_add(1);
            assert_eq!(ring.complete(unposted.into()), None);
            assert_eq!(complete(1), Some(3 * turn + 1));
            assert_eq!(complete(1), None, "complete");
            assert_eq!(complete(0), None, "with a later one");
            assert_eq!(complete(2), Some(3 * turn + 2));
            assert_eq!(complete(2), None, "complete");
        }
    }

    #[test]
    fn completions_of_what_was_not_posted_free_nothing() {
        let ring = ring(4);
        let mut posting = ring.lock();
        for id in 0..4 {
            reserve_next(&mut posting, id).unwrap();
        }
        posting.publish();
        for position in [4, 7, 0x8000_0000, 0xffff_ffff] {
            ring.complete(position);
            assert_eq!(reserve(&ring, 0), None);
        }
        ring.complete(0);
        assert_eq!(reserve(&ring, 0), Some(4));
        assert_eq!(reserve(&ring, 0), None);
    }

    #[test]
    fn reset_frees_everything() {
        let ring = ring(4);
        let mut posting = ring.lock();
        for id in 0..3 {
            reserve_next(&mut posting, id).unwrap();
        }
        posting.publish();
        ring.reset();
        assert_eq!(reserve(&ring, 9), Some(3));
        for id in 0..3 {
            reserve(&ring, id).unwrap();
        }
        assert_eq!(reserve(&ring, 0), None);
    }
}
