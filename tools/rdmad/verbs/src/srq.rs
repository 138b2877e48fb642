// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shared receive queues (IBTA 10.2.9).

mod saved;

use budget::Charge;
use dma::DmaView;
use roce::work::RecvWr;
use scheduler::shared::Mutex;
use virtio_rdma_abi::ctrl::RspQuerySrq;
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::ib::AsyncEvent;
use virtio_rdma_abi::number::{Pdn, Srqn};
use virtio_rdma_abi::wqe::rq_wqe_size;
use virtio_rdma_ring::DeviceSharedQueue;

pub(crate) use self::saved::SrqState;
use crate::details::{self, SrqDetails};
use crate::error::{at_least, at_most, require, Reason, Result, What};
use crate::event::EventSource;
use crate::memory::{RingMem, RingView};
use crate::pd::PdUse;
use crate::users::Users;
use crate::wqe::{parse_recv, recv_size, BadRecv, PostedRecv, RecvOrigin, FIRST_OF_RECV};
use crate::Hca;

/// A shared receive queue.
///
/// QPs fetch work requests in the order of the ring. A slot belongs to the QP that fetched it until
/// the work request completes. If that QP is reset or destroyed first, the slot is returned, and
/// the next fetch gets this work request again. Lock order: after the locks of QPs.
#[derive(Debug)]
pub(crate) struct Srq {
    number: Srqn,
    pd: PdUse,
    cookie: u64,
    max_sge: u32,
    inner: Mutex<SrqInner>,
    /// QPs that take their receives from this SRQ.
    pub(crate) users: Users,
    _charge: Charge,
}

/// The new ring of a resized SRQ.
pub(crate) struct NewRing {
    pub ring: RingMem,
    /// Maximum number of outstanding work requests in the new ring.
    pub max_wr: u32,
}

#[derive(Debug)]
struct SrqInner {
    mem: RingMem,
    queue: SrqQueue,
}

#[derive(Debug)]
struct SrqQueue {
    ring: DeviceSharedQueue,
    /// Slots that were fetched and returned unused. The last one in the list is fetched next.
    returned: Vec<u16>,
    max_wr: u32,
    /// SRQ_LIMIT_REACHED is raised when fewer work requests than this are left; 0 if the event is
    /// not armed.
    limit: u32,
    state: Life,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Live,
    /// The ring is corrupt: no more work requests are fetched.
    Broken,
    /// The SRQ's memory belongs to the driver again.
    Destroyed,
}

/// Attributes of a new SRQ.
pub(crate) struct SrqInit {
    /// PD against which the local keys of work requests are checked.
    pub pd: PdUse,
    /// The driver's cookie, which the SRQ's events carry.
    pub cookie: u64,
    /// Maximum number of outstanding work requests.
    pub max_wr: u32,
    /// Maximum number of SGEs of a work request.
    pub max_sge: u32,
    pub ring: RingMem,
    /// Charge for the SRQ's memory in the HCA.
    pub charge: Charge,
}

impl Srq {
    pub(crate) fn new(number: Srqn, init: SrqInit) -> Self {
        Self {
            number,
            pd: init.pd,
            cookie: init.cookie,
            max_sge: init.max_sge,
            inner: Mutex::new(SrqInner {
                queue: SrqQueue {
                    ring: DeviceSharedQueue::new(*init.ring.layout()),
                    returned: Vec::new(),
                    max_wr: init.max_wr,
                    limit: 0,
                    state: Life::Live,
                },
                mem: init.ring,
            }),
            users: Users::default(),
            _charge: init.charge,
        }
    }

    pub(crate) fn number(&self) -> Srqn {
        self.number
    }

    /// The PD against which local keys are checked. The PD of a QP that uses the SRQ may differ.
    pub(crate) fn pdn(&self) -> Pdn {
        self.pd.number()
    }

    /// Length in bytes of the longest WQE.
    pub(crate) fn max_wqe(&self) -> usize {
        rq_wqe_size(self.max_sge as usize)
    }

    /// Fetches the next WQE into `buffer`, which must have room for the [longest](Self::max_wqe)
    /// WQE. Returns `None` if no WQE is posted. The caller must give the slot back by
    /// [`complete`](Self::complete) or [`put_back`](Self::put_back), except after an error.
    pub(crate) fn fetch(
        &self,
        hca: &Hca,
        view: &DmaView,
        buffer: &mut [u8],
    ) -> std::result::Result<Option<RecvWr<PostedRecv>>, BadRecv> {
        let mut guard = self.inner.lock();
        let SrqInner { mem, queue } = &mut *guard;
        match queue.state {
            Life::Live => {}
            Life::Broken => return Err(BadRecv::Ring),
            Life::Destroyed => return Ok(None),
        }
        let memory = RingView::new(mem, view);
        let fetched = match queue.returned.pop() {
            Some(slot) => Ok(Some(slot)),
            None => queue.ring.fetch(&memory),
        };
        let slot = match fetched {
            Ok(Some(slot)) if !memory.lost() => slot,
            Ok(None) if !memory.lost() => return Ok(None),
            _ => return Err(self.fail(queue, hca)),
        };
        let present = memory.read_wqe(slot.into(), buffer, FIRST_OF_RECV, recv_size);
        // WQEs are fetched when messages arrive, so the driver need not ring the doorbell.
        queue.ring.suppress_doorbell(&memory);
        self.check_limit(queue, &memory, hca);
        let parsed = parse_recv(buffer, present, self.max_sge, RecvOrigin::Srq { slot });
        if parsed.is_err() {
            queue.ring.complete();
        }
        if memory.lost() {
            return Err(self.fail(queue, hca));
        }
        parsed.map(Some)
    }

    /// Frees the slot of a fetched work request. Must be called before its CQE is visible.
    pub(crate) fn complete(&self) {
        let queue = &mut self.inner.lock().queue;
        if queue.state == Life::Live {
            queue.ring.complete();
        }
    }

    /// Returns `slot` unused, since the QP that fetched it is reset or destroyed. The slot is
    /// fetched next.
    pub(crate) fn put_back(&self, slot: u16) {
        self.inner.lock().queue.returned.push(slot);
    }

    /// Executes MODIFY_SRQ: all of it, or nothing if it fails.
    pub(crate) fn modify(&self, hca: &Hca, new: Option<NewRing>, limit: Option<u32>) -> Result<()> {
        let view = hca.space.enter();
        let mut guard = self.inner.lock();
        let SrqInner { mem, queue } = &mut *guard;
        let is_live = queue.state == Life::Live;
        require(is_live, Reason::Failed, What::Srqn, self.number.get())?;
        let bound = new.as_ref().map_or(queue.max_wr, |new| new.max_wr);
        at_most(What::Limit, limit.unwrap_or(0), bound)?;
        if let Some(NewRing { max_wr, ring }) = new {
            let (old, new) = (*mem.layout(), *ring.layout());
            // A fetched slot keeps its number in the new ring, so the new ring must not be smaller.
            at_least(What::Slots, new.slots(), old.slots())?;
            at_least(What::SlotShift, new.slot_shift(), old.slot_shift())?;
            queue.ring.moved(new);
            queue.max_wr = max_wr;
            *mem = ring;
        }
        if let Some(limit) = limit {
            queue.limit = limit;
            self.check_limit(queue, &RingView::new(mem, &view), hca);
        }
        Ok(())
    }

    /// Number of receives that are posted and that no QP has fetched.
    pub(crate) fn posted(&self, view: &DmaView) -> u32 {
        let SrqInner { mem, queue } = &*self.inner.lock();
        match queue.state {
            // The ring has at most as many slots.
            Life::Live => {
                queue.ring.available(&RingView::new(mem, view)) + queue.returned.len() as u32
            }
            Life::Broken | Life::Destroyed => 0,
        }
    }

    /// The state of the SRQ; `None` if the SRQ is destroyed.
    pub(crate) fn details(&self, hca: &Hca) -> Option<SrqDetails> {
        let posted = self.posted(&hca.space.enter());
        let queue = &self.inner.lock().queue;
        (queue.state != Life::Destroyed).then(|| SrqDetails {
            srqn: self.number.get(),
            is_live: queue.state == Life::Live,
            posted,
            max_wr: queue.max_wr,
            limit: queue.limit,
            qps: details::numbers(self.users.qpns()),
        })
    }

    /// Executes QUERY_SRQ.
    pub(crate) fn query(&self) -> RspQuerySrq {
        let queue = &self.inner.lock().queue;
        RspQuerySrq {
            max_wr: queue.max_wr,
            max_sge: self.max_sge,
            limit: queue.limit,
        }
    }

    /// Stops using the ring's memory and drops events not yet sent.
    pub(crate) fn destroy(&self, hca: &Hca) {
        self.inner.lock().queue.state = Life::Destroyed;
        hca.events()
            .forget(FIRST_EVENT_QUEUE, EventSource::Srq(self.number));
    }

    /// If fewer work requests than the limit are left, raises SRQ_LIMIT_REACHED and disarms it.
    fn check_limit(&self, queue: &mut SrqQueue, memory: &RingView<'_>, hca: &Hca) {
        if queue.limit == 0 {
            return;
        }
        let left = queue.returned.len() + queue.ring.available(memory) as usize;
        if left < queue.limit as usize {
            queue.limit = 0;
            self.raise(hca, AsyncEvent::SrqLimitReached);
        }
    }

    /// Raises an event of the SRQ by a rule. If it tells of a failure, the SRQ and all its QPs
    /// fail. Returns whether the SRQ works on.
    pub(crate) fn raise_on_order(&self, hca: &Hca, event: AsyncEvent) -> bool {
        let fails = event == AsyncEvent::SrqErr;
        if fails {
            self.fail(&mut self.inner.lock().queue, hca);
        } else {
            self.raise(hca, event);
        }
        !fails
    }

    /// Fails the SRQ and all its QPs because its ring is corrupt.
    fn fail(&self, queue: &mut SrqQueue, hca: &Hca) -> BadRecv {
        queue.state = Life::Broken;
        self.raise(hca, AsyncEvent::SrqErr);
        self.users.fail(hca);
        BadRecv::Ring
    }

    fn raise(&self, hca: &Hca, event: AsyncEvent) {
        hca.note_raised(0, event, self.cookie);
        hca.events()
            .asynchronous(EventSource::Srq(self.number), event, self.cookie);
    }
}
