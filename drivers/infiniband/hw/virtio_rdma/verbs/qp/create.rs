// SPDX-License-Identifier: GPL-2.0

//! Creation of a QP in rings of a process or of the kernel, or in virtqueues.
//!
//! All steps that can fail come before the device creates the QP, or are undone when the object of
//! the QP is dropped.

use super::{
    Attributes,
    Poster,
    Qp,
    QpEventHandler, //
};
use crate::{
    abi::{
        ctrl::{
            CmdCreateQp,
            CmdCreateQpRings,
            CreateFlags, //
        },
        feature::Feature,
        ib,
        number::{
            Qpn,
            Srqn, //
        },
        ring::{
            inline_room,
            slot_shift_for,
            DoorbellKind,
            RingAddr,
            RingKind,
            KERNEL_DOORBELL_PAGE, //
        },
        uverbs,
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
    event_handlers::EventRegistration,
    leaving::Vacated,
    rdma::{
        pd::Pd,
        qp::{
            NewQp,
            QpConsumer,
            QpCreateFlags,
            QpInitAttr,
            QpType,
            QueuePairs,
            UserQueuePairs, //
        },
        qp_attr::QpCap,
        ucontext::Context,
        Udata, //
    },
    transport::Transport,
    verbs::{
        self,
        client_queues::{
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
        device::IbDevice,
        user_ring::UserRing, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

type Init<'a> = QpInitAttr<'a, IbDevice>;

impl QueuePairs for IbDevice {
    type Qp = Qp;

    fn create_qp(pd: &Pd<Self>, init: &Init<'_>, consumer: QpConsumer) -> Result<NewQp<Qp>> {
        let device = &pd.device().virtio;
        check(device, init)?;
        match device.queues() {
            Queues::OwnRings(_) => in_rings(pd, init, consumer),
            Queues::Transport(transport) => in_virtqueues(pd, transport, init, consumer),
        }
    }
}

impl UserQueuePairs for IbDevice {
    fn create_user_qp(
        context: &Context<Self>,
        pd: &Pd<Self>,
        init: &Init<'_>,
        consumer: QpConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewQp<Qp>> {
        let ib_device = pd.device();
        let device = &ib_device.virtio;
        check(device, init)?;
        // The GSI QP belongs to the core: peers trust its management datagrams.
        if init.qp_type() == QpType::Gsi {
            return Err(EPERM);
        }
        if let Queues::Transport(transport) = device.queues() {
            udata.no_request()?;
            // uverbs passes SGEs with addresses of the process, from which the driver can't copy an
            // inline payload.
            if init.cap().max_inline_data != 0 {
                return Err(EINVAL);
            }
            return in_virtqueues(pd, transport, init, consumer);
        }
        let cap = cap(init);
        let request: uverbs::CreateQpReq = udata.request()?;
        let make = |ring: &uverbs::UserRing, (entries, slot_size)| {
            if *ring == uverbs::UserRing::default() && entries == 0 {
                return Ok((None, RingAddr::default(), None));
            }
            let (mappings, kind) = (context.mappings(), RingKind::Work);
            let mut ring = UserRing::new(ib_device, mappings, kind, ring, entries, slot_size)?;
            let (address, list) = ring.address(ib_device)?;
            Ok::<_, Error>((Some(ring), address, Some(list)))
        };
        let [send_size, recv_size] = sizes(&cap);
        let (sq, sq_address, sq_list) = make(&request.sq, send_size)?;
        let (rq, rq_address, rq_list) = make(&request.rq, recv_size)?;
        let events = register(device, consumer)?;
        let request = CmdCreateQpRings {
            base: command(pd, init, &cap, CreateFlags::USER),
            sq: sq_address,
            rq: rq_address,
            doorbell_page: context.doorbell_page()?,
            cookie: events.cookie(),
        };
        let memory = (sq, rq, sq_list, rq_list);
        let attributes = Attributes::new(init, cap)?;
        let (response, (sq, rq, ..)) = verbs::create(device, &request, memory)?;
        let mapping = |ring: &Option<UserRing>| ring.as_ref().map(UserRing::mapping);
        let mappings = uverbs::CreateQpResp {
            sq: mapping(&sq).unwrap_or_default(),
            rq: mapping(&rq).unwrap_or_default(),
        };
        // From here on, an error drops `qp`, which destroys the QP.
        let qp = Qp {
            device: device.clone(),
            number: response.qpn,
            attributes,
            is_process: true,
            poster: Poster::User(sq, rq),
            events: Some(events.numbered(response.qpn)),
        };
        udata.respond(&mappings)?;
        finish(qp)
    }
}

/// Creates a QP in rings of the kernel.
fn in_rings(pd: &Pd<IbDevice>, init: &Init<'_>, consumer: QpConsumer) -> Result<NewQp<Qp>> {
    let ib_device = pd.device();
    let device = &ib_device.virtio;
    let mut cap = cap(init);
    let [(_, send_size), _] = sizes(&cap);
    if let Some(slot_shift) = slot_shift_for(send_size).filter(|_| cap.max_send_wr != 0) {
        let limit = device.limits().queues.max_inline_data;
        cap.max_inline_data = inline_room(slot_shift, limit);
    }
    let client = client(pd, init, &consumer);
    let shared = match init.srq() {
        Some(srq) => Some(SharedSource {
            srq: srq.kernel()?.clone(),
            client: client.clone(),
        }),
        None => None,
    };
    let make = |kind, (entries, slot_size)| {
        if entries == 0 {
            return Ok((None, RingAddr::default(), None));
        }
        let ring = KernelRing::new(ib_device, RingKind::Work, entries, slot_size)?;
        let queue = WorkRing::in_ring(ring.clone(), kind, client.clone())?;
        Ok::<_, Error>((Some(queue), ring.address()?, Some(ring)))
    };
    let [send_size, recv_size] = sizes(&cap);
    let (sq, sq_address, sq_ring) = make(DoorbellKind::Sq, send_size)?;
    let (rq, rq_address, rq_ring) = make(DoorbellKind::Rq, recv_size)?;
    let events = register(device, consumer)?;
    let request = CmdCreateQpRings {
        base: command(pd, init, &cap, CreateFlags::NONE),
        sq: sq_address,
        rq: rq_address,
        doorbell_page: KERNEL_DOORBELL_PAGE,
        cookie: events.cookie(),
    };
    let attributes = Attributes::new(init, cap)?;
    let (response, _rings) = verbs::create(device, &request, (sq_ring, rq_ring))?;
    // From here on, an error drops `qp`, which destroys the QP.
    let mut qp = Qp {
        device: device.clone(),
        number: response.qpn,
        attributes,
        is_process: pd.context().is_some(),
        poster: Poster::Kernel(KernelQp::default(), None),
        events: Some(events.numbered(response.qpn)),
    };
    let vacated = device.leaving.await_end(qp.number);
    attach(&mut qp, vacated, init, sq, rq, shared)?;
    finish(qp)
}

/// Creates a QP in virtqueues of the transport. The kernel posts to it, even for a process.
fn in_virtqueues(
    pd: &Pd<IbDevice>,
    transport: &Transport,
    init: &Init<'_>,
    consumer: QpConsumer,
) -> Result<NewQp<Qp>> {
    let device = &pd.device().virtio;
    let mut cap = init.cap();
    // Capabilities are rounded up to a power of two, as the slots of a ring are, but not above the
    // device's limit.
    let limit = device.limits().queues.max_qp_wr;
    let round = |entries: u32| match entries {
        0 => 0,
        entries => entries.next_power_of_two().min(limit),
    };
    cap.max_send_wr = round(cap.max_send_wr);
    cap.max_recv_wr = round(cap.max_recv_wr);
    let request = command(pd, init, &cap, CreateFlags::NONE);
    let attributes = Attributes::new(init, cap)?;
    let (response, ()) = verbs::create(device, &request, ())?;
    // From here on, an error drops `qp`, which destroys the QP.
    let mut qp = Qp {
        device: device.clone(),
        number: response.qpn,
        attributes,
        is_process: pd.context().is_some(),
        poster: Poster::Kernel(KernelQp::default(), None),
        events: None,
    };
    let vacated = device.leaving.await_end(qp.number);
    let leases = transport.lease_pair(vacated)?;
    let [send, recv] = [0, 1].map(|index| leases[index].queue().clone());
    qp.poster = Poster::Kernel(KernelQp::default(), Some(leases));
    let client = client(pd, init, &consumer);
    let make = |queue, kind, (entries, slot_size): (u32, usize)| {
        if entries == 0 {
            return Ok(None);
        }
        let slots = entries.checked_next_power_of_two().ok_or(EINVAL)?;
        WorkRing::in_virtqueue(queue, slots, slot_size, kind, client.clone()).map(Some)
    };
    let [send_size, recv_size] = sizes(&cap);
    let sq = make(&send, DoorbellKind::Sq, send_size)?;
    let rq = make(&recv, DoorbellKind::Rq, recv_size)?;
    attach(&mut qp, vacated, init, sq, rq, None)?;
    finish(qp)
}

/// Attaches the queues of a QP of the kernel to its CQs.
fn attach(
    qp: &mut Qp,
    number: Vacated<Qpn>,
    init: &Init<'_>,
    sq: Option<Arc<WorkRing>>,
    rq: Option<Arc<WorkRing>>,
    shared: Option<SharedSource>,
) -> Result {
    let (send_cq, recv_cq) = (init.send_cq().kernel()?, init.recv_cq().kernel()?);
    let number = number.get();
    let attach = |queue: Option<Arc<WorkRing>>, cq| {
        let attach = |queue: Arc<WorkRing>| {
            queue.set_number(number);
            Attached::new(queue, cq)
        };
        queue.map(attach).transpose()
    };
    if let Poster::Kernel(kernel, _) = &mut qp.poster {
        kernel.send = attach(sq, send_cq)?;
        kernel.recv = attach(rq, recv_cq)?;
        if let Some(source) = shared {
            kernel.shared = Some(AttachedShared::new(source, number, recv_cq)?);
        }
    }
    Ok(())
}

/// Checks the number of a new QP and returns the QP.
fn finish(qp: Qp) -> Result<NewQp<Qp>> {
    let is_gsi = qp.qp_type() == QpType::Gsi;
    decode::qp::check_number(qp.number, is_gsi).map_err(|_| EIO)?;
    Ok(NewQp {
        number: qp.number.get(),
        cap: *qp.cap(),
        driver: qp,
    })
}

/// Checks the attributes of a new QP of the kernel or of a process.
fn check(device: &Device, init: &Init<'_>) -> Result {
    let limits = device.limits();
    let blocks_loopback = limits.has(Feature::Multicast) && init.qp_type() == QpType::Ud;
    let allowed = match blocks_loopback {
        true => QpCreateFlags::BLOCK_MULTICAST_LOOPBACK,
        false => QpCreateFlags(0),
    };
    if !allowed.contains(init.create_flags()) {
        return Err(EOPNOTSUPP);
    }
    if init.srq().is_some() && init.qp_type() == QpType::Gsi {
        return Err(EINVAL);
    }
    let cap = cap(init);
    let valid = cap.max_send_wr <= limits.queues.max_qp_wr
        && cap.max_recv_wr <= limits.queues.max_qp_wr
        && cap.max_send_sge <= limits.config.max_send_sge
        && cap.max_recv_sge <= limits.config.max_recv_sge
        && cap.max_inline_data <= limits.queues.max_inline_data;
    valid.then_some(()).ok_or(EINVAL)
}

/// The requested sizes of a QP. A QP that takes its receives from an SRQ has no receive queue,
/// whatever the consumer requests.
fn cap(init: &Init<'_>) -> QpCap {
    let cap = init.cap();
    match init.srq() {
        Some(_) => QpCap {
            max_recv_wr: 0,
            max_recv_sge: 0,
            ..cap
        },
        None => cap,
    }
}

/// Number of work requests and length of the longest WQE in bytes: of the send queue and of the
/// receive queue. A send WQE has room for an inline payload, even an empty one.
fn sizes(cap: &QpCap) -> [(u32, usize); 2] {
    // CAST: `usize` has at least 32 bits.
    let send = sq_wqe_size(cap.max_send_sge as usize);
    let send = send.max(INLINE_OFFSET + cap.max_inline_data as usize);
    let recv = rq_wqe_size(cap.max_recv_sge as usize);
    [(cap.max_send_wr, send), (cap.max_recv_wr, recv)]
}

fn register(device: &Device, consumer: QpConsumer) -> Result<EventRegistration> {
    let handler = Arc::new(QpEventHandler(consumer), GFP_KERNEL)?;
    device.event_handlers().register(handler)
}

/// The CREATE_QP command without the addresses of rings.
fn command(pd: &Pd<IbDevice>, init: &Init<'_>, cap: &QpCap, flags: CreateFlags) -> CmdCreateQp {
    let loopback = match init.create_flags() {
        QpCreateFlags::BLOCK_MULTICAST_LOOPBACK => CreateFlags::BLOCK_MULTICAST_LOOPBACK,
        _ => CreateFlags::NONE,
    };
    let (flags, srqn) = match init.srq() {
        Some(srq) => (flags | CreateFlags::SRQ, srq.number()),
        None => (flags, Srqn::NONE),
    };
    let qp_type = match init.qp_type() {
        QpType::Gsi => ib::QpType::Gsi,
        QpType::Rc => ib::QpType::Rc,
        QpType::Uc => ib::QpType::Uc,
        QpType::Ud => ib::QpType::Ud,
    };
    let sig_type = match init.signal_all() {
        true => ib::SigType::All,
        false => ib::SigType::Requested,
    };
    CmdCreateQp {
        pdn: pd.number(),
        qp_type: qp_type.value(),
        sq_sig_type: sig_type.value(),
        max_send_wr: cap.max_send_wr,
        max_send_sge: cap.max_send_sge,
        send_cqn: init.send_cq().number(),
        max_recv_wr: cap.max_recv_wr,
        max_recv_sge: cap.max_recv_sge,
        recv_cqn: init.recv_cq().number(),
        max_inline_data: cap.max_inline_data,
        flags: flags | loopback,
        srqn,
        ..CmdCreateQp::default()
    }
}

/// The receiver of the completions of a QP that is being created.
fn client(pd: &Pd<IbDevice>, init: &Init<'_>, consumer: &QpConsumer) -> Client {
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
