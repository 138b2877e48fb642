// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues that the kernel posts to.
//!
//! Lock order: that of a CQ, then `KernelSrq::state`.

use super::{
    cq::KernelCq,
    qp::{
        Client,
        Posted, //
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

/// An SRQ of the kernel.
#[pin_data]
pub(in crate::verbs) struct KernelSrq {
    ring: Arc<KernelRing>,
    max_sge: usize,
    srqn: Atomic<u32>,
    #[pin]
    state: SpinLockIrq<State>,
}

/// State under the lock of an SRQ.
struct State {
    queue: SharedQueue<KVVec<u16>>,
    /// Work requests by slot: the device only sees slots.
    posted: KVVec<Posted>,
}

impl KernelSrq {
    /// An SRQ in a ring that the device does not know yet.
    pub(in crate::verbs) fn new(ring: Arc<KernelRing>, max_sge: u32) -> Result<Arc<Self>> {
        let slots = usize::try_from(ring.layout().slots())?;
        let queue = SharedQueue::new(*ring.layout(), KVVec::from_elem(0, slots, GFP_KERNEL)?);
        let posted = KVVec::from_elem(Posted::default(), slots, GFP_KERNEL)?;
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

    /// The ring.
    pub(in crate::verbs) fn ring(&self) -> &Arc<KernelRing> {
        &self.ring
    }

    /// The device gave the SRQ its handle.
    pub(in crate::verbs) fn set_number(&self, srqn: Srqn) {
        self.srqn.store(srqn.get(), Relaxed);
    }

    /// Posts work requests until one is refused, and lets the device have those before it.
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
        // The CQ in which it completes depends on the QP that takes it, so its id is nothing but
        // the slot.
        let header = RqHeader {
            num_sge,
            wr_id: slot.into(),
        };
        wqe.put(0, &header.to_bytes());
        wqe.put_sges(RqHeader::SIZE, sges);
        if let Some(posted) = state.posted.get_mut(usize::from(slot)) {
            *posted = Posted {
                wr_id: request.wr_id(),
                length: wqe.length(),
            };
        }
        state.queue.offer(&*self.ring, slot);
        Ok(())
    }

    /// Completes the work request that the device calls `id`, frees its slot, and returns the
    /// request.
    ///
    /// # Errors
    ///
    /// [`RingError::BadSlot`] and [`RingError::NotOutstanding`] if it is not outstanding.
    #[inline]
    pub(super) fn complete(&self, id: u64) -> Result<Posted, RingError> {
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

/// A QP that takes its receives from an SRQ, as the CQ knows it in which these complete.
pub(in crate::verbs) struct SharedSource {
    pub(in crate::verbs) srq: Arc<KernelSrq>,
    pub(in crate::verbs) client: Client,
}

/// A [`SharedSource`] that completes in a CQ, until this is dropped.
pub(in crate::verbs) struct AttachedShared {
    pub(in crate::verbs) source: Arc<SharedSource>,
    pub(super) cq: Arc<KernelCq>,
    pub(super) qpn: Qpn,
}

impl AttachedShared {
    /// Lets the receives of QP `qpn` complete in `cq`.
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
        })
    }
}

impl Drop for AttachedShared {
    fn drop(&mut self) {
        self.cq.detach_shared(self.qpn);
    }
}
