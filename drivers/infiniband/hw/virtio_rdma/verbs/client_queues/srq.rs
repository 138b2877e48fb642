// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues that the kernel posts to.
//!
//! Lock order: the lock of a CQ, then `KernelSrq::state`.

use super::{
    cq::KernelCq,
    qp::{
        Client,
        OutstandingWr, //
    },
    ring::KernelRing,
    wqe::Wqe, //
};
use crate::{
    abi::{
        number::{
            Qpn,
            Srqn, //
        },
        ring::Doorbell,
        wqe::RqHeader, //
    },
    decode::completion,
    device::Device,
    rdma::wr::{
        RecvWr,
        RecvWrs, //
    },
    ring::{
        RingError,
        SharedQueue, //
    }, //
};
use kernel::{
    device::{
        self,
        Bound, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        new_spinlock_irq,
        Arc,
        SpinLockIrq, //
    }, //
};

#[pin_data]
pub(in crate::verbs) struct KernelSrq {
    ring: Arc<KernelRing>,
    max_sge: usize,
    srqn: Atomic<u32>,
    #[pin]
    state: SpinLockIrq<State>,
}

/// State of an SRQ that its lock protects.
struct State {
    queue: SharedQueue<KVVec<u16>>,
    /// Outstanding work requests by slot. The device gets slot numbers instead of the clients' ids.
    posted: KVVec<OutstandingWr>,
}

impl KernelSrq {
    /// An SRQ in a ring, before it is created on the device.
    pub(in crate::verbs) fn new(ring: Arc<KernelRing>, max_sge: u32) -> Result<Arc<Self>> {
        let slots = usize::try_from(ring.layout().slots())?;
        let queue = SharedQueue::new(*ring.layout(), KVVec::from_elem(0, slots, GFP_KERNEL)?);
        let posted = KVVec::from_elem(OutstandingWr::default(), slots, GFP_KERNEL)?;
        let max_sge = usize::try_from(max_sge)?;
        Arc::pin_init(
            pin_init!(Self {
                ring,
                max_sge,
                srqn: Atomic::new(0),
                state <- new_spinlock_irq!(State { queue, posted }, "virtio_rdma::kernel_srq"),
            }),
            GFP_KERNEL,
        )
    }

    pub(in crate::verbs) fn ring(&self) -> &Arc<KernelRing> {
        &self.ring
    }

    /// Number of posted work requests that are not completed.
    pub(in crate::verbs) fn outstanding(&self) -> u32 {
        let free = self.state.lock().queue.free_slots();
        self.ring.layout().slots() - u32::from(free)
    }

    /// Sets the number that the device gave the SRQ.
    pub(in crate::verbs) fn set_number(&self, srqn: Srqn) {
        self.srqn.store(srqn.get(), Relaxed);
    }

    /// Posts work requests until one fails, and publishes the work requests before it.
    pub(in crate::verbs) fn post(
        &self,
        device: &Device,
        bus: &device::Device<Bound>,
        requests: &mut RecvWrs<'_>,
    ) -> Result {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let result = requests.try_for_each(|request| self.fill(state, &request));
        let wants_notification = state.queue.publish(&*self.ring);
        drop(guard);
        if wants_notification {
            let doorbell = Doorbell::Srq(Srqn::new(self.srqn.load(Relaxed)));
            device.ring(bus, doorbell);
        }
        result
    }

    /// Writes the WQE of a work request to a slot.
    fn fill(&self, state: &mut State, request: &RecvWr<'_>) -> Result {
        let sges = request.sges();
        if sges.len() > self.max_sge {
            return Err(EINVAL);
        }
        let num_sge = u32::try_from(sges.len())?;
        let slot = state.queue.reserve().ok_or(ENOMEM)?;
        let mut wqe = Wqe::new(self.ring.slot(slot.into()));
        // The id contains only the slot: the QP that will take the receive, and so its CQ, is not
        // known yet.
        let header = RqHeader {
            num_sge,
            wr_id: slot.into(),
        };
        wqe.put(0, &header.to_bytes());
        wqe.put_sges(RqHeader::SIZE, sges);
        if let Some(posted) = state.posted.get_mut(usize::from(slot)) {
            *posted = OutstandingWr {
                wr_id: request.wr_id(),
                length: wqe.length(),
            };
        }
        state.queue.offer(&*self.ring, slot);
        Ok(())
    }

    /// Completes the work request whose id for the device is `id`, frees its slot, and returns the
    /// request.
    ///
    /// # Errors
    ///
    /// [`RingError::BadSlot`] if there is no such slot, [`RingError::NotOutstanding`] if the slot
    /// is free.
    #[inline]
    pub(super) fn complete(&self, id: u64) -> Result<OutstandingWr, RingError> {
        let slot = completion::srq_slot(id).map_err(|_| RingError::BadSlot)?;
        let mut state = self.state.lock();
        state.queue.complete(slot)?;
        state
            .posted
            .get(usize::from(slot))
            .copied()
            .ok_or(RingError::BadSlot)
    }
}

/// The SRQ and the consumer of a QP, for the CQ into which the QP's receives complete.
pub(in crate::verbs) struct SharedSource {
    pub(in crate::verbs) srq: Arc<KernelSrq>,
    pub(in crate::verbs) client: Client,
}

/// A [`SharedSource`] that is attached to a CQ. Dropping it detaches the source, unless it stays.
pub(in crate::verbs) struct AttachedShared {
    pub(in crate::verbs) source: Arc<SharedSource>,
    pub(super) cq: Arc<KernelCq>,
    pub(super) qpn: Qpn,
    /// See [`KernelQp::keep_attached`](super::qp::KernelQp::keep_attached).
    pub(super) stays: bool,
}

impl AttachedShared {
    /// Attaches `source`, the receives of QP `qpn`, to `cq`.
    pub(in crate::verbs) fn new(
        source: SharedSource,
        qpn: Qpn,
        cq: &Arc<KernelCq>,
    ) -> Result<Self> {
        let source = Arc::new(source, GFP_KERNEL)?;
        cq.attach_shared(qpn, &source)?;
        Ok(Self {
            source,
            cq: cq.clone(),
            qpn,
            stays: false,
        })
    }
}

impl Drop for AttachedShared {
    fn drop(&mut self) {
        if !self.stays {
            self.cq.detach_shared(self.qpn);
        }
    }
}
