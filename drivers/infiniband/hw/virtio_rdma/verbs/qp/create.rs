// SPDX-License-Identifier: GPL-2.0

//! How a QP comes to be: in rings of a process or of the kernel, or in virtqueues.
//!
//! All that can fail comes before the device makes the QP, or is undone by dropping what stands for
//! it.

use super::{
    Poster,
    Qp,
    Target, //
};
use crate::{
    abi::{
        ctrl::{
            CmdCreateQp,
            CmdCreateQpRings,
            CreateFlags, //
        },
        ib::SigType,
        number::{
            Qpn,
            Srqn, //
        },
        ring::{
            slot_shift_for,
            DoorbellKind,
            RingAddr,
            RingKind,
            RingLayout,
            KERNEL_DOORBELL_PAGE,
            WORK_SLOTS, //
        },
        uverbs::{
            self,
            CreateQpReq,
            CreateQpResp, //
        },
        wqe::{
            rq_wqe_size,
            sq_wqe_size,
            INLINE_OFFSET, //
        }, //
    },
    decode::{
        self,
        completion::Service, //
    },
    device::{
        Device,
        Queues, //
    },
    rdma::{
        self,
        pd::Pd,
        qp::{
            NewQp,
            QpConsumer,
            QpCreateFlags,
            QpInit,
            QpType, //
        },
        qp_attr::{
            QpCapabilities,
            QpState, //
        },
        ucontext::Context,
        Udata, //
    },
    targets::EventRegistration,
    transport::Transport,
    verbs::{
        self,
        cq,
        device::IbDevice,
        kernel_queues::{
            qp::{
                Attached,
                Client,
                KernelQp,
                WorkRing, //
            },
            ring::KernelRing,
            srq::{
                AttachedShared,
                SharedSource, //
            }, //
        },
        srq,
        user_ring::UserRing, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Atomic,
        Arc,
        Mutex, //
    }, //
};

impl Qp {
    /// Creates a QP of a process.
    pub(in crate::verbs) fn new_user(
        context: &Context<IbDevice>,
        pd: &Pd<IbDevice>,
        init: &QpInit<'_, IbDevice>,
        consumer: QpConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewQp<Self>> {
        let ib_device = pd.device();
        let device = &ib_device.device;
        check(device, init)?;
        // The core's, to which peers trust for management.
        if init.qp_type() == QpType::Gsi {
            return Err(EPERM);
        }
        if let Queues::Transport(transport) = device.queues() {
            udata.no_request()?;
            // The kernel has no address of it that it could copy the payload from.
            if init.capabilities().max_inline_data != 0 {
                return Err(EINVAL);
            }
            return Self::in_virtqueues(pd, transport, init, consumer);
        }
        let capabilities = capabilities(init);
        let request: CreateQpReq = udata.request()?;
        let mappings = context.mappings();
        let make = |ring: &uverbs::UserRing, entries, slot_size| {
            if *ring == uverbs::UserRing::default() && entries == 0 {
                return Ok((None, RingAddr::default(), None));
            }
            let mut ring = UserRing::new(
                ib_device,
                mappings,
                RingKind::Work,
                ring,
                entries,
                slot_size,
            )?;
            let (address, list) = ring.address(ib_device)?;
            Ok::<_, Error>((Some(ring), address, Some(list)))
        };
        let (sq, sq_address, sq_list) = make(
            &request.sq,
            capabilities.max_send_wr,
            send_slot_size(&capabilities),
        )?;
        let (rq, rq_address, rq_list) = make(
            &request.rq,
            capabilities.max_recv_wr,
            recv_slot_size(&capabilities),
        )?;
        let events = device
            .targets()
            .register(Arc::new(Target(consumer), GFP_KERNEL)?)?;
        let request = CmdCreateQpRings {
            base: command(pd, init, &capabilities, CreateFlags::USER),
            sq: sq_address,
            rq: rq_address,
            doorbell_page: context.doorbell_page()?,
            cookie: events.cookie(),
        };
        let memory = (sq, rq, sq_list, rq_list);
        let modifying = new_lock()?;
        let (response, memory) = verbs::create(device, &request, memory)?;
        let (sq, rq, ..) = memory;
        let mapping = |ring: &Option<UserRing>| ring.as_ref().map(UserRing::mapping);
        let mappings = CreateQpResp {
            sq: mapping(&sq).unwrap_or_default(),
            rq: mapping(&rq).unwrap_or_default(),
        };
        // From here on, dropping it destroys it.
        let qp = Self::made(
            device,
            response.qpn,
            init,
            capabilities,
            modifying,
            Poster::User(sq, rq),
            Some(events),
        );
        udata.respond(&mappings)?;
        qp.finish()
    }

    /// Creates a QP in rings of the kernel.
    pub(super) fn in_rings(
        pd: &Pd<IbDevice>,
        init: &QpInit<'_, IbDevice>,
        consumer: QpConsumer,
    ) -> Result<NewQp<Self>> {
        let ib_device = pd.device();
        let device = &ib_device.device;
        let capabilities = capabilities(init);
        let client = client(pd, init, &consumer);
        let shared = match init.srq() {
            Some(srq) => Some(SharedSource {
                srq: srq.kernel()?.clone(),
                client: client.clone(),
            }),
            None => None,
        };
        let sq = kernel_queue(
            ib_device,
            &client,
            DoorbellKind::Sq,
            capabilities.max_send_wr,
            send_slot_size(&capabilities),
        )?;
        let rq = kernel_queue(
            ib_device,
            &client,
            DoorbellKind::Rq,
            capabilities.max_recv_wr,
            recv_slot_size(&capabilities),
        )?;
        let (sq_address, sq_ring) = address(&sq)?;
        let (rq_address, rq_ring) = address(&rq)?;
        let events = device
            .targets()
            .register(Arc::new(Target(consumer), GFP_KERNEL)?)?;
        let request = CmdCreateQpRings {
            base: command(pd, init, &capabilities, CreateFlags::NONE),
            sq: sq_address,
            rq: rq_address,
            doorbell_page: KERNEL_DOORBELL_PAGE,
            cookie: events.cookie(),
        };
        let modifying = new_lock()?;
        let (response, _rings) = verbs::create(device, &request, (sq_ring, rq_ring))?;
        let qp = Self::made(
            device,
            response.qpn,
            init,
            capabilities,
            modifying,
            Poster::Kernel(KernelQp::default(), None),
            Some(events),
        );
        device.await_leaving();
        qp.attach(init, sq, rq, shared)?.finish()
    }

    /// Creates a QP in virtqueues of the transport, which the kernel posts to, for a process too.
    pub(super) fn in_virtqueues(
        pd: &Pd<IbDevice>,
        transport: &Transport,
        init: &QpInit<'_, IbDevice>,
        consumer: QpConsumer,
    ) -> Result<NewQp<Self>> {
        let device = &pd.device().device;
        let mut capabilities = init.capabilities();
        // The count is that of a ring, if the device allows for it.
        let limit = device.limits().queues.max_qp_wr;
        let round = |entries: u32| match entries {
            0 => 0,
            entries => entries.next_power_of_two().min(limit),
        };
        capabilities.max_send_wr = round(capabilities.max_send_wr);
        capabilities.max_recv_wr = round(capabilities.max_recv_wr);
        let request = command(pd, init, &capabilities, CreateFlags::NONE);
        let modifying = new_lock()?;
        let (response, ()) = verbs::create(device, &request, ())?;
        // From here on, dropping it destroys it.
        let mut qp = Self::made(
            device,
            response.qpn,
            init,
            capabilities,
            modifying,
            Poster::Kernel(KernelQp::default(), None),
            None,
        );
        device.await_leaving();
        let claims = transport.claim_pair(response.qpn)?;
        let [send, recv] = [0, 1].map(|index| claims[index].queue().clone());
        qp.poster = Poster::Kernel(KernelQp::default(), Some(claims));
        let client = client(pd, init, &consumer);
        let queue = |queue, entries: u32, size, kind| {
            let slots = entries.checked_next_power_of_two().ok_or(EINVAL)?;
            WorkRing::in_virtqueue(queue, slots, size, kind, client.clone())
        };
        let sq = match capabilities.max_send_wr {
            0 => None,
            entries => {
                let size = send_slot_size(&capabilities);
                Some(queue(&send, entries, size, DoorbellKind::Sq)?)
            }
        };
        let rq = match capabilities.max_recv_wr {
            0 => None,
            entries => {
                let size = recv_slot_size(&capabilities);
                Some(queue(&recv, entries, size, DoorbellKind::Rq)?)
            }
        };
        qp.attach(init, sq, rq, None)?.finish()
    }

    /// The QP that the device has just made. Dropping it is what destroys it there, so the lock
    /// exists already.
    fn made(
        device: &Arc<Device>,
        number: Qpn,
        init: &QpInit<'_, IbDevice>,
        capabilities: QpCapabilities,
        modifying: Pin<KBox<Mutex<()>>>,
        poster: Poster,
        events: Option<EventRegistration>,
    ) -> Self {
        Self {
            device: device.clone(),
            number,
            qp_type: init.qp_type(),
            capabilities,
            state: Atomic::new(QpState::Reset.as_raw()),
            rate_limit: Atomic::new(0),
            modifying,
            poster,
            _events: events,
        }
    }

    /// Lets the queues of a QP of the kernel complete in its CQs.
    fn attach(
        mut self,
        init: &QpInit<'_, IbDevice>,
        sq: Option<Arc<WorkRing>>,
        rq: Option<Arc<WorkRing>>,
        shared: Option<SharedSource>,
    ) -> Result<Self> {
        let (send_cq, recv_cq) = (init.send_cq().kernel()?, init.recv_cq().kernel()?);
        let number = self.number;
        let attach = |queue: Option<Arc<WorkRing>>, cq| {
            let attach = |queue: Arc<WorkRing>| {
                queue.set_number(number);
                Attached::new(queue, cq)
            };
            queue.map(attach).transpose()
        };
        if let Poster::Kernel(qp, _) = &mut self.poster {
            qp.send = attach(sq, send_cq)?;
            qp.recv = attach(rq, recv_cq)?;
            if let Some(source) = shared {
                qp.shared = Some(AttachedShared::new(source, number, recv_cq)?);
            }
        }
        Ok(self)
    }

    /// Hands a QP over, if its number is one.
    fn finish(self) -> Result<NewQp<Self>> {
        let is_gsi = self.qp_type == QpType::Gsi;
        decode::qp::check_number(self.number, is_gsi).map_err(|_| EIO)?;
        Ok(NewQp {
            number: self.number.get(),
            capabilities: self.capabilities,
            driver: self,
        })
    }
}

fn new_lock() -> Result<Pin<KBox<Mutex<()>>>> {
    KBox::pin_init(
        kernel::new_mutex!((), "virtio_rdma::qp::modifying"),
        GFP_KERNEL,
    )
}

/// Checks what every consumer may ask for.
pub(super) fn check(device: &Device, init: &QpInit<'_, IbDevice>) -> Result {
    let blocks_loopback = device.limits().has_multicast() && init.qp_type() == QpType::Ud;
    let flags = match blocks_loopback {
        true => QpCreateFlags::BLOCK_MULTICAST_LOOPBACK,
        false => QpCreateFlags(0),
    };
    if !flags.contains(init.create_flags()) {
        return Err(EOPNOTSUPP);
    }
    if init.srq().is_some() && init.qp_type() == QpType::Gsi {
        return Err(EINVAL);
    }
    let capabilities = capabilities(init);
    let limits = device.limits();
    let valid = capabilities.max_send_wr <= limits.queues.max_qp_wr
        && capabilities.max_recv_wr <= limits.queues.max_qp_wr
        && capabilities.max_send_sge <= limits.config.max_send_sge
        && capabilities.max_recv_sge <= limits.config.max_recv_sge
        && capabilities.max_inline_data <= limits.queues.max_inline_data;
    valid.then_some(()).ok_or(EINVAL)
}

/// Sizes that a QP shall have. A QP that takes its receives from an SRQ has no receive queue,
/// whatever it asks for.
fn capabilities(init: &QpInit<'_, IbDevice>) -> QpCapabilities {
    let capabilities = init.capabilities();
    match init.srq() {
        Some(_) => QpCapabilities {
            max_recv_wr: 0,
            max_recv_sge: 0,
            ..capabilities
        },
        None => capabilities,
    }
}

/// The part of CREATE_QP that does not depend on who owns the rings.
fn command(
    pd: &Pd<IbDevice>,
    init: &QpInit<'_, IbDevice>,
    capabilities: &QpCapabilities,
    flags: CreateFlags,
) -> CmdCreateQp {
    let cqn = |cq: &rdma::cq::Cq<IbDevice>| cq::Cq::number(cq);
    let loopback = match init.create_flags() {
        QpCreateFlags::BLOCK_MULTICAST_LOOPBACK => CreateFlags::BLOCK_MULTICAST_LOOPBACK,
        _ => CreateFlags::NONE,
    };
    let (flags, srqn) = match init.srq() {
        Some(srq) => (flags | CreateFlags::SRQ, srq::Srq::number(srq)),
        None => (flags, Srqn::NONE),
    };
    CmdCreateQp {
        pdn: pd.number(),
        qp_type: match init.qp_type() {
            QpType::Gsi => crate::abi::ib::QpType::Gsi,
            QpType::Rc => crate::abi::ib::QpType::Rc,
            QpType::Uc => crate::abi::ib::QpType::Uc,
            QpType::Ud => crate::abi::ib::QpType::Ud,
        }
        .value(),
        sq_sig_type: if init.signal_all() {
            SigType::All
        } else {
            SigType::Requested
        }
        .value(),
        max_send_wr: capabilities.max_send_wr,
        max_send_sge: capabilities.max_send_sge,
        send_cqn: cqn(init.send_cq()),
        max_recv_wr: capabilities.max_recv_wr,
        max_recv_sge: capabilities.max_recv_sge,
        recv_cqn: cqn(init.recv_cq()),
        max_inline_data: capabilities.max_inline_data,
        flags: flags | loopback,
        srqn,
        ..CmdCreateQp::default()
    }
}

/// Bytes of the longest send WQE. A request may be inline without a byte.
fn send_slot_size(capabilities: &QpCapabilities) -> usize {
    // LOSSY: Widening.
    let sges = sq_wqe_size(capabilities.max_send_sge as usize);
    sges.max(INLINE_OFFSET + capabilities.max_inline_data as usize)
}

/// Bytes of the longest receive WQE.
fn recv_slot_size(capabilities: &QpCapabilities) -> usize {
    // LOSSY: Widening.
    rq_wqe_size(capabilities.max_recv_sge as usize)
}

/// The poster to a QP that is being created.
fn client(pd: &Pd<IbDevice>, init: &QpInit<'_, IbDevice>, consumer: &QpConsumer) -> Client {
    Client {
        consumer: consumer.clone(),
        service: match init.qp_type() {
            QpType::Rc => Service::Reliable,
            QpType::Uc => Service::Unreliable,
            QpType::Gsi | QpType::Ud => Service::Datagram,
        },
        is_process: pd.context().is_some(),
    }
}

/// A queue of the kernel for `entries` work requests, if that is any.
fn kernel_queue(
    ib_device: &rdma::Device<IbDevice>,
    client: &Client,
    kind: DoorbellKind,
    entries: u32,
    slot_size: usize,
) -> Result<Option<Arc<WorkRing>>> {
    if entries == 0 {
        return Ok(None);
    }
    let slots = entries
        .checked_next_power_of_two()
        .ok_or(EINVAL)?
        .max(*WORK_SLOTS.start());
    let layout =
        slot_shift_for(slot_size).and_then(|shift| RingLayout::new(RingKind::Work, slots, shift));
    let ring = KernelRing::new(ib_device, layout.ok_or(EINVAL)?)?;
    let ring = Arc::new(ring, GFP_KERNEL)?;
    WorkRing::in_ring(ring, kind, client.clone()).map(Some)
}

/// The memory of a queue, and what the device is told of it.
fn address(queue: &Option<Arc<WorkRing>>) -> Result<(RingAddr, Option<Arc<KernelRing>>)> {
    match queue {
        Some(queue) => {
            let ring = queue.backing.ring().ok_or(EINVAL)?;
            Ok((ring.address()?, Some(ring.clone())))
        }
        None => Ok((RingAddr::default(), None)),
    }
}
