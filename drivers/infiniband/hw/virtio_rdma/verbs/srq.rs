// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use super::{
    client_queues::{
        ring::KernelRing,
        srq::KernelSrq, //
    },
    device::IbDevice,
    user_ring::{
        Moved,
        UserQueue, //
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
            RingAddr,
            RingKind,
            KERNEL_DOORBELL_PAGE, //
        },
        uverbs,
        wqe::rq_wqe_size, //
    },
    device::Device,
    event_handlers::{
        EventHandler,
        EventRegistration, //
    },
    rdma::{
        self,
        event::SrqEvent,
        pd::Pd,
        srq::{
            NewSrq,
            SharedReceiveQueues,
            SrqAttr,
            SrqConsumer,
            SrqModification, //
        },
        ucontext::Context,
        wr::RecvWrs,
        Udata, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

/// The poster to an SRQ, and the memory from which the device reads the WQEs.
enum Poster {
    /// The kernel posts.
    Kernel(Arc<KernelSrq>),
    /// A process posts.
    User(Pin<KBox<UserQueue>>),
}

pub(crate) struct Srq {
    device: Arc<Device>,
    number: Srqn,
    max_sge: u32,
    poster: Poster,
    /// Events of the SRQ may arrive until this registration is dropped.
    events: EventRegistration,
}

/// Delivers asynchronous events to the SRQ's consumer.
struct SrqEventHandler(SrqConsumer);

impl EventHandler for SrqEventHandler {
    fn object(&self) -> &'static CStr {
        c"SRQ"
    }

    fn async_event(&self, event: AsyncEvent) {
        match event {
            AsyncEvent::SrqErr => self.0.event(SrqEvent::Error),
            AsyncEvent::SrqLimitReached => self.0.event(SrqEvent::LimitReached),
            _ => (),
        }
    }
}

impl Srq {
    pub(super) fn number(&self) -> Srqn {
        self.number
    }

    /// The posting side of an SRQ of the kernel.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a process posts to the SRQ.
    pub(super) fn kernel(&self) -> Result<&Arc<KernelSrq>> {
        match &self.poster {
            Poster::Kernel(srq) => Ok(srq),
            Poster::User(_) => Err(EINVAL),
        }
    }

    /// Number of events that the device has reported of the SRQ.
    pub(super) fn events(&self) -> u32 {
        self.events.events()
    }

    /// The object for an SRQ that the device has just created.
    fn new(
        device: &Arc<Device>,
        number: Srqn,
        (max_wr, max_sge): (u32, u32),
        poster: Poster,
        events: EventRegistration,
    ) -> NewSrq<Self> {
        NewSrq {
            max_wr,
            max_sge,
            driver: Self {
                device: device.clone(),
                number,
                max_sge,
                poster,
                events: events.numbered(number),
            },
        }
    }
}

/// Writes the offset and length for the mmap of a ring to address `addr` of the current process,
/// since MODIFY_SRQ has no response.
fn tell(addr: u64, mapping: uverbs::RingMapping) -> Result {
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
/// `EOPNOTSUPP` if the device has no SRQs.
fn limits(device: &Device) -> Result<&SrqConfig> {
    device.limits().srq.as_ref().ok_or(EOPNOTSUPP)
}

/// Checks the attributes of a new SRQ of the kernel or of a process. Returns the maximum number of
/// work requests of an SRQ.
fn check(device: &Device, attr: &SrqAttr) -> Result<u32> {
    let limits = limits(device)?;
    let valid =
        (1..=limits.max_srq_wr).contains(&attr.max_wr) && attr.max_sge <= limits.max_srq_sge;
    valid.then_some(limits.max_srq_wr).ok_or(EINVAL)
}

/// Length of the longest WQE in bytes.
fn slot_size(max_sge: u32) -> usize {
    // CAST: `usize` has at least 32 bits.
    rq_wqe_size(max_sge as usize)
}

fn register(device: &Device, consumer: SrqConsumer) -> Result<EventRegistration> {
    let handler = Arc::new(SrqEventHandler(consumer), GFP_KERNEL)?;
    device.event_handlers().register(handler)
}

/// The CREATE_SRQ command for an SRQ in a ring.
fn command(
    pd: &Pd<IbDevice>,
    attr: &SrqAttr,
    limit: u32,
    ring: RingAddr,
    events: &EventRegistration,
) -> CmdCreateSrq {
    CmdCreateSrq {
        pdn: pd.number(),
        max_wr: ring.slots.min(limit),
        max_sge: attr.max_sge,
        ring,
        cookie: events.cookie(),
        ..CmdCreateSrq::default()
    }
}

impl SharedReceiveQueues for IbDevice {
    type Srq = Srq;

    fn create_srq(pd: &Pd<Self>, attr: &SrqAttr, consumer: SrqConsumer) -> Result<NewSrq<Srq>> {
        let device = &pd.device().virtio;
        let limit = check(device, attr)?;
        let size = slot_size(attr.max_sge);
        let ring = KernelRing::new(pd.device(), RingKind::Shared, attr.max_wr, size)?;
        let srq = KernelSrq::new(ring.clone(), attr.max_sge)?;
        let events = register(device, consumer)?;
        let request = CmdCreateSrq {
            doorbell_page: KERNEL_DOORBELL_PAGE,
            ..command(pd, attr, limit, ring.address()?, &events)
        };
        let (response, _ring) = super::create(device, &request, ring)?;
        srq.set_number(response.srqn);
        let sizes = (request.max_wr, request.max_sge);
        let poster = Poster::Kernel(srq);
        Ok(Srq::new(device, response.srqn, sizes, poster, events))
    }

    fn create_user_srq(
        context: &Context<Self>,
        pd: &Pd<Self>,
        attr: &SrqAttr,
        consumer: SrqConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewSrq<Srq>> {
        let device = &pd.device().virtio;
        let limit = check(device, attr)?;
        let request: uverbs::CreateSrqReq = udata.request()?;
        let events = register(device, consumer)?;
        let doorbell_page = context.doorbell_page()?;
        let size = (attr.max_wr, slot_size(attr.max_sge));
        let mut max_wr = 0;
        let (queue, ring, response) =
            UserQueue::create(context, RingKind::Shared, &request.ring, size, |ring| {
                let request = CmdCreateSrq {
                    flags: CreateFlags::USER,
                    doorbell_page,
                    ..command(pd, attr, limit, ring, &events)
                };
                max_wr = request.max_wr;
                request
            })?;
        // From here on, an error drops `new`, which destroys the SRQ.
        let (srqn, sizes) = (response.srqn, (max_wr, attr.max_sge));
        let new = Srq::new(device, srqn, sizes, Poster::User(queue), events);
        udata.respond(&uverbs::CreateSrqResp {
            srqn,
            ring,
            ..uverbs::CreateSrqResp::default()
        })?;
        Ok(new)
    }

    /// Changes limit or size of an SRQ. Only SRQs of processes can be resized: no kernel client
    /// resizes SRQs.
    fn modify_srq(
        srq: &rdma::srq::Srq<Self>,
        modification: &SrqModification,
        udata: Option<&Udata<'_>>,
    ) -> Result {
        let user_request = match udata {
            Some(udata) => udata.request()?,
            None => uverbs::ModifySrqReq::default(),
        };
        let mut request = CmdModifySrq {
            srqn: srq.number,
            ..CmdModifySrq::default()
        };
        if let Some(limit) = modification.limit {
            request.attr_mask = SrqAttrMask::LIMIT;
            request.limit = limit;
        }
        let Some(max_wr) = modification.max_wr else {
            if user_request != uverbs::ModifySrqReq::default() {
                return Err(EINVAL);
            }
            srq.device.ctrl().exec(&request)?;
            return Ok(());
        };
        let Poster::User(queue) = &srq.poster else {
            return Err(EOPNOTSUPP);
        };
        let limit = limits(&srq.device)?.max_srq_wr;
        if !(1..=limit).contains(&max_wr) {
            return Err(EINVAL);
        }
        let size = (max_wr, slot_size(srq.max_sge));
        let moved = queue.step(srq.device(), &user_request.ring, size, |ring| {
            CmdModifySrq {
                attr_mask: request.attr_mask | SrqAttrMask::MAX_WR,
                max_wr: ring.slots.min(limit),
                ring,
                ..request
            }
        })?;
        match moved {
            Moved::Prepared(mapping) => tell(user_request.mapping_addr, mapping),
            Moved::Done(_) => Ok(()),
        }
    }

    fn query_srq(srq: &rdma::srq::Srq<Self>) -> Result<SrqAttr> {
        let request = CmdQuerySrq { srqn: srq.number };
        let response = srq.device.ctrl().exec(&request)?;
        Ok(SrqAttr {
            max_wr: response.max_wr,
            max_sge: response.max_sge,
            limit: response.limit,
        })
    }

    fn post_srq_recv(srq: &rdma::srq::Srq<Self>, requests: &mut RecvWrs<'_>) -> Result {
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
                // The client frees the buffers of its receives, which a failing device may still
                // fill.
                self.device.lifecycle().await_stop();
            }
            Poster::User(queue) => {
                super::destroy(&self.device, &request, queue.take());
            }
        }
    }
}
