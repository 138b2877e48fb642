// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A completion queue: its ring, and the QPs that complete to it.

use std::collections::VecDeque;
use std::io;
use std::mem::replace;
use std::mem::MaybeUninit;
use std::sync::Arc;

use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::uverbs::UserRing;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::RingError;
use virtio_rdma_ring::RingMemory;

use crate::completion::is_receive;
use crate::completion::work_completion;
use crate::ffi;
use crate::lock::Guard;
use crate::lock::Lock;
use crate::memory::RingMap;
use crate::pd::Domain;
use crate::shared_ring::SharedRing;
use crate::table::Table;
use crate::work_ring::WorkRing;

/// The rings of a QP.
// In this order, so that the one that is used most has the address of the whole.
#[repr(C)]
pub struct QpRings {
    /// Send queue, if the QP has one.
    pub send: Option<WorkRing>,
    /// Receive queue, if the QP has one.
    pub recv: Option<WorkRing>,
    /// Where its receives come from in place of that.
    pub shared: Option<Arc<SharedRing>>,
}

impl QpRings {
    /// The work request of `cqe` is complete. Returns the application's id, or `None` if there is no such work request.
    #[inline]
    fn complete(&self, cqe: &Cqe) -> Option<u64> {
        if is_receive(cqe) {
            return self.complete_receive(cqe.wr_id);
        }
        self.send.as_ref()?.complete(cqe.wr_id)
    }

    // Apart, so that sends need not make room for it.
    #[inline(never)]
    fn complete_receive(&self, id: u64) -> Option<u64> {
        match &self.shared {
            None => self.recv.as_ref()?.complete(id),
            Some(shared) => shared.complete(id),
        }
    }
}

/// The ring of a completion queue.
pub struct CompletionRing {
    state: Lock<State>,
}

/// What one thread has to itself while it polls.
pub struct State {
    memory: Arc<RingMap>,
    queue: CompletionQueue,
    /// What was not polled when the queue moved to another ring.
    left: VecDeque<Cqe>,
    /// QPs whose completions are delivered. A CQE of any other QP is one of a QP that is gone.
    qps: Table<Arc<QpRings>>,
    /// What `ibv_next_poll` has delivered last.
    pub current: Cqe,
}

impl State {
    /// The work request of `cqe` is complete. Returns the application's id, or `None` if there is no such work request.
    #[inline(always)]
    fn complete(&self, cqe: &Cqe) -> Option<u64> {
        self.qps.get(cqe.qp_num)?.complete(cqe)
    }

    /// Hands the next completion to `deliver`, with the application's id of its work request.
    #[inline(always)]
    fn next<T>(&mut self, deliver: impl FnOnce(&Cqe, u64) -> T) -> Result<Option<T>, RingError> {
        while let Some(cqe) = self.left.pop_front() {
            if let Some(wr_id) = self.complete(&cqe) {
                return Ok(Some(deliver(&cqe, wr_id)));
            }
        }
        while let Some(position) = self.queue.take(&*self.memory)? {
            let slot = self.memory.slot(position);
            if let Some(wr_id) = self.complete(&Cqe::from_bytes(&slot.read())) {
                // Read once more: kept since, the fields would not all find room in registers.
                return Ok(Some(deliver(&Cqe::from_bytes(&slot.read()), wr_id)));
            }
        }
        Ok(None)
    }

    #[inline]
    fn publish(&mut self) {
        self.queue.publish(&*self.memory);
    }

    /// Marks the unpolled completions of a QP as not to be delivered. Slots of its SRQ are free then.
    fn kill(&mut self, qpn: u32) {
        let Self {
            memory,
            queue,
            left,
            qps,
            ..
        } = self;
        let (memory, layout) = (&**memory, *queue.layout());
        let shared = qps.get(qpn).and_then(|qp| qp.shared.as_ref());
        let free = |cqe: &Cqe| {
            if let (true, Some(shared)) = (is_receive(cqe), shared) {
                shared.complete(cqe.wr_id);
            }
        };
        left.retain(|cqe| {
            let is_killed = cqe.qp_num == qpn;
            if is_killed {
                free(cqe);
            }
            !is_killed
        });
        // A ring that makes no sense delivers nothing any more, so nothing is left to kill.
        let _ = queue.for_each_unpolled(memory, |position| {
            let offset = layout.slot(position);
            let mut bytes = [0; Cqe::SIZE];
            memory.read(offset, &mut bytes);
            let cqe = Cqe::from_bytes(&bytes);
            if cqe.qp_num == qpn {
                free(&cqe);
                let dead = Cqe {
                    qp_num: NO_QP,
                    ..cqe
                };
                memory.write(offset, &dead.to_bytes());
            }
        });
    }
}

/// No QP has this number: it marks a CQE that is not to be delivered.
const NO_QP: u32 = 0;

impl CompletionRing {
    /// A new queue.
    ///
    /// # Errors
    ///
    /// Those of mmap and madvise.
    pub fn new(layout: RingLayout, domain: &Domain) -> io::Result<Self> {
        let memory = RingMap::new(layout, domain.lender.as_ref())?;
        let state = State {
            queue: CompletionQueue::new(layout, &memory),
            memory: Arc::new(memory),
            left: VecDeque::new(),
            qps: Table::new(),
            current: Cqe::default(),
        };
        Ok(Self {
            state: Lock::new(state, domain.threads),
        })
    }

    /// The ring's memory.
    pub fn memory(&self) -> Arc<RingMap> {
        self.state.lock().memory.clone()
    }

    /// How the kernel module is told of this ring.
    pub fn user_ring(&self) -> UserRing {
        self.state.lock().memory.user_ring()
    }

    /// Delivers up to `out.len()` completions, oldest first, and returns how many.
    ///
    /// # Errors
    ///
    /// If there are none to deliver and the ring makes no sense: the process or the device has overwritten it.
    #[inline]
    pub fn poll(&self, out: &mut [MaybeUninit<ffi::ibv_wc>]) -> Result<usize, RingError> {
        let mut state = self.state.lock();
        let mut delivered = 0;
        for place in out {
            let deliver = |cqe: &Cqe, wr_id| {
                place.write(work_completion(cqe, wr_id));
            };
            match state.next(deliver) {
                Ok(Some(())) => delivered += 1,
                Err(error) if delivered == 0 => return Err(error),
                Ok(None) | Err(_) => break,
            }
        }
        state.publish();
        Ok(delivered)
    }

    /// Starts to poll completions one by one, by this thread alone until the result is dropped.
    #[inline]
    pub fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Goes on polling.
    ///
    /// # Safety
    ///
    /// As [`Lock::resume`].
    #[inline]
    pub unsafe fn resume(&self) -> Guard<'_, State> {
        // SAFETY: the caller's promise.
        unsafe { self.state.resume() }
    }

    /// Makes the next completion the current one and returns its status and the id of its work request.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    #[inline]
    pub fn advance(&self, state: &mut State) -> Result<Option<(u8, u64)>, RingError> {
        let next = state.next(|cqe, wr_id| (*cqe, wr_id))?;
        Ok(next.map(|(cqe, wr_id)| {
            state.current = cqe;
            (cqe.status, wr_id)
        }))
    }

    /// Gives all that was polled back to the device.
    #[inline]
    pub fn publish(&self, state: &mut State) {
        state.publish();
    }

    /// Asks for a completion event. Returns whether the CQ's doorbell is to be rung.
    pub fn arm(&self, solicited_only: bool) -> bool {
        let kind = if solicited_only {
            ArmKind::Solicited
        } else {
            ArmKind::Next
        };
        let mut guard = self.state.lock();
        let State { memory, queue, .. } = &mut *guard;
        queue.arm(&**memory, kind, false) == Armed::RingDoorbell
    }

    /// The device has moved to `target`, a ring that [`new`](Self::new) has made, and the old one ends with `used_idx`. What
    /// was not polled there is still delivered first. Returns whether the CQ's doorbell is to be rung.
    pub fn moved(&self, target: Self, used_idx: u16) -> bool {
        let State { memory, queue, .. } = target.state.into_inner();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        // A ring that makes no sense has nothing to deliver.
        while !state.queue.is_at(used_idx) {
            let Ok(Some(position)) = state.queue.take(&*state.memory) else {
                break;
            };
            let cqe = Cqe::from_bytes(&state.memory.slot(position).read());
            state.left.push_back(cqe);
        }
        let old = replace(&mut state.memory, memory);
        let missed = !state.left.is_empty();
        let ring_doorbell = state.queue.moved(queue, &*state.memory, missed);
        drop(guard);
        // Not with the lock held: it is unmapped.
        drop(old);
        ring_doorbell
    }

    /// A completion event of this CQ was fetched.
    pub fn event_received(&self) {
        let mut guard = self.state.lock();
        let State { memory, queue, .. } = &mut *guard;
        queue.event_received(&**memory);
    }

    /// Delivers the completions of a new QP. What an earlier QP with the same number has left is not delivered.
    pub fn attach(&self, qpn: u32, rings: &Arc<QpRings>) {
        let mut state = self.state.lock();
        state.kill(qpn);
        state.qps.insert(qpn, rings.clone());
    }

    /// Stops to deliver the completions of a QP that was destroyed, unless its number has a new owner by now.
    pub fn detach(&self, qpn: u32, rings: &Arc<QpRings>) {
        let mut state = self.state.lock();
        if state
            .qps
            .get(qpn)
            .is_some_and(|owner| Arc::ptr_eq(owner, rings))
        {
            state.kill(qpn);
            state.qps.remove(qpn);
        }
    }

    /// Drops the completions of a QP whose work the device has given back (QP state RESET), and starts `ring`, its
    /// queue that completes here, afresh.
    pub fn reset(&self, qpn: u32, ring: Option<&WorkRing>) {
        let mut state = self.state.lock();
        state.kill(qpn);
        if let Some(ring) = ring {
            ring.reset();
        }
    }
}
