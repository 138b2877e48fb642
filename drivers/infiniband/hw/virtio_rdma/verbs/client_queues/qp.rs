// SPDX-License-Identifier: GPL-2.0

//! Queue pairs that the kernel posts to, and their outstanding work requests.
//!
//! Lock order: the lock of a CQ, then `WorkRing::state`.

use super::{
    cq::KernelCq,
    ring::KernelRing,
    srq::AttachedShared,
    work_backend::WorkBackend,
    wqe::Wqe, //
};
use crate::{
    abi::{
        number::Qpn,
        ring::{
            Doorbell,
            DoorbellKind, //
        }, //
    },
    decode::completion::{
        self,
        Service, //
    },
    device::Device,
    rdma::qp::QpConsumer,
    transport::{
        Leasable,
        WorkVirtqueue, //
    }, //
};
use kernel::{
    device::{
        self,
        Bound, //
    },
    prelude::*,
    sync::{
        new_spinlock_irq,
        Arc,
        SpinLockIrq, //
    }, //
};

/// The memory of a send or receive queue.
#[derive(Clone)]
pub(in crate::verbs) enum Backing {
    Ring {
        /// The ring, which has to exist while the device accesses it.
        _ring: Arc<KernelRing>,
    },
    /// A virtqueue of the transport.
    Virtqueue(Arc<WorkVirtqueue>),
}

/// Receiver of the completions of a QP.
#[derive(Clone)]
pub(in crate::verbs) struct Client {
    pub(in crate::verbs) consumer: QpConsumer,
    pub(in crate::verbs) service: Service,
    /// Whether completions are for a process, to which uverbs copies them, and not for a client in
    /// the kernel.
    pub(in crate::verbs) is_process: bool,
}

/// A send or receive queue.
#[pin_data]
pub(in crate::verbs) struct WorkRing {
    pub(in crate::verbs) backing: Backing,
    pub(super) client: Client,
    pub(super) kind: DoorbellKind,
    #[pin]
    pub(super) state: SpinLockIrq<WorkState>,
}

/// An outstanding work request.
#[derive(Clone, Copy, Default)]
pub(super) struct OutstandingWr {
    /// The id that the client gave the work request.
    pub(super) wr_id: u64,
    /// Total length of the work request's SGEs in bytes.
    pub(super) length: u32,
}

/// State of a work queue that its lock protects.
pub(super) struct WorkState {
    /// The QPN, once the device assigned it.
    pub(super) qpn: Qpn,
    pub(super) backend: WorkBackend,
    /// Outstanding work requests by slot. The device gets their positions instead of the clients'
    /// ids.
    posted: KVVec<OutstandingWr>,
    /// Position of the oldest outstanding work request, if there is one.
    oldest: u32,
    /// Index of the queue among the sources of its CQ.
    source_index: u32,
    /// The device has confirmed that the QP is in ERR: it accesses no memory for the queue's work
    /// requests.
    is_stopped: bool,
    /// The CQ gets no more completions, so each post has to wake its consumer.
    pub(super) is_cq_lost: bool,
}

/// Work requests that a poll flushes because the device will not complete them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FlushScope {
    /// All work requests: the device has stopped.
    All,
    /// Work requests of QPs in ERR: the CQ is lost, but the device may still execute work requests
    /// of other QPs.
    Stopped,
}

impl WorkRing {
    /// A queue in a ring, before its QP is created on the device.
    pub(in crate::verbs) fn in_ring(
        ring: Arc<KernelRing>,
        kind: DoorbellKind,
        client: Client,
    ) -> Result<Arc<Self>> {
        let slots = usize::try_from(ring.layout().slots())?;
        let backend = WorkBackend::ring(ring.clone());
        Self::new(Backing::Ring { _ring: ring }, backend, slots, kind, client)
    }

    /// A queue in a virtqueue, with `slots` slots, a power of two, of `size` bytes each.
    pub(in crate::verbs) fn in_virtqueue(
        queue: &Arc<WorkVirtqueue>,
        slots: u32,
        size: usize,
        kind: DoorbellKind,
        client: Client,
    ) -> Result<Arc<Self>> {
        let backend = WorkBackend::virtqueue(queue.clone(), slots, size)?;
        let backing = Backing::Virtqueue(queue.clone());
        Self::new(backing, backend, usize::try_from(slots)?, kind, client)
    }

    /// A queue of `slots` slots, a power of two.
    fn new(
        backing: Backing,
        backend: WorkBackend,
        slots: usize,
        kind: DoorbellKind,
        client: Client,
    ) -> Result<Arc<Self>> {
        let posted = KVVec::from_elem(OutstandingWr::default(), slots, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                backing,
                client,
                kind,
                state <- new_spinlock_irq!(
                    WorkState {
                        qpn: Qpn::NONE,
                        backend,
                        posted,
                        oldest: 0,
                        source_index: 0,
                        is_stopped: false,
                        is_cq_lost: false,
                    },
                    "virtio_rdma::kernel_qp"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// The number of the QP.
    #[inline]
    pub(super) fn number(&self) -> Qpn {
        self.state.lock().qpn
    }

    /// Sets the number that the device gave the QP.
    pub(in crate::verbs) fn set_number(&self, qpn: Qpn) {
        self.state.lock().qpn = qpn;
    }

    /// Positions of the producer and of the oldest outstanding work request.
    pub(in crate::verbs) fn positions(&self) -> (u32, u32) {
        self.state.lock().backend.positions()
    }

    /// Notifies the device of new work requests of QP `qpn`.
    #[inline]
    pub(super) fn notify(&self, device: &Device, bus: &device::Device<Bound>, qpn: Qpn) {
        match &self.backing {
            Backing::Ring { .. } => {
                let doorbell = match self.kind {
                    DoorbellKind::Sq => Doorbell::Sq(qpn),
                    _ => Doorbell::Rq(qpn),
                };
                device.ring(bus, doorbell);
            }
            Backing::Virtqueue(queue) => queue.elements().kick(),
        }
    }

    /// Frees all slots: the QP is in RESET, so its work requests do not complete.
    fn reset(&self) {
        let mut state = self.state.lock();
        state.oldest = state.backend.reset();
        state.is_stopped = false;
    }
}

impl WorkState {
    /// The index of the slot at `position`; the number of slots is a power of two.
    #[inline]
    fn slot(&self, position: u32) -> usize {
        position as usize & self.posted.len().wrapping_sub(1)
    }

    /// Posts the work request `wr_id` to the next slot. `build` writes the WQE, with the id for the
    /// device, and returns the WQE's length.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full; the errors of `build`.
    #[inline]
    pub(super) fn post(
        &mut self,
        wr_id: u64,
        build: impl FnOnce(u64, &mut Wqe<'_>) -> Result<usize>,
    ) -> Result {
        let source_index = self.source_index;
        let mut length = 0;
        let position = self.backend.post(|position, wqe| {
            let size = build(completion::wr_id(source_index, position), wqe)?;
            length = wqe.length();
            Ok(size)
        })?;
        self.note(position, OutstandingWr { wr_id, length });
        Ok(())
    }

    /// Posts the work request `wr_id` on a stopped device, without a virtqueue element, since the
    /// device never gives elements back. A poll flushes the work request.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full.
    #[cold]
    pub(super) fn post_unseen(&mut self, wr_id: u64) -> Result {
        let position = self.backend.post_unseen()?;
        self.note(position, OutstandingWr { wr_id, length: 0 });
        Ok(())
    }

    #[inline]
    fn note(&mut self, position: u32, posted: OutstandingWr) {
        let slot = self.slot(position);
        if let Some(entry) = self.posted.get_mut(slot) {
            *entry = posted;
        }
    }

    /// Completes the work request at `position` and frees the slots up to it. If `accept` fails, no
    /// slot is freed, and the work request stays outstanding until a poll flushes the queue.
    /// Returns the result of `accept`.
    ///
    /// # Errors
    ///
    /// `EIO` if the work request is not outstanding; the errors of `accept`.
    #[inline]
    pub(super) fn complete<R>(
        &mut self,
        position: u32,
        accept: impl FnOnce(&OutstandingWr) -> Result<R>,
    ) -> Result<R> {
        if !self.backend.is_outstanding(position) {
            return Err(EIO);
        }
        let posted = self.posted.get(self.slot(position)).ok_or(EIO)?;
        let accepted = accept(posted)?;
        self.backend.complete(position).map_err(|_| EIO)?;
        self.oldest = position.wrapping_add(1);
        Ok(accepted)
    }

    /// Whether the queue has work requests to flush.
    pub(super) fn has_to_flush(&self, scope: FlushScope) -> bool {
        (scope == FlushScope::All || self.is_stopped) && self.backend.has_outstanding()
    }

    /// Takes out the oldest work request to flush, if there is one.
    pub(super) fn flush_one(&mut self, scope: FlushScope) -> Option<OutstandingWr> {
        if !self.has_to_flush(scope) {
            return None;
        }
        self.complete(self.oldest, |posted| Ok(*posted)).ok()
    }
}

/// The queues of a QP of the kernel, attached to their CQs. Dropping it detaches the queues; the
/// owner does so after the device destroyed the QP, or calls [`keep_attached`](Self::keep_attached)
/// before.
#[derive(Default)]
pub(in crate::verbs) struct KernelQp {
    pub(in crate::verbs) send: Option<Attached>,
    pub(in crate::verbs) recv: Option<Attached>,
    /// The SRQ from which the QP takes its receives, in place of `recv`; `None` if it has no SRQ.
    pub(in crate::verbs) shared: Option<AttachedShared>,
}

impl KernelQp {
    fn attached(&self) -> impl Iterator<Item = &Attached> {
        [&self.send, &self.recv].into_iter().flatten()
    }

    /// Leaves the queues attached to their CQs when this is dropped, until the CQs are destroyed:
    /// the device did not confirm that it destroyed the QP, so it may still complete work requests
    /// of the QP. The CQs would take a CQE of an unknown QP for a broken rule. The completions are
    /// dropped, since the QP has no consumer any more.
    pub(in crate::verbs) fn keep_attached(&mut self) {
        for queue in [&mut self.send, &mut self.recv].into_iter().flatten() {
            queue.stays = true;
        }
        if let Some(shared) = &mut self.shared {
            shared.stays = true;
        }
    }

    /// Records that the device has confirmed the QP's state ERR.
    pub(in crate::verbs) fn stop(&self) {
        for queue in self.attached() {
            queue.work.state.lock().is_stopped = true;
            queue.cq.wake_to_flush();
        }
    }

    /// Frees all slots and invalidates the CQEs of their work requests, since the QP is in RESET.
    pub(in crate::verbs) fn reset(&self) {
        for queue in self.attached() {
            queue.cq.purge(queue.work.number());
            queue.work.reset();
        }
        if let Some(shared) = &self.shared {
            shared.cq.purge(shared.qpn);
        }
    }
}

/// A work queue that is attached to the CQ into which it completes. Dropping it detaches the queue,
/// unless it stays.
pub(in crate::verbs) struct Attached {
    pub(in crate::verbs) work: Arc<WorkRing>,
    pub(super) cq: Arc<KernelCq>,
    source_index: u32,
    /// See [`KernelQp::keep_attached`].
    stays: bool,
}

impl Attached {
    /// Attaches `work` to `cq`.
    pub(in crate::verbs) fn new(work: Arc<WorkRing>, cq: &Arc<KernelCq>) -> Result<Self> {
        let source_index = cq.attach(&work)?;
        work.state.lock().source_index = source_index;
        Ok(Self {
            work,
            cq: cq.clone(),
            source_index,
            stays: false,
        })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.stays {
            self.cq.detach(self.source_index, self.work.number());
        }
    }
}
