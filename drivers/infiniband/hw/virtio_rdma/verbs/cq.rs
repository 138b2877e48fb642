// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use super::{
    client_queues::{
        cq::KernelCq,
        cq_backend::CqBackend,
        ring::KernelRing, //
    },
    device::IbDevice,
    user_ring::{
        Moved,
        UserQueue, //
    }, //
};
use crate::{
    abi::{
        cqe::Cqe,
        ctrl::{
            CmdCreateCq,
            CmdCreateCqRing,
            CmdDestroyCq,
            CmdModifyCq,
            CmdResizeCq,
            CreateFlags, //
        },
        feature::Feature,
        ib::AsyncEvent,
        number::Cqn,
        ring::{
            RingAddr,
            RingKind,
            KERNEL_DOORBELL_PAGE, //
        },
        uverbs, //
    },
    device::{
        Device,
        OwnRings,
        Queues, //
    },
    event_handlers::{
        EventHandler,
        EventRegistration, //
    },
    rdma::{
        self,
        cq::{
            CompletionQueues,
            CqAttr,
            CqConsumer,
            ModerateCompletionQueues,
            NewCq,
            UserCompletionQueues, //
        },
        event::CqEvent,
        ucontext::Context,
        Udata, //
    },
    transport::{
        CqVirtqueue,
        Transport,
        VirtqueueLease, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// The poller of a CQ, and the memory to which the device writes the CQEs.
enum Poller {
    /// The kernel polls.
    Kernel(Arc<KernelCq>, Option<KernelMemory>),
    /// A process polls.
    User(Pin<KBox<UserQueue>>),
}

/// The memory of a CQ of the kernel.
enum KernelMemory {
    Ring {
        /// The ring, which has to exist while the device writes to it.
        _ring: Arc<KernelRing>,
    },
    /// A virtqueue of the transport.
    Virtqueue {
        /// The lease, held while the device writes to the virtqueue.
        _lease: VirtqueueLease<CqVirtqueue>,
    },
}

pub(crate) struct Cq {
    device: Arc<Device>,
    number: Cqn,
    entries: Atomic<u32>,
    poller: Poller,
    /// Events of the CQ may arrive until this registration is dropped.
    events: EventRegistration,
}

/// Delivers completion events to a process.
struct UserCqEventHandler(CqConsumer);

impl EventHandler for UserCqEventHandler {
    fn object(&self) -> &'static CStr {
        c"CQ"
    }

    fn completion(&self) {
        self.0.notify();
    }

    fn async_event(&self, event: AsyncEvent) {
        if event == AsyncEvent::CqErr {
            self.0.event(CqEvent::Error);
        }
    }
}

impl Cq {
    pub(super) fn number(&self) -> Cqn {
        self.number
    }

    /// The polling side of a CQ of the kernel.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a process polls the CQ.
    pub(super) fn kernel(&self) -> Result<&Arc<KernelCq>> {
        match &self.poller {
            Poller::Kernel(cq, _) => Ok(cq),
            Poller::User(_) => Err(EINVAL),
        }
    }

    /// Number of events that the device has reported of the CQ.
    pub(super) fn events(&self) -> u32 {
        self.events.events()
    }

    /// The object for a CQ that the device has just created.
    fn new(
        device: &Arc<Device>,
        number: Cqn,
        attr: &CqAttr,
        poller: Poller,
        events: EventRegistration,
    ) -> NewCq<Self> {
        NewCq {
            entries: attr.entries,
            driver: Self {
                device: device.clone(),
                number,
                entries: Atomic::new(attr.entries),
                poller,
                events: events.numbered(number),
            },
        }
    }

    /// Creates a CQ in a ring of the kernel.
    fn in_ring(
        ib_device: &rdma::Device<IbDevice>,
        own_rings: &OwnRings,
        attr: &CqAttr,
        consumer: CqConsumer,
    ) -> Result<NewCq<Self>> {
        let device = &ib_device.virtio;
        let ring = KernelRing::new(ib_device, RingKind::Completion, attr.entries, Cqe::SIZE)?;
        let cq = KernelCq::new(device, CqBackend::ring(ring.clone()), consumer)?;
        let events = device.event_handlers().register(cq.clone())?;
        let request = CmdCreateCqRing {
            doorbell_page: KERNEL_DOORBELL_PAGE,
            ..command(own_rings, attr, ring.address()?, &events)
        };
        let (response, ring) = super::create(device, &request, ring)?;
        cq.set_number(response.cqn);
        let memory = Some(KernelMemory::Ring { _ring: ring });
        let poller = Poller::Kernel(cq, memory);
        Ok(Self::new(device, response.cqn, attr, poller, events))
    }

    /// Creates a CQ in a virtqueue of the transport. The kernel polls it, also for a process.
    fn in_virtqueue(
        device: &Arc<Device>,
        transport: &Transport,
        attr: &CqAttr,
        consumer: CqConsumer,
    ) -> Result<NewCq<Self>> {
        let request = CmdCreateCq { cqe: attr.entries };
        let (response, ()) = super::create(device, &request, ())?;
        let number = response.cqn;
        let destroy = CmdDestroyCq { cqn: number };
        let vacated = device.leaving.await_end(number);
        let lease = transport.lease_cq(vacated).inspect_err(|_| {
            super::destroy(device, &destroy, ());
        })?;
        let prepare = || {
            let entries = usize::try_from(attr.entries)?;
            let backend = CqBackend::virtqueue(lease.queue().clone(), entries)?;
            let cq = KernelCq::new(device, backend, consumer)?;
            let events = device.event_handlers().register(cq.clone())?;
            Ok::<_, Error>((cq, events))
        };
        match prepare() {
            Ok((cq, events)) => {
                cq.set_number(number);
                lease.set_cookie(events.cookie());
                let poller = Poller::Kernel(cq, Some(KernelMemory::Virtqueue { _lease: lease }));
                Ok(Self::new(device, number, attr, poller, events))
            }
            Err(error) => {
                let _leaving = device.leaving.begin(number);
                super::destroy(device, &destroy, lease);
                Err(error)
            }
        }
    }
}

/// Checks the attributes of a new CQ of the kernel or of a process.
fn check(device: &Device, attr: &CqAttr) -> Result {
    let valid = attr.entries != 0
        && attr.entries <= device.limits().queues.max_cqe
        && attr.completion_vector < device.comp_vectors();
    if !valid {
        return Err(EINVAL);
    }
    // The flags request timestamps or ignored overruns, which are not supported.
    if attr.flags != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(())
}

/// The CREATE_CQ command for a CQ in a ring.
fn command(
    own_rings: &OwnRings,
    attr: &CqAttr,
    ring: RingAddr,
    events: &EventRegistration,
) -> CmdCreateCqRing {
    CmdCreateCqRing {
        base: CmdCreateCq { cqe: attr.entries },
        ring,
        event_queue: own_rings.event_queue(attr.completion_vector),
        cookie: events.cookie(),
        ..CmdCreateCqRing::default()
    }
}

impl CompletionQueues for IbDevice {
    type Cq = Cq;

    fn create_cq(
        this: &rdma::Device<Self>,
        attr: &CqAttr,
        consumer: CqConsumer,
    ) -> Result<NewCq<Cq>> {
        let device = &this.virtio;
        check(device, attr)?;
        match device.queues() {
            Queues::OwnRings(own_rings) => Cq::in_ring(this, own_rings, attr, consumer),
            Queues::Transport(transport) => Cq::in_virtqueue(device, transport, attr, consumer),
        }
    }
}

impl UserCompletionQueues for IbDevice {
    fn create_user_cq(
        context: &Context<Self>,
        attr: &CqAttr,
        consumer: CqConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewCq<Cq>> {
        let device = &context.device().virtio;
        check(device, attr)?;
        let (new, ring) = match device.queues() {
            Queues::OwnRings(own_rings) => {
                let request: uverbs::CreateCqReq = udata.request()?;
                let handler = Arc::new(UserCqEventHandler(consumer), GFP_KERNEL)?;
                let events = device.event_handlers().register(handler)?;
                let doorbell_page = context.doorbell_page()?;
                let size = (attr.entries, Cqe::SIZE);
                let (queue, ring, response) = UserQueue::create(
                    context,
                    RingKind::Completion,
                    &request.ring,
                    size,
                    |ring| CmdCreateCqRing {
                        flags: CreateFlags::USER,
                        doorbell_page,
                        ..command(own_rings, attr, ring, &events)
                    },
                )?;
                let poller = Poller::User(queue);
                let new = Cq::new(device, response.cqn, attr, poller, events);
                (new, ring)
            }
            Queues::Transport(transport) => {
                udata.no_request()?;
                let new = Cq::in_virtqueue(device, transport, attr, consumer)?;
                (new, uverbs::RingMapping::default())
            }
        };
        // If this fails, dropping `new` destroys the CQ.
        udata.respond(&uverbs::CreateCqResp {
            cqn: new.driver.number,
            ring,
            ..uverbs::CreateCqResp::default()
        })?;
        Ok(new)
    }

    fn resize_user_cq(cq: &rdma::cq::Cq<Self>, entries: u32, udata: &Udata<'_>) -> Result<u32> {
        let limits = cq.device.limits();
        let (true, Poller::User(queue)) = (limits.has(Feature::ResizeCq), &cq.poller) else {
            return Err(EOPNOTSUPP);
        };
        if !(1..=limits.queues.max_cqe).contains(&entries) {
            return Err(EINVAL);
        }
        let request: uverbs::ResizeCqReq = udata.request()?;
        let mut response = uverbs::ResizeCqResp::default();
        let command = |ring| CmdResizeCq {
            cqn: cq.number,
            cqe: entries,
            ring,
        };
        match queue.step(cq.device(), &request.ring, (entries, Cqe::SIZE), command)? {
            Moved::Prepared(mapping) => response.ring = mapping,
            Moved::Done(answer) => {
                cq.entries.store(entries, Relaxed);
                response.end = answer.end;
            }
        }
        udata.respond(&response)?;
        Ok(cq.entries.load(Relaxed))
    }
}

impl ModerateCompletionQueues for IbDevice {
    fn moderate_cq(cq: &rdma::cq::Cq<Self>, count: u16, period: u16) -> Result {
        let limits = cq.device.limits().cq_moderation.ok_or(EOPNOTSUPP)?;
        let (count, period) = (count.into(), period.into());
        if count > limits.max_count || period > limits.max_period {
            return Err(EINVAL);
        }
        cq.device.ctrl().exec(&CmdModifyCq {
            cqn: cq.number,
            count,
            period,
        })?;
        Ok(())
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let request = CmdDestroyCq { cqn: self.number };
        match &mut self.poller {
            Poller::Kernel(cq, memory) => {
                cq.close();
                let _leaving = self.device.leaving.begin(self.number);
                super::destroy(&self.device, &request, memory.take());
            }
            Poller::User(queue) => {
                super::destroy(&self.device, &request, queue.take());
            }
        }
    }
}
