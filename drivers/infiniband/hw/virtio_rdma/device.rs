// SPDX-License-Identifier: GPL-2.0

//! What all parts of the driver share of a device.

use crate::{
    abi::{
        event::FIRST_EVENT_QUEUE,
        ring::Doorbell, //
    },
    ctrl::ControlQueue,
    doorbell::Doorbells,
    events::EventQueue,
    graveyard::Graveyard,
    limits::Limits,
    sync::{
        Periodic,
        Tick, //
    },
    targets::EventTargets,
    virtio::{
        self,
        Handler,
        Reset, //
    },
};
use kernel::{
    device,
    device::Bound,
    prelude::*,
    str::CString,
    sync::{
        aref::ARef,
        Arc, //
    },
    time::Msecs, //
};

/// How often a device is looked at that has nothing to do for the kernel.
const WATCH_MS: Msecs = 5_000;

/// Looks whether the device is still there.
pub(crate) struct Watch(Arc<ControlQueue>);

impl Tick for Watch {
    fn tick(&self) -> bool {
        self.0.look()
    }
}

/// A device.
#[pin_data]
pub(crate) struct Device {
    dev: ARef<virtio::Device>,
    limits: Limits,
    ctrl: Arc<ControlQueue>,
    event_queues: KVec<Arc<EventQueue>>,
    targets: Arc<EventTargets>,
    doorbells: Arc<Doorbells>,
    #[pin]
    graveyard: Graveyard,
}

impl Device {
    /// Sets the device up: its configuration is read, its queues are found and ready.
    pub(crate) fn new(dev: &virtio::Device<device::Core<'_>>) -> Result<Arc<Self>> {
        let bound: &virtio::Device<Bound> = dev;
        let limits = Limits::read(bound)?;
        let doorbells = Doorbells::new(bound, &limits)?;
        let targets = EventTargets::new(usize::try_from(
            limits.rings.max_cq.saturating_add(limits.rings.max_qp),
        )?)?;
        let ctrl = ControlQueue::new(dev.as_ref(), targets.clone())?;

        let count = usize::try_from(limits.rings.num_event_queues)?;
        let mut event_queues = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut queues = KVec::with_capacity(1 + count, GFP_KERNEL)?;
        let handler: Arc<dyn Handler> = ctrl.clone();
        queues.push((CString::try_from(c"control")?, handler), GFP_KERNEL)?;
        for index in 0..count {
            let queue = EventQueue::new(targets.clone())?;
            let name = CString::try_from_fmt(fmt!("event.{index}"))?;
            let handler: Arc<dyn Handler> = queue.clone();
            queues.push((name, handler), GFP_KERNEL)?;
            event_queues.push(queue, GFP_KERNEL)?;
        }

        let this = Arc::pin_init(
            pin_init!(Self {
                dev: dev.into(),
                limits,
                ctrl,
                event_queues,
                targets,
                doorbells,
                graveyard <- Graveyard::new(),
            }),
            GFP_KERNEL,
        )?;
        dev.find_queues(queues)
            .inspect_err(|error| dev_err!(dev.as_ref(), "cannot find the queues: {:?}\n", error))?;
        for queue in &this.event_queues {
            queue.fill()?;
        }
        dev.ready()?;
        for queue in &this.event_queues {
            queue.start();
        }
        Ok(this)
    }

    /// Resets the device, after which it is dead, and takes its queues down.
    pub(crate) fn shut_down(&self, dev: &virtio::Device<device::Core<'_>>) -> Reset {
        let reset = dev.remove_queues();
        self.ctrl.mark_dead();
        self.graveyard.clear(dev.as_ref(), reset);
        reset
    }

    /// The device on its bus, for messages.
    pub(crate) fn as_device(&self) -> &device::Device {
        (*self.dev).as_ref()
    }

    /// What it can do.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Watches the device: one that dies while no command runs would let everybody wait who waits
    /// for completions.
    pub(crate) fn watch(&self) -> impl PinInit<Periodic<Watch>> {
        Periodic::new(WATCH_MS, Watch(self.ctrl.clone()))
    }

    /// The control queue.
    pub(crate) fn ctrl(&self) -> &ControlQueue {
        &self.ctrl
    }

    /// Whether the device is dead: nothing that is outstanding will be answered.
    pub(crate) fn is_dead(&self) -> bool {
        self.ctrl.is_dead()
    }

    /// Who is told of events.
    pub(crate) fn targets(&self) -> &Arc<EventTargets> {
        &self.targets
    }

    /// Rings a queue of the kernel.
    #[inline]
    pub(crate) fn ring(&self, doorbell: Doorbell) {
        self.doorbells.ring(doorbell.to_u32());
    }

    /// The doorbell pages.
    pub(crate) fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }

    /// The number of completion vectors: each is an event queue.
    pub(crate) fn comp_vectors(&self) -> u32 {
        self.limits.rings.num_event_queues
    }

    /// The event queue of a completion vector, as CREATE_CQ takes it.
    pub(crate) fn event_queue(&self, vector: u32) -> u32 {
        // Never zero, but where the compiler cannot know it, it leaves a panic behind.
        let index = vector.checked_rem(self.comp_vectors()).unwrap_or(0);
        u32::from(FIRST_EVENT_QUEUE) + index
    }

    /// Keeps what the device may still use after it left its destruction unanswered.
    pub(crate) fn bury<T: Send + 'static>(&self, remains: T) {
        self.graveyard.bury(remains);
    }
}
