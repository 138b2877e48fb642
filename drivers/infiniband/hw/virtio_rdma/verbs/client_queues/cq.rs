// SPDX-License-Identifier: GPL-2.0

//! Completion queues that the kernel polls.
//!
//! Lock order: `KernelCq::state`, then the lock of a work queue or an SRQ. The consumer is called
//! with none of these locks held.

use super::{
    cq_backend::{
        AfterArm,
        CqBackend, //
    },
    qp::{
        FlushScope,
        WorkRing, //
    },
    srq::SharedSource, //
};
use crate::{
    abi::{
        ib::AsyncEvent,
        number::{
            Cqn,
            Qpn, //
        },
        ring::{
            ArmKind,
            Doorbell, //
        }, //
    },
    device::Device,
    event_handlers::EventHandler,
    rdma::{
        cq::CqConsumer,
        event::CqEvent,
        wc::Notify, //
    },
    transport::CqVirtqueue, //
};
use core::mem::replace;
use kernel::{
    device::{
        self,
        Bound, //
    },
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        new_spinlock_irq,
        Arc,
        SpinLockIrq, //
    }, //
};

/// The rule that a device has broken if its CQEs can't be taken.
pub(super) const INVALID_CQE: &str = "wrote an invalid CQE or position";

#[pin_data]
pub(in crate::verbs) struct KernelCq {
    device: Arc<Device>,
    consumer: CqConsumer,
    /// The virtqueue that holds the CQ in virtqueue mode.
    virtqueue: Option<Arc<CqVirtqueue>>,
    #[pin]
    pub(super) state: SpinLockIrq<State>,
}

/// The state of a CQ that administrators see.
pub(in crate::verbs) struct CqView {
    /// Positions of the producer and of the consumer.
    pub(in crate::verbs) positions: Option<(u32, u32)>,
    /// The kind of event that the consumer has requested and not yet received.
    pub(in crate::verbs) armed: ArmKind,
    /// Why the device adds no more completions.
    pub(in crate::verbs) lost: Option<&'static CStr>,
}

/// State of a CQ that its lock protects.
pub(super) struct State {
    cqn: Cqn,
    pub(super) backend: CqBackend,
    /// The work queues that complete into this CQ. Their indices never change, and are part of the
    /// ids of their work requests.
    pub(super) sources: KVec<Option<Arc<WorkRing>>>,
    /// The QPs that take receives from SRQs and complete them into this CQ, by QP number.
    pub(super) shared: RBTree<Qpn, Arc<SharedSource>>,
    /// The kind of event that the consumer has requested and not yet received.
    pub(super) armed: ArmKind,
    /// The device broke the rules of the CQ, so none of its CQEs are trusted; or the CQ is closed.
    pub(super) broken: bool,
    /// The device reported an overrun: it writes no more CQEs. Earlier CQEs are valid.
    overrun: bool,
}

impl KernelCq {
    /// A CQ that is not created on the device yet.
    pub(in crate::verbs) fn new(
        device: &Arc<Device>,
        backend: CqBackend,
        consumer: CqConsumer,
    ) -> Result<Arc<Self>> {
        let virtqueue = match &backend {
            CqBackend::Ring { .. } => None,
            CqBackend::Virtqueue { queue, .. } => Some(queue.clone()),
        };
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                consumer,
                virtqueue,
                state <- new_spinlock_irq!(
                    State {
                        cqn: Cqn::new(0),
                        backend,
                        sources: KVec::new(),
                        shared: RBTree::new(),
                        armed: ArmKind::None,
                        broken: false,
                        overrun: false,
                    },
                    "virtio_rdma::kernel_cq"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// Sets the number that the device gave the CQ.
    pub(in crate::verbs) fn set_number(&self, cqn: Cqn) {
        self.state.lock().cqn = cqn;
    }

    /// The state that administrators see.
    pub(in crate::verbs) fn view(&self) -> CqView {
        let state = self.state.lock();
        CqView {
            positions: state.backend.positions(),
            armed: state.armed,
            lost: match (state.broken, state.overrun) {
                (true, _) => Some(c"broken"),
                (false, true) => Some(c"overrun"),
                (false, false) => None,
            },
        }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Adds a work queue that completes into this CQ. Returns its index among the sources.
    pub(super) fn attach(&self, source: &Arc<WorkRing>) -> Result<u32> {
        let mut spare = KVec::new();
        loop {
            let mut state = self.state.lock();
            source.state.lock().is_cq_lost = state.is_lost();
            let sources = &mut state.sources;
            if let Some(index) = sources.iter().position(Option::is_none) {
                sources[index] = Some(source.clone());
                return Ok(u32::try_from(index)?);
            }
            let wanted = sources.len() + 1;
            if spare.capacity() >= wanted {
                // Moving the sources does not allocate, since `spare` has room for all of them.
                for source in sources.drain_all() {
                    let _ = spare.push_within_capacity(source);
                }
                let _ = spare.push_within_capacity(Some(source.clone()));
                *sources = spare;
                return Ok(u32::try_from(wanted - 1)?);
            }
            drop(state);
            spare = KVec::with_capacity(wanted.next_power_of_two(), GFP_KERNEL)?;
        }
    }

    /// Removes the work queue that [`attach`](Self::attach) added, after the device destroyed its
    /// QP, and invalidates its unpolled CQEs.
    pub(super) fn detach(&self, source_index: u32, qpn: Qpn) {
        self.purge(qpn);
        let detached = {
            let mut state = self.state.lock();
            usize::try_from(source_index)
                .ok()
                .and_then(|index| state.sources.get_mut(index))
                .and_then(Option::take)
        };
        // Dropped outside of the lock, since this may free the work queue's memory.
        drop(detached);
    }

    /// Adds QP `qpn`, whose receives come from an SRQ and complete into this CQ.
    ///
    /// # Errors
    ///
    /// `EIO` if the device assigned the number twice: the earlier QP keeps its entry.
    pub(super) fn attach_shared(&self, qpn: Qpn, source: &Arc<SharedSource>) -> Result {
        // Declared before the guard, so that an unused node is dropped without the lock.
        let node = RBTreeNode::new(qpn, source.clone(), GFP_KERNEL)?;
        let mut state = self.state.lock();
        if state.shared.get(&qpn).is_some() {
            return Err(EIO);
        }
        state.shared.insert(node);
        Ok(())
    }

    /// Removes the QP that [`attach_shared`](Self::attach_shared) added, after the device destroyed
    /// it.
    pub(super) fn detach_shared(&self, qpn: Qpn) {
        self.purge(qpn);
        let detached = self.state.lock().shared.remove_node(&qpn);
        // Dropped outside of the lock, since this may free the source's memory.
        drop(detached);
    }

    /// Invalidates the unpolled CQEs of a QP, so that polls skip them.
    pub(super) fn purge(&self, qpn: Qpn) {
        let has_broken = self.state.lock().kill(qpn);
        if has_broken {
            self.report_broken(INVALID_CQE);
        }
    }

    /// Calls the handler of an armed consumer without an event of the device. A work item calls the
    /// handler, since the caller may be a verb that itself runs in the handler.
    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        let is_armed = replace(&mut state.armed, ArmKind::None) != ArmKind::None;
        if is_armed {
            state.backend.event_received();
        }
        drop(state);
        if is_armed {
            self.consumer.notify_later();
        }
    }

    /// Wakes the consumer if its polls have to flush work requests: some were posted after the
    /// device stopped or the CQ was lost, or a QP of the CQ was stopped.
    pub(super) fn wake_to_flush(&self) {
        if self.state.lock().flush_scope(&self.device).is_some() {
            self.wake();
        }
    }

    /// Calls the consumer's handler later: a poll returned a completion for which no event comes,
    /// though the consumer has armed the CQ.
    #[cold]
    pub(super) fn notify_later(&self) {
        self.consumer.notify_later();
    }

    /// Arms the CQ. Returns whether the consumer should poll again, because completions may be
    /// waiting that no event will report (`IB_CQ_REPORT_MISSED_EVENTS`).
    pub(super) fn arm(&self, bus: &device::Device<Bound>, notify: Notify) -> bool {
        let kind = if notify.solicited_only {
            ArmKind::Solicited
        } else {
            ArmKind::Next
        };
        let mut state = self.state.lock();
        // A request for any completion is not narrowed to solicited ones: another thread may wait
        // for an unsolicited completion.
        let is_armed = state.armed == ArmKind::Next || state.armed == kind;
        if !is_armed {
            state.armed = kind;
        }
        // Read with the lock held: if the device stops later, the CQ is found armed, and the
        // consumer is woken.
        let has_stopped = self.device.has_stopped();
        let has_work = state.has_to_flush(&self.device);
        // A broken CQ yields no more completions, whatever its memory contains.
        let after = if state.broken {
            AfterArm::Nothing
        } else {
            let report_missed = notify.report_missed || has_stopped && self.virtqueue.is_some();
            state.backend.arm(kind, is_armed, report_missed)
        };
        let (armed, cqn) = (state.armed, state.cqn);
        drop(state);
        if has_stopped {
            return self.armed_stopped(after, has_work, notify.report_missed);
        }
        if has_work {
            // The device reports no event for work requests that polls have to flush.
            self.wake();
            return notify.report_missed;
        }
        match after {
            AfterArm::Nothing => false,
            AfterArm::Missed => true,
            AfterArm::Tell { missed } => {
                match &self.virtqueue {
                    Some(virtqueue) => virtqueue.arm(armed),
                    None => {
                        self.device.ring(bus, Doorbell::Cq(cqn));
                    }
                }
                missed
            }
            AfterArm::Fire => {
                self.wake();
                notify.report_missed
            }
        }
    }

    /// The CQ of a stopped device was armed. No event will come, so the consumer is woken at once
    /// if a poll would find something: work requests to flush, or completions that the device wrote
    /// before. Else the CQ stays armed until work is posted: a consumer that is woken without a
    /// completion could arm again and again.
    #[cold]
    fn armed_stopped(&self, after: AfterArm, has_work: bool, report_missed: bool) -> bool {
        let (is_missed, is_due) = match after {
            AfterArm::Nothing => (false, false),
            AfterArm::Missed => (true, !report_missed),
            // A working device would now be notified, and might find completions in the ring that
            // `missed` does not count. Here the consumer is woken instead.
            AfterArm::Tell { missed } => (missed, missed || self.virtqueue.is_none()),
            AfterArm::Fire => (true, true),
        };
        if is_due || has_work {
            self.wake();
        }
        report_missed && (is_missed || has_work)
    }

    /// Begins the CQ's destruction: CQEs that the device still writes are ignored.
    pub(in crate::verbs) fn close(&self) {
        self.state.lock().broken = true;
    }

    /// Reports that the device broke the CQ's rules. The caller has set `broken`: no more CQEs are
    /// taken from the CQ.
    pub(super) fn report_broken(&self, why: &str) {
        let cqn = self.state.lock().cqn;
        dev_err!(
            self.device.as_device(),
            "CQ {} is lost: the device {}; its work requests are flushed once their QP is in ERR\n",
            cqn.get(),
            why
        );
        self.lost();
    }

    /// Reports the CQ as lost: no more completions will arrive. The consumer is woken to flush
    /// outstanding work requests of QPs in ERR.
    fn lost(&self) {
        {
            let state = self.state.lock();
            for work in state.sources.iter().flatten() {
                work.state.lock().is_cq_lost = true;
            }
        }
        self.consumer.event(CqEvent::Error);
        self.wake();
    }
}

impl State {
    /// Whether the device adds no more completions.
    fn is_lost(&self) -> bool {
        self.broken || self.overrun
    }

    /// The work requests that polls of this CQ have to flush, as `device` does not complete them.
    pub(super) fn flush_scope(&self, device: &Device) -> Option<FlushScope> {
        if device.has_stopped() {
            Some(FlushScope::All)
        } else if self.is_lost() {
            Some(FlushScope::Stopped)
        } else {
            None
        }
    }

    /// Whether polls have work requests to flush.
    fn has_to_flush(&self, device: &Device) -> bool {
        let mut works = self.sources.iter().flatten();
        self.flush_scope(device)
            .is_some_and(|scope| works.any(|work| work.state.lock().has_to_flush(scope)))
    }

    /// Marks the unpolled CQEs of QP `qpn`, so that polls skip them, and frees the SRQ slots that
    /// they complete. Returns whether the device was found to have broken the rules of the CQ.
    fn kill(&mut self, qpn: Qpn) -> bool {
        let source = self.shared.get(&qpn);
        let killed = self.backend.kill(qpn, |cqe| {
            if let (true, Some(source)) = (cqe.is_receive(), source) {
                // Fails, and frees nothing, if the device completes a receive that is not
                // outstanding.
                let _ = source.srq.complete(cqe.wr_id);
            }
        });
        killed.is_err() && !replace(&mut self.broken, true)
    }
}

impl EventHandler for KernelCq {
    fn object(&self) -> &'static CStr {
        c"CQ"
    }

    fn completion(&self) {
        {
            let mut state = self.state.lock();
            // A CQ that was never armed may have no consumer yet.
            if state.armed == ArmKind::None {
                return;
            }
            state.armed = ArmKind::None;
            state.backend.event_received();
        }
        self.consumer.notify();
    }

    /// Wakes the consumer, whose polls flush the outstanding work requests.
    fn stopped(&self) {
        // `wake` leaves the handler to a work item: the task that found that the device has stopped
        // may run a verb.
        self.wake();
    }

    /// Treats the CQ as broken: without interrupts the consumer would wait for ever.
    fn arming_refused(&self) {
        if !replace(&mut self.state.lock().broken, true) {
            self.report_broken("refused to arm it");
        }
    }

    fn async_event(&self, event: AsyncEvent) {
        if event == AsyncEvent::CqErr {
            self.state.lock().overrun = true;
            self.lost();
        }
    }
}
