// SPDX-License-Identifier: GPL-2.0

//! Virtqueues of the transport as CQs, SQs and RQs, for devices without rings at addresses of the
//! driver's choice (virtqueue mode).
//!
//! Probe finds all virtqueues. A new CQ or QP gets a number from the device, and with it the
//! virtqueues of that number. Once the CQ or QP was destroyed, its virtqueues are reset for the
//! next owner.
//!
//! A virtqueue of CQEs interrupts only when a command armed its CQ. Arming must not sleep, so the
//! driver does not wait for the answer. Nevertheless no completion is missed: when the device
//! processes the command, it compares the CQEs that it wrote with those that were polled.
//!
//! Lock order: `is_leased`, then the locks of a queue's reset; `CqVirtqueue::arming`, then the
//! locks of the control queue.

use crate::{
    abi::{
        ctrl::{
            CmdReqNotify,
            NotifyFlags, //
        },
        event::EventKind,
        number::{
            Cqn,
            Qpn, //
        },
        ring::ArmKind,
    },
    ctrl::{
        AsyncCommand,
        CommandBuffer,
        ControlQueue,
        Failure, //
    },
    decode::{
        config::QueueLimits,
        event::{
            Cookie,
            KnownEvent, //
        },
    },
    event_handlers::EventHandlers,
    leaving::Vacated,
    virtio::{
        self,
        Buffer,
        Handler,
        Virtqueue,
        VirtqueueInfo, //
    },
};
use core::{
    mem::replace,
    ops::Deref, //
};
use kernel::{
    device::Bound,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        new_mutex,
        new_spinlock_irq,
        Arc,
        ArcBorrow,
        Mutex,
        SpinLockIrq, //
    },
};

/// Cookie of a virtqueue that belongs to no CQ: the cookie of the device, whose handler ignores
/// completions.
const NO_COOKIE: u64 = 0;

/// A WQE or CQE in a virtqueue.
pub(crate) type Element = KBox<Buffer<()>>;

/// A virtqueue with work requests.
#[pin_data]
pub(crate) struct WorkVirtqueue {
    queue: Arc<Virtqueue<()>>,
    /// Whether a QP owns the virtqueue. The lock is held while the virtqueue is reset.
    #[pin]
    is_leased: Mutex<bool>,
}

/// A virtqueue with CQEs.
#[pin_data]
pub(crate) struct CqVirtqueue {
    queue: Arc<Virtqueue<()>>,
    /// Whether a CQ owns the virtqueue. The lock is held while the virtqueue is reset.
    #[pin]
    is_leased: Mutex<bool>,
    cqn: Cqn,
    ctrl: Arc<ControlQueue>,
    event_handlers: Arc<EventHandlers>,
    /// Cookie of the handler that receives completion events.
    cookie: Atomic<u64>,
    #[pin]
    arming: SpinLockIrq<Arming>,
}

/// State of the commands that arm a CQ; at most one is in flight.
struct Arming {
    /// The buffer for the command; empty while a command is in flight.
    buffer: Option<CommandBuffer>,
    /// The request to send when the buffer is available again.
    next: NotifyFlags,
    /// Cookie of the CQ that the command in flight arms.
    cookie: u64,
}

impl CqVirtqueue {
    /// Sets the handler of completion events by its cookie.
    pub(crate) fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Release);
    }

    /// Requests an interrupt of the device. Can be called in any context.
    pub(crate) fn arm(self: &Arc<Self>, kind: ArmKind) {
        let flags = match kind {
            ArmKind::None => return,
            ArmKind::Next => NotifyFlags::NEXT_COMPLETION,
            ArmKind::Solicited => NotifyFlags::SOLICITED,
        };
        let mut arming = self.arming.lock();
        arming.next = arming.next | flags;
        self.send(&mut arming);
    }

    /// Sends REQ_NOTIFY_CQ for the pending request, unless an earlier command still has the buffer.
    fn send(self: &Arc<Self>, arming: &mut Arming) {
        let Some(buffer) = arming.buffer.take() else {
            return;
        };
        arming.cookie = self.cookie.load(Acquire);
        let request = CmdReqNotify {
            cqn: self.cqn,
            flags: replace(&mut arming.next, NotifyFlags::NONE),
        };
        // A device that accepts no commands fails, and wakes all consumers once it has stopped.
        arming.buffer = self.ctrl.start(&request, buffer, self.clone()).err();
    }
}

impl AsyncCommand for CqVirtqueue {
    fn answered(self: ArcBorrow<'_, Self>, buffer: CommandBuffer, result: Result<(), Failure>) {
        let mut arming = self.arming.lock();
        arming.buffer = Some(buffer);
        let cookie = arming.cookie;
        if arming.next != NotifyFlags::NONE {
            let this: Arc<Self> = self.into();
            this.send(&mut arming);
        }
        drop(arming);
        // If the CQ was destroyed, no handler has the cookie any more, even if a new CQ has its
        // number.
        if result.is_err() {
            self.event_handlers
                .with(Cookie::decode(cookie), |handler| handler.arming_refused());
        }
    }
}

impl Handler for CqVirtqueue {
    fn vq_callback(self: ArcBorrow<'_, Self>, dev: &virtio::Device<Bound>) {
        let event = KnownEvent {
            kind: EventKind::Completion,
            object: Cookie::decode(self.cookie.load(Acquire)),
        };
        self.event_handlers.deliver(dev.as_ref(), &event);
    }
}

/// A virtqueue that one CQ or QP owns at a time.
pub(crate) trait Leasable: Send + Sync {
    /// The virtqueue.
    fn elements(&self) -> &Virtqueue<()>;

    /// Whether a CQ or QP owns the virtqueue.
    fn is_leased(&self) -> &Mutex<bool>;

    /// Removes references to the owner. Called before the virtqueue is reset.
    fn forget(&self) {}
}

impl Leasable for WorkVirtqueue {
    fn elements(&self) -> &Virtqueue<()> {
        &self.queue
    }

    fn is_leased(&self) -> &Mutex<bool> {
        &self.is_leased
    }
}

impl Leasable for CqVirtqueue {
    fn elements(&self) -> &Virtqueue<()> {
        &self.queue
    }

    fn is_leased(&self) -> &Mutex<bool> {
        &self.is_leased
    }

    fn forget(&self) {
        self.cookie.store(NO_COOKIE, Relaxed);
        self.arming.lock().next = NotifyFlags::NONE;
    }
}

/// Ownership of a virtqueue by a CQ or QP.
///
/// The owner drops the lease after the device destroyed the CQ or QP. The drop resets the
/// virtqueue, which may sleep, and lets the next CQ or QP lease it.
pub(crate) struct VirtqueueLease<Q: Leasable>(Arc<Q>);

impl<Q: Leasable> VirtqueueLease<Q> {
    fn new(queue: &Arc<Q>) -> Result<Self> {
        if replace(&mut *queue.is_leased().lock(), true) {
            // The device assigned a number twice.
            return Err(EIO);
        }
        Ok(Self(queue.clone()))
    }

    /// The virtqueue.
    pub(crate) fn queue(&self) -> &Arc<Q> {
        &self.0
    }
}

impl<Q: Leasable> Deref for VirtqueueLease<Q> {
    type Target = Q;

    fn deref(&self) -> &Q {
        &self.0
    }
}

impl<Q: Leasable> Drop for VirtqueueLease<Q> {
    fn drop(&mut self) {
        self.0.forget();
        // Locked until the reset is complete: the device may already have assigned the number
        // again, and the next lease must wait.
        let mut is_leased = self.0.is_leased().lock();
        // If the reset fails, the virtqueue stays leased, and the next CQ or QP with its number is
        // refused. A device that does not work assigns no more numbers.
        *is_leased = self.0.elements().reset().is_err();
    }
}

/// The virtqueues of a device.
pub(crate) struct Transport {
    cqs: KVec<Arc<CqVirtqueue>>,
    /// Send queue and receive queue of each QP.
    pairs: KVec<[Arc<WorkVirtqueue>; 2]>,
}

impl Transport {
    /// The virtqueues for these limits, not attached to a device.
    pub(crate) fn new(
        limits: &QueueLimits,
        ctrl: &Arc<ControlQueue>,
        event_handlers: &Arc<EventHandlers>,
    ) -> Result<Self> {
        let mut cqs = KVec::with_capacity(usize::try_from(limits.max_cq)?, GFP_KERNEL)?;
        for number in 0..limits.max_cq {
            let buffer = Some(ControlQueue::background_buffer()?);
            let arming = Arming {
                buffer,
                next: NotifyFlags::NONE,
                cookie: NO_COOKIE,
            };
            let queue = Arc::pin_init(Virtqueue::new(), GFP_KERNEL)?;
            let queue = Arc::pin_init(
                pin_init!(CqVirtqueue {
                    queue,
                    is_leased <- new_mutex!(false, "virtio_rdma::transport::leased"),
                    cqn: Cqn::new(number),
                    ctrl: ctrl.clone(),
                    event_handlers: event_handlers.clone(),
                    cookie: Atomic::new(NO_COOKIE),
                    arming <- new_spinlock_irq!(arming, "virtio_rdma::transport::arming"),
                }),
                GFP_KERNEL,
            )?;
            cqs.push(queue, GFP_KERNEL)?;
        }
        let new_queue = || {
            let queue = Arc::pin_init(Virtqueue::new(), GFP_KERNEL)?;
            Arc::pin_init(
                pin_init!(WorkVirtqueue {
                    queue,
                    is_leased <- new_mutex!(false, "virtio_rdma::transport::leased"),
                }),
                GFP_KERNEL,
            )
        };
        let mut pairs = KVec::with_capacity(usize::try_from(limits.max_qp)?, GFP_KERNEL)?;
        for _ in 0..limits.max_qp {
            pairs.push([new_queue()?, new_queue()?], GFP_KERNEL)?;
        }
        Ok(Self { cqs, pairs })
    }

    /// Adds the virtqueues, in the order of their numbers, to the control queue.
    pub(crate) fn add_queues(&self, to: &mut KVec<VirtqueueInfo>) -> Result {
        for (number, cq) in self.cqs.iter().enumerate() {
            let name = CString::try_from_fmt(fmt!("cq.{number}"))?;
            let info = VirtqueueInfo::new(name, &cq.queue, Some(cq.clone()));
            to.push(info, GFP_KERNEL)?;
        }
        for (pair, number) in self.pairs.iter().zip(1..) {
            for (work, kind) in pair.iter().zip(["sq", "rq"]) {
                let name = CString::try_from_fmt(fmt!("{kind}.{number}"))?;
                // Send and receive queues have no interrupts: used elements are taken out when room
                // is needed.
                to.push(VirtqueueInfo::new(name, &work.queue, None), GFP_KERNEL)?;
            }
        }
        Ok(())
    }

    /// Lowers limits to the sizes of the virtqueues that were found.
    pub(crate) fn limit(&self, limits: &mut QueueLimits) {
        let least = |sizes: &mut dyn Iterator<Item = usize>| {
            sizes.min().and_then(|size| u32::try_from(size).ok())
        };
        let cqs = least(&mut self.cqs.iter().map(|cq| cq.queue.vring_size()));
        let work = least(
            &mut self
                .pairs
                .iter()
                .flatten()
                .map(|work| work.queue.vring_size()),
        );
        limits.max_cqe = limits.max_cqe.min(cqs.unwrap_or(0));
        limits.max_qp_wr = limits.max_qp_wr.min(work.unwrap_or(0));
    }

    /// Leases the virtqueue of CQ `cqn`, which the device has just created.
    ///
    /// # Errors
    ///
    /// `EIO` if there is no such virtqueue or a CQ owns it.
    pub(crate) fn lease_cq(&self, cqn: Vacated<Cqn>) -> Result<VirtqueueLease<CqVirtqueue>> {
        VirtqueueLease::new(self.cqs.get(usize::try_from(cqn.get().get())?).ok_or(EIO)?)
    }

    /// Leases the send queue and the receive queue of QP `qpn`, which the device has just created.
    ///
    /// # Errors
    ///
    /// `EIO` if there are no such virtqueues or a QP owns them.
    pub(crate) fn lease_pair(
        &self,
        qpn: Vacated<Qpn>,
    ) -> Result<[VirtqueueLease<WorkVirtqueue>; 2]> {
        let index = qpn.get().get().checked_sub(1).ok_or(EIO)?;
        let [send, recv] = self.pairs.get(usize::try_from(index)?).ok_or(EIO)?;
        Ok([VirtqueueLease::new(send)?, VirtqueueLease::new(recv)?])
    }
}
