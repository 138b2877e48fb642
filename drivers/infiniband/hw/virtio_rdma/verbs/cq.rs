// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use super::{
    device::IbDevice,
    kernel_queues::{
        cq::KernelCq,
        cq_backend::CqBackend,
        ring::KernelRing, //
    },
    user_ring::{
        MovingRing,
        Step,
        UserRing, //
    }, //
};
use crate::{
    abi::{
        cqe::Cqe,
        ctrl::{
            CmdCreateCq,
            CmdCreateCqRing,
            CmdDestroyCq,
            CmdResizeCq,
            CreateFlags, //
        },
        ib::AsyncEvent,
        number::Cqn,
        ring::{
            RingKind,
            RingLayout,
            CQ_SLOTS,
            KERNEL_DOORBELL_PAGE, //
        },
        uverbs::{
            CreateCqReq,
            CreateCqResp,
            ResizeCqReq,
            ResizeCqResp,
            RingMapping, //
        }, //
    },
    device::{
        Device,
        OwnRings,
        Queues, //
    },
    rdma::{
        self,
        cq::{
            CompletionQueues,
            CqAttributes,
            CqConsumer,
            NewCq, //
        },
        event::CqEvent,
        ucontext::Context,
        Udata, //
    },
    targets::{
        EventRegistration,
        EventTarget, //
    },
    transport::{
        Claim,
        CqVirtqueue,
        Transport, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// The poller of a CQ, and the memory that the device writes its CQEs to.
enum Poller {
    /// The kernel.
    Kernel(Arc<KernelCq>, Option<KernelMemory>),
    /// A process. Held while it moves to another ring; pinned, as all locks are.
    User(Pin<KBox<Mutex<UserCq>>>),
}

/// A CQ that a process polls.
struct UserCq {
    ring: MovingRing,
    entries: u32,
}

/// The memory of a CQ of the kernel.
enum KernelMemory {
    /// A ring.
    Ring {
        /// Kept for the device.
        _ring: Arc<KernelRing>,
    },
    /// A virtqueue of the transport.
    Virtqueue {
        /// Kept for the device.
        _claim: Claim<CqVirtqueue>,
    },
}

/// A CQ.
pub(crate) struct Cq {
    device: Arc<Device>,
    number: Cqn,
    poller: Poller,
    /// Events may arrive until it is dropped.
    _events: EventRegistration,
}

/// Tells a process of completions.
struct UserTarget(CqConsumer);

impl EventTarget for UserTarget {
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
    /// The CQ's handle.
    pub(super) fn number(&self) -> Cqn {
        self.number
    }

    /// The CQ as the kernel polls it, unless a process does.
    pub(super) fn kernel(&self) -> Result<&Arc<KernelCq>> {
        match &self.poller {
            Poller::Kernel(cq, _) => Ok(cq),
            Poller::User(_) => Err(EINVAL),
        }
    }

    /// Creates a CQ of a process.
    pub(super) fn new_user(
        context: &Context<IbDevice>,
        attr: &CqAttributes,
        consumer: CqConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewCq<Self>> {
        let device = &context.device().device;
        check(device, attr)?;
        let (cq, ring) = match device.queues() {
            Queues::OwnRings(own_rings) => {
                Self::in_user_ring(context, own_rings, attr, consumer, udata)?
            }
            Queues::Transport(transport) => {
                udata.no_request()?;
                let cq = Self::in_virtqueue(device, transport, attr, consumer)?;
                (cq, RingMapping::default())
            }
        };
        let response = CreateCqResp {
            cqn: cq.number,
            ring,
            ..CreateCqResp::default()
        };
        udata.respond(&response)?;
        Ok(NewCq {
            entries: attr.entries,
            driver: cq,
        })
    }

    /// Creates a CQ in a ring of a process, which maps it as is returned.
    fn in_user_ring(
        context: &Context<IbDevice>,
        own_rings: &OwnRings,
        attr: &CqAttributes,
        consumer: CqConsumer,
        udata: &Udata<'_>,
    ) -> Result<(Self, RingMapping)> {
        let ib_device = context.device();
        let device = &ib_device.device;
        let request: CreateCqReq = udata.request()?;
        let mappings = context.mappings();
        let mut ring = UserRing::new(
            ib_device,
            mappings,
            RingKind::Completion,
            &request.ring,
            attr.entries,
            Cqe::SIZE,
        )?;
        let mapping = ring.mapping();
        let (address, list) = ring.address(ib_device)?;
        let events = device
            .targets()
            .register(Arc::new(UserTarget(consumer), GFP_KERNEL)?)?;
        let request = CmdCreateCqRing {
            base: CmdCreateCq { cqe: attr.entries },
            flags: CreateFlags::USER,
            ring: address,
            doorbell_page: context.doorbell_page()?,
            event_queue: own_rings.event_queue(attr.completion_vector),
            cookie: events.cookie(),
            ..CmdCreateCqRing::default()
        };
        let state = UserCq {
            ring: MovingRing::new(mappings, RingKind::Completion),
            entries: attr.entries,
        };
        let user = KBox::pin_init(
            kernel::new_mutex!(state, "virtio_rdma::cq::ring"),
            GFP_KERNEL,
        )?;
        let (response, (ring, _list)) = super::create(device, &request, (ring, list))?;
        user.lock().ring.moved(ring);
        let cq = Self {
            device: device.clone(),
            number: response.cqn,
            poller: Poller::User(user),
            _events: events,
        };
        Ok((cq, mapping))
    }

    /// Moves a CQ of a process to another ring, or prepares the ring for that. Returns how many
    /// entries it has.
    pub(super) fn resize(
        &self,
        ib_device: &rdma::Device<IbDevice>,
        entries: u32,
        udata: &Udata<'_>,
    ) -> Result<u32> {
        let (true, Poller::User(user)) = (self.device.limits().has_resize_cq(), &self.poller)
        else {
            return Err(EOPNOTSUPP);
        };
        if !(1..=self.device.limits().queues.max_cqe).contains(&entries) {
            return Err(EINVAL);
        }
        let request: ResizeCqReq = udata.request()?;
        let mut user = user.lock();
        let mut response = ResizeCqResp::default();
        match user
            .ring
            .step(ib_device, &request.ring, entries, Cqe::SIZE)?
        {
            Step::Prepared(mapping) => response.ring = mapping,
            Step::Move(mut ring) => {
                let (address, list) = ring.address(ib_device)?;
                let request = CmdResizeCq {
                    cqn: self.number,
                    cqe: entries,
                    ring: address,
                };
                let (moved, (ring, _list)) = super::create(&self.device, &request, (ring, list))?;
                user.ring.moved(ring);
                user.entries = entries;
                response.end = moved.end;
            }
        }
        udata.respond(&response)?;
        Ok(user.entries)
    }

    /// Creates a CQ in a ring of the kernel.
    fn in_ring(
        ib_device: &rdma::Device<IbDevice>,
        own_rings: &OwnRings,
        attr: &CqAttributes,
        consumer: CqConsumer,
    ) -> Result<Self> {
        let device = &ib_device.device;
        let slots = attr
            .entries
            .checked_next_power_of_two()
            .ok_or(EINVAL)?
            .max(*CQ_SLOTS.start());
        let layout = RingLayout::completions(slots).ok_or(EINVAL)?;
        let ring = Arc::new(KernelRing::new(ib_device, layout)?, GFP_KERNEL)?;
        let cq = KernelCq::new(device, CqBackend::ring(ring.clone()), consumer)?;
        let events = device.targets().register(cq.clone())?;
        let request = CmdCreateCqRing {
            base: CmdCreateCq { cqe: attr.entries },
            flags: CreateFlags::NONE,
            ring: ring.address()?,
            doorbell_page: KERNEL_DOORBELL_PAGE,
            event_queue: own_rings.event_queue(attr.completion_vector),
            cookie: events.cookie(),
            ..CmdCreateCqRing::default()
        };
        let (response, ring) = super::create(device, &request, ring)?;
        cq.set_number(response.cqn);
        Ok(Self {
            device: device.clone(),
            number: response.cqn,
            poller: Poller::Kernel(cq, Some(KernelMemory::Ring { _ring: ring })),
            _events: events,
        })
    }

    /// Creates a CQ in a virtqueue of the transport, which the kernel polls, for a process too.
    fn in_virtqueue(
        device: &Arc<Device>,
        transport: &Transport,
        attr: &CqAttributes,
        consumer: CqConsumer,
    ) -> Result<Self> {
        let request = CmdCreateCq { cqe: attr.entries };
        let (response, ()) = super::create(device, &request, ())?;
        let number = response.cqn;
        let destroy = CmdDestroyCq { cqn: number };
        device.await_leaving();
        let claim = transport.claim_cq(number).inspect_err(|_| {
            super::destroy(device, &destroy, ());
        })?;
        let prepare = || {
            let entries = usize::try_from(attr.entries)?;
            let backend = CqBackend::virtqueue(claim.queue().clone(), entries)?;
            let cq = KernelCq::new(device, backend, consumer)?;
            let events = device.targets().register(cq.clone())?;
            Ok::<_, Error>((cq, events))
        };
        match prepare() {
            Ok((cq, events)) => {
                cq.set_number(number);
                claim.set_cookie(events.cookie());
                Ok(Self {
                    device: device.clone(),
                    number,
                    poller: Poller::Kernel(cq, Some(KernelMemory::Virtqueue { _claim: claim })),
                    _events: events,
                })
            }
            Err(error) => {
                let _leaving = device.leave();
                super::destroy(device, &destroy, claim);
                Err(error)
            }
        }
    }
}

/// Checks what every consumer may ask for.
fn check(device: &Device, attr: &CqAttributes) -> Result {
    let valid = attr.entries != 0
        && attr.entries <= device.limits().queues.max_cqe
        && attr.completion_vector < device.comp_vectors();
    if !valid {
        return Err(EINVAL);
    }
    // Neither timestamps nor overruns that nobody minds.
    if attr.flags != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(())
}

impl CompletionQueues for IbDevice {
    type Cq = Cq;

    fn create_cq(
        this: &rdma::Device<Self>,
        attr: &CqAttributes,
        consumer: CqConsumer,
    ) -> Result<NewCq<Cq>> {
        let device = &this.device;
        check(device, attr)?;
        let driver = match device.queues() {
            Queues::OwnRings(own_rings) => Cq::in_ring(this, own_rings, attr, consumer)?,
            Queues::Transport(transport) => Cq::in_virtqueue(device, transport, attr, consumer)?,
        };
        Ok(NewCq {
            entries: attr.entries,
            driver,
        })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let request = CmdDestroyCq { cqn: self.number };
        match &mut self.poller {
            Poller::Kernel(cq, memory) => {
                cq.close();
                let _leaving = self.device.leave();
                super::destroy(&self.device, &request, memory.take());
            }
            Poller::User(ring) => {
                let ring = ring.lock().ring.take();
                super::destroy(&self.device, &request, ring);
            }
        }
    }
}
