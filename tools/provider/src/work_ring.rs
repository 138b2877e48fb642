// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A send or receive queue: its ring, and the application's id of each work request in it.
//!
//! Posting and polling share no lock. Posting threads use the queue's own lock. The polling side
//! runs under the lock of the one CQ that the queue completes to, and stores the position up to
//! which work is complete. A posting thread reads this position when it finds no free slot.

use std::io;
use std::ops::Deref;
use std::ops::DerefMut;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use virtio_rdma_abi::uverbs::UserRing;
use virtio_rdma_ring::WorkQueue;

use crate::allocation::defaults;
use crate::lock::Guard;
use crate::lock::Lock;
use crate::lock::Threads;
use crate::memory::RingMap;
use crate::memory::RingSlot;
use crate::wqe::SendWqe;

/// The state of posting.
pub struct Posting {
    queue: WorkQueue,
    /// The batch that the `ibv_wr_*` functions are building.
    pub batch: Batch,
}

/// Send work requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    /// The WQE in progress, which may still get a payload.
    pub wqe: Option<SendWqe>,
    /// The first error, or 0.
    pub error: i32,
}

impl Deref for Posting {
    type Target = WorkQueue;
    #[inline(always)]
    fn deref(&self) -> &WorkQueue {
        &self.queue
    }
}

impl DerefMut for Posting {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut WorkQueue {
        &mut self.queue
    }
}

/// The ring of a send or receive queue.
///
/// # Invariants
///
/// `wr_ids` is as long as `memory` has slots.
pub struct WorkRing {
    memory: RingMap,
    posting: Lock<Posting>,
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
        let posting = Posting {
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

    /// The ring's memory.
    pub fn memory(&self) -> &RingMap {
        &self.memory
    }

    /// The address and the layout of the ring in this process.
    pub fn user_ring(&self) -> UserRing {
        self.memory.user_ring()
    }

    /// Number of slots.
    #[inline]
    pub fn slots(&self) -> u32 {
        self.memory.layout().slots()
    }

    /// Starts to post. Other threads can't post until the result is dropped.
    #[inline]
    pub fn lock(&self) -> Guard<'_, Posting> {
        self.posting.lock()
    }

    /// Continues to post, under the lock that [`Guard::keep`] has left locked.
    ///
    /// # Safety
    ///
    /// The same as for [`Lock::resume`].
    #[inline]
    pub unsafe fn resume(&self) -> Guard<'_, Posting> {
        // SAFETY: by the function's safety requirements.
        unsafe { self.posting.resume() }
    }

    /// The application's id of the work request at `position`.
    #[inline(always)]
    fn wr_id(&self, position: u32) -> &AtomicU64 {
        let index = self.memory.layout().slot_index(position);
        debug_assert!(index < self.wr_ids.len());
        // SAFETY: by the invariants, there is an id for each slot.
        unsafe { self.wr_ids.get_unchecked(index) }
    }

    /// Takes the next slot for a work request with the application's id `wr_id`. Returns the
    /// position and the slot, or `None` when the queue is full.
    #[inline]
    pub fn reserve(&self, queue: &mut WorkQueue, wr_id: u64) -> Option<(u32, RingSlot<'_>)> {
        let position = match queue.reserve() {
            Some(position) => position,
            None => self.reclaim(queue)?,
        };
        let slot = self.memory.slot(position);
        self.wr_id(position).store(wr_id, Ordering::Relaxed);
        Some((position, slot))
    }

    /// Frees completed slots and takes the next slot. A stale tail, from before a
    /// [reset](Self::reset), frees nothing.
    // Inlined: a call would cost each post the registers of its arguments.
    #[inline(always)]
    fn reclaim(&self, queue: &mut WorkQueue) -> Option<u32> {
        queue.reclaim(self.tail.load(Ordering::Acquire)).ok()?;
        queue.reserve()
    }

    /// Hands the reserved slots to the device. Returns whether the doorbell must be rung.
    ///
    /// # Safety
    ///
    /// `queue` is the queue of this ring.
    #[inline]
    pub unsafe fn publish(&self, queue: &mut WorkQueue) -> bool {
        // A poller that sees a completion of these work requests sees this store too.
        self.head.store(queue.reserved(), Ordering::Relaxed);
        // SAFETY: the queue was made with the layout of the ring.
        queue.publish(unsafe { self.memory.unchecked() })
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
        let tail = self.posting.lock().reset();
        self.tail.store(tail, Ordering::Release);
    }
}

/// The result for a work request that is not outstanding.
// Cold, so that the usual case needs no jump.
#[cold]
fn not_outstanding() -> Option<u64> {
    None
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

    fn publish(ring: &WorkRing, queue: &mut WorkQueue) {
        // SAFETY: each test has one ring, so the queue belongs to it.
        unsafe { ring.publish(queue) };
    }

    fn reserve(ring: &WorkRing, wr_id: u64) -> Option<u32> {
        ring.reserve(&mut ring.lock(), wr_id)
            .map(|(position, _)| position)
    }

    #[test]
    fn completions_free_slots_and_return_the_application_s_ids() {
        let ring = ring(4);
        for turn in 0..50_000u64 {
            let mut queue = ring.lock();
            let mut positions = Vec::new();
            while let Some((position, _)) =
                ring.reserve(&mut queue, (turn << 8) + positions.len() as u64)
            {
                positions.push(position);
            }
            assert_eq!(positions.len(), 4);
            publish(&ring, &mut queue);
            drop(queue);
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
            let mut queue = ring.lock();
            let positions = [0, 1, 2].map(|id| ring.reserve(&mut queue, 3 * turn + id).unwrap().0);
            let complete = |at: usize| ring.complete(positions[at].into());
            assert_eq!(complete(0), None, "not posted");
            publish(&ring, &mut queue);
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
        let mut queue = ring.lock();
        for id in 0..4 {
            ring.reserve(&mut queue, id).unwrap();
        }
        publish(&ring, &mut queue);
        drop(queue);
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
        let mut queue = ring.lock();
        for id in 0..3 {
            ring.reserve(&mut queue, id).unwrap();
        }
        publish(&ring, &mut queue);
        drop(queue);
        ring.reset();
        assert_eq!(reserve(&ring, 9), Some(3));
        for id in 0..3 {
            reserve(&ring, id).unwrap();
        }
        assert_eq!(reserve(&ring, 0), None);
    }
}
