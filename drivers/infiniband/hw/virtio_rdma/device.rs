// SPDX-License-Identifier: GPL-2.0

//! The state of a device that all files of the driver share.

use crate::{
    abi::{
        event::FIRST_EVENT_QUEUE,
        ring::Doorbell, //
    },
    ctrl::ControlQueue,
    decode::config::{
        Limits,
        OwnRingsLimits,
        QueueLimits, //
    },
    doorbell::Doorbells,
    event_handlers::EventHandlers,
    events::EventQueue,
    leaving::Leaving,
    lifecycle::Lifecycle,
    limits,
    quarantine::Quarantine,
    rdma::queue_memory::Barriers,
    sync::{
        deferred::Handle,
        periodic::{
            Periodic,
            Tick, //
        },
        workqueue::Workqueue, //
    },
    transport::Transport,
    unbinding::Unbinding,
    virtio::{
        self,
        Feature,
        Reset,
        VirtqueueInfo, //
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

/// Interval in ms of the checks of an idle device.
///
/// A device that needs a reset raises a configuration interrupt. Other failures raise none: the
/// registers of an unplugged device read as all ones, and a virtqueue is only marked as broken. The
/// check also retries buffers that could not be mapped when memory was short.
const HEALTH_CHECK_MS: Msecs = 5_000;

/// Periodic check that the device still works.
pub(crate) struct HealthCheck(Arc<ControlQueue>);

impl Tick for HealthCheck {
    fn tick(&self) -> bool {
        self.0.check()
    }
}

/// Event queues and doorbells of a device with own rings: queues are rings at addresses that the
/// driver names.
pub(crate) struct OwnRings {
    event_queues: KVec<Arc<EventQueue>>,
    doorbells: Arc<Doorbells>,
}

impl OwnRings {
    fn new(
        dev: &virtio::Device<Bound>,
        limits: &OwnRingsLimits,
        event_handlers: &Arc<EventHandlers>,
    ) -> Result<Self> {
        let doorbells = Doorbells::new(dev, limits)?;
        let count = usize::try_from(limits.num_event_queues)?;
        let mut event_queues = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            event_queues.push(EventQueue::new(event_handlers.clone())?, GFP_KERNEL)?;
        }
        Ok(Self {
            event_queues,
            doorbells,
        })
    }

    /// Adds the event queues to the control queue. Each event queue interrupts its own CPU, since
    /// there are no more event queues than CPUs.
    fn add_queues(&self, to: &mut KVec<VirtqueueInfo>) -> Result {
        for (index, queue) in (0..).zip(&self.event_queues) {
            let name = CString::try_from_fmt(fmt!("event.{index}"))?;
            to.push(queue.info(name).with_affinity(index), GFP_KERNEL)?;
        }
        Ok(())
    }

    /// The doorbell pages.
    pub(crate) fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }

    /// The index of a completion vector's event queue, for CREATE_CQ.
    pub(crate) fn event_queue(&self, vector: u32) -> u32 {
        // CAST: There are 1,024 event queues at most. There is at least one, but the compiler does
        // not know it, and `%` would compile to a panic.
        let index = vector.checked_rem(self.event_queues.len() as u32);
        u32::from(FIRST_EVENT_QUEUE) + index.unwrap_or(0)
    }
}

/// The memory that holds the device's queues.
pub(crate) enum Queues {
    /// In rings at addresses that the driver names.
    OwnRings(OwnRings),
    /// In the virtqueues of the transport.
    Transport(Transport),
}

/// A device that was set up.
#[pin_data]
pub(crate) struct Device {
    dev: ARef<virtio::Device>,
    limits: Limits,
    barriers: Barriers,
    ctrl: Arc<ControlQueue>,
    /// The lifecycle of the control queue, which posts and polls read.
    lifecycle: Handle<Lifecycle>,
    queues: Queues,
    event_handlers: Arc<EventHandlers>,
    /// Runs the health check and the messages of an unbinding: clients that write back memory wait
    /// until the health check finds that the device fails.
    health_checks: Arc<Workqueue>,
    /// The QPs and CQs of the kernel that are being destroyed.
    #[pin]
    pub(crate) leaving: Leaving,
    #[pin]
    quarantine: Quarantine,
}

impl Device {
    /// Sets the device up: reads its configuration and finds its queues.
    pub(crate) fn new(dev: &virtio::Device<device::Core<'_>>) -> Result<Arc<Self>> {
        let bound: &virtio::Device<Bound> = dev;
        let mut limits = limits::read(bound)?;
        let QueueLimits { max_cq, max_qp, .. } = limits.queues;
        let max_srq = limits.srq.map_or(0, |srq| srq.max_srq);
        let max_handlers = max_cq.saturating_add(max_qp).saturating_add(max_srq);
        let event_handlers = EventHandlers::new(usize::try_from(max_handlers)?)?;
        let features = limits.features();
        let recovery = dev.recovery()?;
        let ctrl = ControlQueue::new(dev.as_ref(), features, event_handlers.clone(), recovery)?;

        let barriers = match bound.has_feature(Feature::ORDER_PLATFORM) {
            true => Barriers::Platform,
            false => Barriers::Cpus,
        };
        let mut vqs = KVec::new();
        vqs.push(ctrl.info(CString::try_from(c"control")?), GFP_KERNEL)?;
        let queues = match &limits.own_rings {
            Some(own_rings) => {
                let own_rings = OwnRings::new(bound, own_rings, &event_handlers)?;
                own_rings.add_queues(&mut vqs)?;
                Queues::OwnRings(own_rings)
            }
            None => {
                let transport = Transport::new(&limits.queues, &ctrl, &event_handlers)?;
                transport.add_queues(&mut vqs)?;
                Queues::Transport(transport)
            }
        };
        let count = vqs.len();
        dev.find_vqs(vqs).inspect_err(|error| {
            dev_err!(
                dev.as_ref(),
                "can't set up {} virtqueues, so the device is not used: {:?}\n",
                count,
                error
            )
        })?;
        if let Queues::Transport(transport) = &queues {
            transport.limit(&mut limits.queues);
        }
        let health_checks = Workqueue::with_rescuer(c"virtio_rdma_health")?;
        let this = Arc::pin_init(
            pin_init!(Self {
                dev: dev.into(),
                limits,
                barriers,
                lifecycle: ctrl.lifecycle().handle(),
                ctrl,
                queues,
                event_handlers,
                health_checks,
                leaving <- Leaving::new(),
                quarantine <- Quarantine::new(),
            }),
            GFP_KERNEL,
        )?;
        dev.ready()?;
        if let Queues::OwnRings(own_rings) = &this.queues {
            // The queues are filled after `ready`: before `ready`, a kernel that is hardened
            // against early interrupts marks queues as broken.
            for queue in &own_rings.event_queues {
                queue.fill()?;
            }
        }
        Ok(this)
    }

    /// Resets the device and removes its queues. If the device is failing, this waits until it has
    /// stopped.
    pub(crate) fn shut_down(&self, dev: &virtio::Device<device::Core<'_>>) -> Reset {
        // First, since the health check would treat a reset device as broken.
        self.ctrl.unbind();
        let reset = dev.remove_queues();
        self.lifecycle().unbound(reset);
        self.quarantine.clear(dev.as_ref(), reset);
        reset
    }

    /// The device on its bus, for messages.
    pub(crate) fn as_device(&self) -> &device::Device {
        (*self.dev).as_ref()
    }

    /// The device's limits and features.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The barriers that order the driver's and the device's accesses to memory that both share.
    pub(crate) fn barriers(&self) -> Barriers {
        self.barriers
    }

    /// The periodic check of the device. Without it, consumers would wait for ever for completions
    /// of a device that fails while no command runs.
    pub(crate) fn health_check(&self) -> impl PinInit<Periodic<HealthCheck>> {
        let check = HealthCheck(self.ctrl.clone());
        Periodic::new(self.health_checks.clone(), HEALTH_CHECK_MS, check)
    }

    /// Begins the messages of an unbinding; `None` if memory is short.
    pub(crate) fn unbinding(&self) -> Option<Unbinding> {
        Unbinding::new(self.as_device(), self.health_checks.clone()).ok()
    }

    pub(crate) fn ctrl(&self) -> &Arc<ControlQueue> {
        &self.ctrl
    }

    /// The life of the device.
    #[inline]
    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Whether the device accesses no memory any more and completes nothing.
    #[inline]
    pub(crate) fn has_stopped(&self) -> bool {
        self.lifecycle().has_stopped()
    }

    /// The objects that receive events of the device.
    pub(crate) fn event_handlers(&self) -> &Arc<EventHandlers> {
        &self.event_handlers
    }

    /// The memory that holds the device's queues.
    #[inline]
    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Rings the doorbell of a queue of the kernel; does nothing for virtqueues of the transport.
    /// `bus` is the virtio device, which is bound as long as the RDMA device is registered.
    #[inline]
    pub(crate) fn ring(&self, bus: &device::Device<Bound>, doorbell: Doorbell) {
        if let Queues::OwnRings(own_rings) = &self.queues {
            own_rings.doorbells.ring(bus, doorbell.to_u32());
        }
    }

    /// The number of completion vectors: one for each event queue. In virtqueue mode the number is
    /// 1, since each CQ is a virtqueue with its own interrupt.
    pub(crate) fn comp_vectors(&self) -> u32 {
        self.limits
            .own_rings
            .map_or(1, |own_rings| own_rings.num_event_queues)
    }

    /// Keeps memory that the device may still use, since the device did not confirm the destruction
    /// of the memory's owner.
    pub(crate) fn quarantine<T: Send + 'static>(&self, owner: T) {
        self.quarantine.add(owner);
    }
}
