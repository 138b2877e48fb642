// SPDX-License-Identifier: GPL-2.0

//! Completion queues that the kernel polls.
//!
//! Lock order: `KernelCq::state`, then that of a work queue or an SRQ. The consumer is called with
//! neither.

use super::{
    cq_backend::{
        AfterArm,
        CqBackend, //
    },
    qp::{
        Left,
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
    rdma::{
        cq::CqConsumer,
        event::CqEvent,
        wc::Notify, //
    },
    targets::EventTarget,
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

/// A CQ of the kernel.
#[pin_data]
pub(in crate::verbs) struct KernelCq {
    device: Arc<Device>,
    consumer: CqConsumer,
    /// The virtqueue, of a CQ that lies in one.
    virtqueue: Option<Arc<CqVirtqueue>>,
    #[pin]
    pub(super) state: SpinLockIrq<State>,
}

/// State under the lock of a CQ.
pub(super) struct State {
    cqn: Cqn,
    pub(super) backend: CqBackend,
    /// The work queues that complete here. Their indices do not change, and are in the ids of
    /// their work requests.
    pub(super) sources: KVec<Option<Arc<WorkRing>>>,
    /// QPs whose receives come from SRQs and complete here, by their numbers.
    pub(super) shared: RBTree<Qpn, Arc<SharedSource>>,
    /// The consumer's request that no event has met yet.
    pub(super) armed: ArmKind,
    /// The device broke the rules of the CQ, of which nothing is to be trusted, or the CQ is
    /// closed.
    pub(super) broken: bool,
    /// The device said that it completes no more work here. CQEs that it wrote before are good.
    is_overrun: bool,
}

impl KernelCq {
    /// A CQ that the device does not know yet.
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
                        is_overrun: false,
                    },
                    "virtio_rdma::kernel_cq"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// The device gave the CQ its handle.
    pub(in crate::verbs) fn set_number(&self, cqn: Cqn) {
        self.state.lock().cqn = cqn;
    }

    /// The device that it belongs to.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Lets `source` complete here, and returns its index among the sources.
    pub(super) fn attach(&self, source: &Arc<WorkRing>) -> Result<u32> {
        let mut spare = KVec::new();
        loop {
            let mut state = self.state.lock();
            let sources = &mut state.sources;
            if let Some(index) = sources.iter().position(Option::is_none) {
                sources[index] = Some(source.clone());
                return Ok(u32::try_from(index)?);
            }
            let wanted = sources.len() + 1;
            if spare.capacity() >= wanted {
                // Moving does not allocate: there is room for all of them.
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

    /// Ends what [`attach`](Self::attach) began, after the device gave `source` up: its CQEs that
    /// were not polled are killed.
    pub(super) fn detach(&self, source_index: u32, qpn: Qpn) {
        self.purge(qpn);
        let detached = {
            let mut state = self.state.lock();
            usize::try_from(source_index)
                .ok()
                .and_then(|index| state.sources.get_mut(index))
                .and_then(Option::take)
        };
        // Not with the lock held: its memory may go with it.
        drop(detached);
    }

    /// Lets the receives of QP `qpn` complete here, which come from an SRQ.
    pub(super) fn attach_shared(&self, qpn: Qpn, source: &Arc<SharedSource>) -> Result {
        let node = RBTreeNode::new(qpn, source.clone(), GFP_KERNEL)?;
        let before = self.state.lock().shared.insert(node);
        // The device gave one number to two QPs. Not with the lock held: its memory may go with it.
        before.map_or(Ok(()), |_| Err(EIO))
    }

    /// Ends what [`attach_shared`](Self::attach_shared) began, after the device gave the QP up.
    pub(super) fn detach_shared(&self, qpn: Qpn) {
        self.purge(qpn);
        let detached = self.state.lock().shared.remove_node(&qpn);
        // Not with the lock held: its memory may go with it.
        drop(detached);
    }

    /// Kills the CQEs of a QP that were not polled.
    pub(super) fn purge(&self, qpn: Qpn) {
        let has_broken = self.state.lock().kill(qpn);
        if has_broken {
            self.broke();
        }
    }

    /// Wakes a consumer that waits, without an event of the device. Called by verbs, which may run
    /// in the consumer's handler: so it is woken by a work item.
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

    /// Work requests were posted to a QP of the CQ, or the QP was stopped. Wakes a consumer that
    /// has to flush them.
    pub(super) fn posted(&self) {
        // While the CQ works, there is nothing to flush: its consumer would find nothing.
        if self.device.has_losses() && self.state.lock().left(&self.device).is_some() {
            self.wake();
        }
    }

    /// A completion was polled that the consumer, which waits for one, would not be told of.
    #[cold]
    pub(super) fn due(&self) {
        self.consumer.notify_later();
    }

    /// Asks for an event. Returns whether completions wait that the consumer wants to hear of.
    pub(super) fn arm(&self, bus: &device::Device<Bound>, notify: Notify) -> bool {
        let kind = if notify.solicited_only {
            ArmKind::Solicited
        } else {
            ArmKind::Next
        };
        let mut state = self.state.lock();
        // Another thread may sleep for any completion: its wish is not narrowed.
        let is_armed = state.armed == ArmKind::Next || state.armed == kind;
        if !is_armed {
            state.armed = kind;
        }
        // Looked at with the lock held: a device that dies later finds the CQ armed and wakes the
        // consumer.
        let is_dead = self.device.is_dead();
        let has_work = state.has_left(&self.device);
        // A broken CQ completes nothing more, whatever its memory says.
        let after = if state.broken {
            AfterArm::Nothing
        } else {
            let report_missed = notify.report_missed || is_dead && self.virtqueue.is_some();
            state.backend.arm(kind, is_armed, report_missed)
        };
        let (armed, cqn) = (state.armed, state.cqn);
        drop(state);
        if is_dead {
            return self.armed_dead(after, has_work, notify.report_missed);
        }
        if has_work {
            // No event will come of them.
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

    /// The CQ of a dead device was armed. No event will come, so the consumer is woken at once if a
    /// poll would find something: work to be flushed, or completions that the device left. Else it
    /// stays armed until work is posted: waking it for nothing would let it arm again without end.
    #[cold]
    fn armed_dead(&self, after: AfterArm, has_work: bool, report_missed: bool) -> bool {
        let (is_missed, is_due) = match after {
            AfterArm::Nothing => (false, false),
            AfterArm::Missed => (true, !report_missed),
            // The device of a ring would find completions that the consumer has not looked for.
            AfterArm::Tell { missed } => (missed, missed || self.virtqueue.is_none()),
            AfterArm::Fire => (true, true),
        };
        if is_due || has_work {
            self.wake();
        }
        report_missed && (is_missed || has_work)
    }

    /// The CQ is being destroyed: what the device still says of it does not count.
    pub(in crate::verbs) fn close(&self) {
        self.state.lock().broken = true;
    }

    /// The device broke the CQ's rules: nothing more is taken from it.
    pub(super) fn broke(&self) {
        dev_err!(
            self.device.as_device(),
            "the device broke a CQ, which completes no more work\n"
        );
        self.lost();
    }

    /// No more completions come: the consumer flushes what is left of QPs that are in ERR.
    fn lost(&self) {
        self.device.ctrl().note_loss();
        self.consumer.event(CqEvent::Error);
        self.wake();
    }
}

impl State {
    /// Work requests that polls of this CQ flush, since `device` completes no more here.
    pub(super) fn left(&self, device: &Device) -> Option<Left> {
        if device.is_dead() {
            Some(Left::All)
        } else if self.broken || self.is_overrun {
            Some(Left::Stopped)
        } else {
            None
        }
    }

    /// Whether there are such work requests.
    fn has_left(&self, device: &Device) -> bool {
        let mut works = self.sources.iter().flatten();
        self.left(device)
            .is_some_and(|left| works.any(|work| work.state.lock().has_left(left)))
    }

    /// Kills the CQEs of QP `qpn` that were not polled: polling skips them. Slots of its SRQ are
    /// free then. Returns whether the device broke the rules of the CQ, which was not known.
    fn kill(&mut self, qpn: Qpn) -> bool {
        let source = self.shared.get(&qpn);
        let killed = self.backend.kill(qpn, |cqe| {
            if let (true, Some(source)) = (cqe.is_receive(), source) {
                // A completion that is not outstanding comes from a device that breaks the rules,
                // and frees nothing.
                let _ = source.srq.complete(cqe.wr_id);
            }
        });
        killed.is_err() && !replace(&mut self.broken, true)
    }
}

impl EventTarget for KernelCq {
    fn completion(&self) {
        {
            let mut state = self.state.lock();
            // The consumer of a CQ that was never armed may not be there yet.
            if state.armed == ArmKind::None {
                return;
            }
            state.armed = ArmKind::None;
            state.backend.event_received();
        }
        self.consumer.notify();
    }

    /// Outstanding work is flushed when it is polled.
    fn died(&self) {
        // The task that found the device dead may run a verb.
        self.wake();
    }

    /// No interrupt will come, so a consumer would wait without end.
    fn arming_refused(&self) {
        if !replace(&mut self.state.lock().broken, true) {
            self.broke();
        }
    }

    fn async_event(&self, event: AsyncEvent) {
        if event == AsyncEvent::CqErr {
            self.state.lock().is_overrun = true;
            self.lost();
        }
    }
}
