// SPDX-License-Identifier: GPL-2.0

//! Completion queues that the kernel polls.
//!
//! Lock order: `KernelCq::state`, then that of a work queue. The consumer is called with neither.

use super::{
    kernel_qp::WorkRing,
    ring::KernelRing, //
};
use crate::{
    abi::{
        cqe::Cqe,
        ib::AsyncEvent,
        ring::{
            ArmKind,
            Doorbell,
            DoorbellKind, //
        }, //
    },
    device::Device,
    rdma::{
        cq::CqConsumer,
        event::CqEvent,
        work_completion::Notify, //
    },
    ring::{
        Armed,
        CompletionQueue,
        RingMemory, //
    },
    targets::EventTarget, //
};
use core::mem::replace;
use kernel::{
    prelude::*,
    sync::{
        new_spinlock_irq,
        Arc,
        SpinLockIrq, //
    }, //
};

/// A CQ of the kernel.
#[pin_data]
pub(super) struct KernelCq {
    device: Arc<Device>,
    ring: Arc<KernelRing>,
    consumer: CqConsumer,
    #[pin]
    pub(super) state: SpinLockIrq<State>,
}

/// What the lock of a CQ protects.
pub(super) struct State {
    number: u32,
    pub(super) queue: CompletionQueue,
    /// The work queues that complete here. Their places do not change, and are in the ids of their work requests.
    pub(super) sources: KVec<Option<Arc<WorkRing>>>,
    /// Whether the consumer asked for an event that did not come yet.
    armed: bool,
    /// The device broke the rules of the ring: nothing in it is to be trusted.
    pub(super) broken: bool,
}

impl KernelCq {
    /// A CQ that the device does not know yet.
    pub(super) fn new(
        device: &Arc<Device>,
        ring: Arc<KernelRing>,
        consumer: CqConsumer,
    ) -> Result<Arc<Self>> {
        let queue = CompletionQueue::new(*ring.layout(), &*ring);
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                ring,
                consumer,
                state <- new_spinlock_irq!(
                    State {
                        number: 0,
                        queue,
                        sources: KVec::new(),
                        armed: false,
                        broken: false,
                    },
                    "virtio_rdma::kernel_cq"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// The device gave the CQ its handle.
    pub(super) fn set_number(&self, number: u32) {
        self.state.lock().number = number;
    }

    /// The device that it belongs to.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Its memory.
    pub(super) fn ring(&self) -> &Arc<KernelRing> {
        &self.ring
    }

    /// The consumer.
    pub(super) fn consumer(&self) -> &CqConsumer {
        &self.consumer
    }

    /// Lets `source` complete here, and returns its place.
    pub(super) fn attach(&self, source: &Arc<WorkRing>) -> Result<u32> {
        let mut spare = KVec::new();
        loop {
            let mut state = self.state.lock();
            let sources = &mut state.sources;
            if let Some(place) = sources.iter().position(Option::is_none) {
                sources[place] = Some(source.clone());
                return Ok(u32::try_from(place)?);
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

    /// Ends what [`attach`](Self::attach) began, after the device gave `source` up: its CQEs that were not polled are
    /// killed.
    pub(super) fn detach(&self, place: u32, number: u32) {
        let detached = {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            kill(state, &self.ring, number);
            usize::try_from(place)
                .ok()
                .and_then(|place| state.sources.get_mut(place))
                .and_then(Option::take)
        };
        // Not with the lock held: its memory may go with it.
        drop(detached);
    }

    /// Kills the CQEs of a QP that were not polled.
    pub(super) fn purge(&self, number: u32) {
        kill(&mut self.state.lock(), &self.ring, number);
    }

    /// Wakes a consumer that waits, after work was posted that will be flushed.
    pub(super) fn wake(&self) {
        let armed = replace(&mut self.state.lock().armed, false);
        if armed {
            self.consumer.notify_later();
        }
    }

    /// Asks for an event. Returns whether completions wait that the consumer wants to hear of.
    pub(super) fn arm(&self, notify: Notify) -> bool {
        let kind = if notify.solicited_only {
            ArmKind::Solicited
        } else {
            ArmKind::Next
        };
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.armed = true;
        let armed = state.queue.arm(&*self.ring, kind, notify.report_missed);
        let number = state.number;
        drop(guard);
        if self.device.is_dead() {
            // No event will come, but flushed work may wait.
            self.wake();
            return false;
        }
        match armed {
            Armed::Waiting => false,
            Armed::Missed => true,
            Armed::RingDoorbell => {
                let kind = DoorbellKind::Cq;
                self.device
                    .doorbells()
                    .ring(Doorbell { kind, number }.to_u32());
                false
            }
        }
    }
}

/// Overwrites the CQEs of QP `number` that were not polled with some that polling skips.
fn kill(state: &mut State, ring: &KernelRing, number: u32) {
    let layout = *ring.layout();
    let visited = state.queue.for_each_unpolled(ring, |completion| {
        let slot = layout.slot(completion.slot);
        let mut bytes = [0; Cqe::SIZE];
        ring.read(slot, &mut bytes);
        let mut cqe = Cqe::from_bytes(&bytes);
        if cqe.qp_num == number {
            cqe.qp_num = 0;
            ring.write(slot, &cqe.to_bytes());
        }
    });
    state.broken |= visited.is_err();
}

impl EventTarget for KernelCq {
    fn completion(&self) {
        {
            let mut state = self.state.lock();
            // The consumer of a CQ that was never armed may not be there yet.
            if !state.armed {
                return;
            }
            state.armed = false;
            state.queue.event_received();
        }
        self.consumer.notify();
    }

    /// What is outstanding is flushed when it is polled.
    fn died(&self) {
        self.completion();
    }

    fn async_event(&self, event: AsyncEvent) {
        if event == AsyncEvent::CqErr {
            self.consumer.event(CqEvent::Error);
        }
    }
}
