// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A shared receive queue: its ring, and the application's id of each work request in it.
//!
//! The work requests complete in the CQs of many QPs and in any order, so a slot becomes free when
//! its own completion is polled. Polling takes the SRQ's lock within the CQ's lock.

use std::io;
use std::mem::replace;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use libc::c_int;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::uverbs::UserRing;
use virtio_rdma_ring::SharedQueue;

use crate::allocation::defaults;
use crate::allocators::Lender;
use crate::lock::Guard;
use crate::lock::Lock;
use crate::memory::PlannedRing;
use crate::memory::RingMap;
use crate::pd::Domain;
use crate::recv::write_receive;
use crate::recv::Recv;

/// The ring of a shared receive queue.
pub struct SharedRing {
    posting: Lock<Posting>,
    /// Locked while the queue moves to a longer ring, including the move's system calls.
    control: Mutex<()>,
    /// Allocates longer rings.
    lender: Option<Lender>,
}

/// The state of posting.
///
/// # Invariants
///
/// `queue` was made with the layout of `memory`, or has moved to it.
pub struct Posting {
    memory: RingMap,
    queue: SharedQueue<Box<[u16]>>,
    /// The application's id of the work request in each slot. The device sees the slot number as
    /// the id of a work request.
    wr_ids: Box<[u64]>,
    /// The longer ring that the device may move to at any moment.
    moving: Option<Moving>,
}

struct Moving {
    memory: RingMap,
    list: Box<[u16]>,
    wr_ids: Box<[u64]>,
}

impl SharedRing {
    /// A new queue in `memory`, whose bytes are all zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(memory: RingMap, domain: &Domain) -> io::Result<Self> {
        let layout = *memory.layout();
        let posting = Posting {
            memory,
            queue: SharedQueue::new(layout, defaults(layout.slots() as usize)?),
            wr_ids: defaults(layout.slots() as usize)?,
            moving: None,
        };
        Ok(Self {
            posting: Lock::new(posting, domain.threads),
            control: Mutex::new(()),
            lender: domain.lender.clone(),
        })
    }

    /// The address and the layout of the ring in this process.
    pub fn user_ring(&self) -> UserRing {
        self.lock().memory.user_ring()
    }

    pub fn slots(&self) -> u32 {
        self.lock().memory.layout().slots()
    }

    /// Starts to post. Other threads can't post until the result is dropped.
    #[inline]
    pub fn lock(&self) -> Guard<'_, Posting> {
        self.posting.lock()
    }

    /// Completes the work request in `slot`; called when its completion is polled. Returns the
    /// application's id, or `None` if no work request is outstanding in `slot`.
    #[inline]
    pub fn complete(&self, slot: u64) -> Option<u64> {
        let slot = u16::try_from(slot).ok()?;
        let mut posting = self.lock();
        posting.queue.complete(slot).ok()?;
        posting.wr_ids.get(usize::from(slot)).copied()
    }

    /// Excludes other threads from moving the queue.
    pub fn control(&self) -> MutexGuard<'_, ()> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [Prepares](Self::prepare_with) a ring for a device in the same process.
    ///
    /// # Errors
    ///
    /// Errors of [`prepare_with`](Self::prepare_with) and [`PlannedRing::in_memory`].
    pub fn prepare(&self, slots: u32) -> io::Result<UserRing> {
        self.prepare_with(slots, PlannedRing::in_memory, RingMap::user_ring)
    }

    /// Prepares a ring of `slots` slots, which `map` maps, for the device to move to. From now on,
    /// work requests are posted to both rings. Returns the `request` for the move. After the move,
    /// the caller calls [`moved`](Self::moved).
    ///
    /// # Errors
    ///
    /// `EINVAL` unless `slots` is valid and longer than the present ring, `EBUSY` if a ring is
    /// prepared already, the errors of `map` and of [`PlannedRing::new`], and `ENOMEM`.
    pub fn prepare_with(
        &self,
        slots: u32,
        map: impl FnOnce(PlannedRing) -> io::Result<RingMap>,
        request: impl FnOnce(&RingMap) -> UserRing,
    ) -> io::Result<UserRing> {
        let error = io::Error::from_raw_os_error;
        let present = *self.lock().memory.layout();
        let layout = RingLayout::new(RingKind::Shared, slots, present.slot_shift())
            .filter(|layout| layout.slots() > present.slots())
            .ok_or_else(|| error(libc::EINVAL))?;
        let moving = Moving {
            memory: map(PlannedRing::new(layout, self.lender.as_ref())?)?,
            list: defaults(slots as usize)?,
            wr_ids: defaults(slots as usize)?,
        };
        let mut slot = defaults(layout.slot_size() as usize)?;
        let request = request(&moving.memory);
        let mut posting = self.lock();
        // Another thread may have moved the queue meanwhile.
        if posting.moving.is_some() || *posting.memory.layout() != present {
            return Err(error(libc::EBUSY));
        }
        posting
            .queue
            .copy_to(&posting.memory, &layout, &moving.memory, &mut slot);
        posting.moving = Some(moving);
        Ok(request)
    }

    /// Ends a move: switches to the prepared ring if the device has moved to it, else drops it.
    pub fn moved(&self, has_moved: bool) {
        let mut posting = self.lock();
        let Some(mut moving) = posting.moving.take() else {
            return;
        };
        let mut old = None;
        if has_moved {
            let layout = *moving.memory.layout();
            moving.wr_ids[..posting.wr_ids.len()].copy_from_slice(&posting.wr_ids);
            posting.queue.moved(layout, moving.list);
            posting.wr_ids = moving.wr_ids;
            old = Some(replace(&mut posting.memory, moving.memory));
        }
        drop(posting);
        // The drop unmaps the ring, so it happens after the lock is released.
        drop(old);
    }
}

impl Posting {
    /// Posts one work request of at most `max_sge` SGEs.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is invalid, `ENOMEM` when the queue is full.
    #[inline]
    pub fn post(&mut self, wr: Recv<'_>, max_sge: u32) -> Result<(), c_int> {
        let sges = wr.sges(max_sge).ok_or(libc::EINVAL)?;
        let slot = self.queue.reserve().ok_or(libc::ENOMEM)?;
        if let Some(wr_id) = self.wr_ids.get_mut(usize::from(slot)) {
            *wr_id = wr.wr_id();
        }
        // SAFETY: `sges` has at most the number of SGEs of the queue's WQEs.
        unsafe { write_receive(self.memory.slot(slot.into()), slot.into(), sges.clone()) };
        if let Some(Moving { memory, .. }) = &self.moving {
            // SAFETY: as above; the slots of both rings have the same size.
            unsafe { write_receive(memory.slot(slot.into()), slot.into(), sges) };
            self.queue.mirror(memory.layout(), memory, slot);
        }
        // SAFETY: by the invariants the queue has the layout of this memory.
        self.queue.offer(unsafe { self.memory.unchecked() }, slot);
        Ok(())
    }

    /// Hands the posted work requests to the device. Returns whether the doorbell must be rung.
    #[inline]
    pub fn publish(&mut self) -> bool {
        // SAFETY: by the invariants the queue has the layout of this memory.
        self.queue.publish(unsafe { self.memory.unchecked() })
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_ring::DeviceSharedQueue;

    use super::*;
    use crate::ffi;
    use crate::ffi::Zeroed;
    use crate::lock::Threads;
    use crate::work_ring::List;

    fn post(ring: &SharedRing, wr_id: u64) -> c_int {
        let mut wr = ffi::ibv_recv_wr {
            wr_id,
            ..Zeroed::zeroed()
        };
        // SAFETY: the list has one work request, without SGEs.
        let mut list = unsafe { List::new(&mut wr) };
        let mut posting = ring.lock();
        let status = list.try_each(|wr| posting.post(wr, 1));
        posting.publish();
        status
    }

    #[test]
    fn a_queue_grows_with_work_in_it() {
        let layout = RingLayout::new(RingKind::Shared, 4, 6).unwrap();
        let memory = RingMap::in_memory(layout).unwrap();
        let ring = SharedRing::new(memory, &Threads::MANY.into()).unwrap();
        for wr_id in 100..104 {
            assert_eq!(post(&ring, wr_id), 0);
        }
        assert_eq!(post(&ring, 104), libc::ENOMEM);
        let mut device = DeviceSharedQueue::new(layout);
        let first = device.fetch(&ring.lock().memory).unwrap().unwrap();
        device.complete();
        assert_eq!(ring.complete(first.into()), Some(100));
        assert_eq!(ring.complete(first.into()), None, "not outstanding");
        assert_eq!(ring.complete(u64::MAX), None);

        assert!(ring.prepare(4).is_err(), "not longer");
        assert!(ring.prepare(12).is_err(), "no power of two");
        assert_eq!(ring.prepare(8).unwrap().slots, 8);
        assert!(ring.prepare(8).is_err(), "one at a time");
        assert_eq!(post(&ring, 104), 0);
        {
            let posting = ring.lock();
            device.moved(*posting.moving.as_ref().unwrap().memory.layout());
        }
        ring.moved(true);
        assert_eq!(ring.slots(), 8);
        for wr_id in 105..109 {
            assert_eq!(post(&ring, wr_id), 0);
        }
        assert_eq!(post(&ring, 109), libc::ENOMEM);
        for wr_id in 101..109 {
            let slot = device.fetch(&ring.lock().memory).unwrap().unwrap();
            assert_eq!(ring.complete(slot.into()), Some(wr_id));
            device.complete();
        }
        ring.prepare(16).unwrap();
        ring.moved(false);
        assert_eq!(ring.slots(), 8);
    }
}
