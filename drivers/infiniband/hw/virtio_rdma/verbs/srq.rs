// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use super::{
    device::IbDevice,
    kernel_queues::{
        ring::KernelRing,
        srq::KernelSrq, //
    },
    user_ring::{
        MovingRing,
        Step,
        UserRing, //
    }, //
};
use crate::{
    abi::{
        config::SrqConfig,
        ctrl::{
            CmdCreateSrq,
            CmdDestroySrq,
            CmdModifySrq,
            CmdQuerySrq,
            CreateFlags,
            SrqAttrMask, //
        },
        ib::AsyncEvent,
        number::Srqn,
        ring::{
            slot_shift_for,
            RingKind,
            RingLayout,
            KERNEL_DOORBELL_PAGE,
            WORK_SLOTS, //
        },
        uverbs::{
            CreateSrqReq,
            CreateSrqResp,
            ModifySrqReq,
            RingMapping, //
        },
        wqe::rq_wqe_size, //
    },
    device::Device,
    rdma::{
        self,
        event::SrqEvent,
        pd::Pd,
        srq::{
            NewSrq,
            SharedReceiveQueues,
            SrqAttributes,
            SrqConsumer,
            SrqModification, //
        },
        ucontext::Context,
        work_request::RecvRequests,
        Udata, //
    },
    targets::{
        EventRegistration,
        EventTarget, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

/// The poster to an SRQ, and the memory that the device reads its WQEs from.
enum Poster {
    /// The kernel.
    Kernel(Arc<KernelSrq>),
    /// A process. Held while it moves to another ring; pinned, as all locks are.
    User(Pin<KBox<Mutex<MovingRing>>>),
}

/// An SRQ.
pub(crate) struct Srq {
    device: Arc<Device>,
    number: Srqn,
    max_sge: u32,
    poster: Poster,
    /// Events may arrive until it is dropped.
    _events: EventRegistration,
}

/// Passes events on to the consumer.
struct Target(SrqConsumer);

impl EventTarget for Target {
    fn async_event(&self, event: AsyncEvent) {
        match event {
            AsyncEvent::SrqErr => self.0.event(SrqEvent::Error),
            AsyncEvent::SrqLimitReached => self.0.event(SrqEvent::LimitReached),
            _ => (),
        }
    }
}

impl Srq {
    /// The SRQ's handle.
    pub(super) fn number(&self) -> Srqn {
        self.number
    }

    /// The SRQ as the kernel posts to it, unless a process does.
    pub(super) fn kernel(&self) -> Result<&Arc<KernelSrq>> {
        match &self.poster {
            Poster::Kernel(srq) => Ok(srq),
            Poster::User(_) => Err(EINVAL),
        }
    }

    /// Creates an SRQ of a process.
    fn new_user(
        context: &Context<IbDevice>,
        pd: &Pd<IbDevice>,
        attr: &SrqAttributes,
        consumer: SrqConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewSrq<Self>> {
        let ib_device = pd.device();
        let device = &ib_device.device;
        check(limits(device)?, attr)?;
        let request: CreateSrqReq = udata.request()?;
        let size = slot_size(attr.max_sge);
        let mappings = context.mappings();
        let mut ring = UserRing::new(
            ib_device,
            mappings,
            RingKind::Shared,
            &request.ring,
            attr.max_wr,
            size,
        )?;
        let mapping = ring.mapping();
        let (address, list) = ring.address(ib_device)?;
        let max_wr = address.slots.min(limits(device)?.max_srq_wr);
        let events = device
            .targets()
            .register(Arc::new(Target(consumer), GFP_KERNEL)?)?;
        let user = KBox::pin_init(
            kernel::new_mutex!(
                MovingRing::new(mappings, RingKind::Shared),
                "virtio_rdma::srq::ring"
            ),
            GFP_KERNEL,
        )?;
        let request = CmdCreateSrq {
            pdn: pd.number(),
            max_wr,
            max_sge: attr.max_sge,
            flags: CreateFlags::USER,
            ring: address,
            doorbell_page: context.doorbell_page()?,
            cookie: events.cookie(),
        };
        let (response, (ring, _list)) = super::create(device, &request, (ring, list))?;
        user.lock().moved(ring);
        // From here on, dropping it destroys it.
        let driver = Self {
            device: device.clone(),
            number: response.srqn,
            max_sge: attr.max_sge,
            poster: Poster::User(user),
            _events: events,
        };
        let response = CreateSrqResp {
            srqn: response.srqn,
            ring: mapping,
            ..CreateSrqResp::default()
        };
        udata.respond(&response)?;
        Ok(NewSrq {
            max_wr,
            max_sge: attr.max_sge,
            driver,
        })
    }

    /// Creates an SRQ in a ring of the kernel.
    fn in_ring(
        pd: &Pd<IbDevice>,
        attr: &SrqAttributes,
        consumer: SrqConsumer,
    ) -> Result<NewSrq<Self>> {
        let ib_device = pd.device();
        let device = &ib_device.device;
        check(limits(device)?, attr)?;
        let slots = attr
            .max_wr
            .checked_next_power_of_two()
            .ok_or(EINVAL)?
            .max(*WORK_SLOTS.start());
        let max_wr = slots.min(limits(device)?.max_srq_wr);
        let layout = slot_shift_for(slot_size(attr.max_sge))
            .and_then(|shift| RingLayout::new(RingKind::Shared, slots, shift))
            .ok_or(EINVAL)?;
        let ring = Arc::new(KernelRing::new(ib_device, layout)?, GFP_KERNEL)?;
        let srq = KernelSrq::new(ring.clone(), attr.max_sge)?;
        let events = device
            .targets()
            .register(Arc::new(Target(consumer), GFP_KERNEL)?)?;
        let request = CmdCreateSrq {
            pdn: pd.number(),
            max_wr,
            max_sge: attr.max_sge,
            flags: CreateFlags::NONE,
            ring: ring.address()?,
            doorbell_page: KERNEL_DOORBELL_PAGE,
            cookie: events.cookie(),
        };
        let (response, _ring) = super::create(device, &request, ring)?;
        srq.set_number(response.srqn);
        Ok(NewSrq {
            max_wr,
            max_sge: attr.max_sge,
            driver: Self {
                device: device.clone(),
                number: response.srqn,
                max_sge: attr.max_sge,
                poster: Poster::Kernel(srq),
                _events: events,
            },
        })
    }

    /// Changes attributes. Only SRQs of processes move to longer rings: kernel clients know from
    /// the start how long theirs are to be.
    fn modify(
        &self,
        ib_device: &rdma::Device<IbDevice>,
        modification: &SrqModification,
        udata: Option<&Udata<'_>>,
    ) -> Result {
        let user_request = match udata {
            Some(udata) => udata.request::<ModifySrqReq>()?,
            None => ModifySrqReq::default(),
        };
        let mut request = CmdModifySrq {
            srqn: self.number,
            ..CmdModifySrq::default()
        };
        if let Some(limit) = modification.limit {
            request.attr_mask = request.attr_mask | SrqAttrMask::LIMIT;
            request.limit = limit;
        }
        let Some(max_wr) = modification.max_wr else {
            if user_request != ModifySrqReq::default() {
                return Err(EINVAL);
            }
            self.device.ctrl().exec(&request)?;
            return Ok(());
        };
        let Poster::User(user) = &self.poster else {
            return Err(EOPNOTSUPP);
        };
        let limit = limits(&self.device)?.max_srq_wr;
        if !(1..=limit).contains(&max_wr) {
            return Err(EINVAL);
        }
        let mut user = user.lock();
        let size = slot_size(self.max_sge);
        match user.step(ib_device, &user_request.ring, max_wr, size)? {
            Step::Prepared(mapping) => tell(user_request.mapping_addr, mapping),
            Step::Move(mut ring) => {
                let (address, list) = ring.address(ib_device)?;
                request.attr_mask = request.attr_mask | SrqAttrMask::MAX_WR;
                request.max_wr = address.slots.min(limit);
                request.ring = address;
                let (_, (ring, _list)) = super::create(&self.device, &request, (ring, list))?;
                user.moved(ring);
                Ok(())
            }
        }
    }
}

/// Writes where the current process maps a ring to where it wants to know: MODIFY_SRQ has no
/// response.
fn tell(addr: u64, mapping: RingMapping) -> Result {
    let mapping = mapping.to_bytes();
    let addr = UserPtr::from_addr(usize::try_from(addr)?);
    UserSlice::new(addr, mapping.len())
        .writer()
        .write_slice(&mapping)
}

/// The limits of SRQs.
///
/// # Errors
///
/// `EOPNOTSUPP` if the device has none.
fn limits(device: &Device) -> Result<&SrqConfig> {
    device.limits().srq.as_ref().ok_or(EOPNOTSUPP)
}

/// Checks what every consumer may ask for.
fn check(limits: &SrqConfig, attr: &SrqAttributes) -> Result {
    let valid =
        (1..=limits.max_srq_wr).contains(&attr.max_wr) && attr.max_sge <= limits.max_srq_sge;
    valid.then_some(()).ok_or(EINVAL)
}

/// Bytes of the longest WQE.
fn slot_size(max_sge: u32) -> usize {
    // LOSSY: Widening.
    rq_wqe_size(max_sge as usize)
}

impl SharedReceiveQueues for IbDevice {
    type Srq = Srq;

    fn create_srq(
        pd: &Pd<Self>,
        attr: &SrqAttributes,
        consumer: SrqConsumer,
    ) -> Result<NewSrq<Srq>> {
        Srq::in_ring(pd, attr, consumer)
    }

    fn create_user_srq(
        context: &Context<Self>,
        pd: &Pd<Self>,
        attr: &SrqAttributes,
        consumer: SrqConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewSrq<Srq>> {
        Srq::new_user(context, pd, attr, consumer, udata)
    }

    fn modify_srq(
        srq: &rdma::srq::Srq<Self>,
        modification: &SrqModification,
        udata: Option<&Udata<'_>>,
    ) -> Result {
        srq.modify(srq.device(), modification, udata)
    }

    fn query_srq(srq: &rdma::srq::Srq<Self>) -> Result<SrqAttributes> {
        let request = CmdQuerySrq { srqn: srq.number };
        let response = srq.device.ctrl().exec(&request)?;
        Ok(SrqAttributes {
            max_wr: response.max_wr,
            max_sge: response.max_sge,
            limit: response.limit,
        })
    }

    fn post_srq_recv(srq: &rdma::srq::Srq<Self>, requests: &mut RecvRequests<'_>) -> Result {
        let bus = srq.device().bound_device();
        srq.kernel()?.post(&srq.device, bus, requests)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let request = CmdDestroySrq { srqn: self.number };
        match &self.poster {
            Poster::Kernel(srq) => {
                super::destroy(&self.device, &request, srq.ring().clone());
            }
            Poster::User(ring) => {
                let ring = ring.lock().take();
                super::destroy(&self.device, &request, ring);
            }
        }
    }
}
