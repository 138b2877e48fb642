// SPDX-License-Identifier: GPL-2.0

//! Queues of the transport, where rings at addresses of the driver's choice were not negotiated.
//!
//! All of them are found in the probe. A CQ or QP that is created gets a number from the device,
//! and with it the virtqueues of that number; when it was destroyed they are reset and wait for the
//! next.
//!
//! A virtqueue of CQEs interrupts only when its CQ was armed by a command, which is sent without
//! waiting for the answer, as arming must not sleep. Nothing is lost by that: the device compares
//! what it completed with what was polled by the time that it processes the command.
//!
//! Lock order: `claimed`, then those of a queue's reset; `CqVirtqueue::arming`, then those of the
//! control queue.

use crate::{
    abi::{
        ctrl::{
            CmdReqNotify,
            NotifyFlags, //
        },
        number::{
            Cqn,
            Qpn, //
        },
        ring::ArmKind,
    },
    ctrl::{
        Background,
        CommandBuffer,
        ControlQueue, //
    },
    decode::{
        config::QueueLimits,
        event::Cookie, //
    },
    targets::EventTargets,
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

/// Cookie of a virtqueue that belongs to no CQ. It is the device's, which has no completions.
const NO_COOKIE: u64 = 0;

/// A WQE or CQE in a virtqueue.
pub(crate) type Element = KBox<Buffer<()>>;

/// A virtqueue with work requests.
#[pin_data]
pub(crate) struct WorkVirtqueue {
    queue: Arc<Virtqueue<()>>,
    /// Whether a CQ or QP has the virtqueue. The lock is held while the virtqueue is reset.
    #[pin]
    claimed: Mutex<bool>,
}

/// A virtqueue with CQEs.
#[pin_data]
pub(crate) struct CqVirtqueue {
    queue: Arc<Virtqueue<()>>,
    /// Whether a CQ or QP has the virtqueue. The lock is held while the virtqueue is reset.
    #[pin]
    claimed: Mutex<bool>,
    cqn: Cqn,
    ctrl: Arc<ControlQueue>,
    targets: Arc<EventTargets>,
    /// Receiver of completion events.
    cookie: Atomic<u64>,
    #[pin]
    arming: SpinLockIrq<Arming>,
}

/// A request to the device that is under way.
struct Arming {
    /// The buffer of the command, unless it is under way.
    buffer: Option<CommandBuffer>,
    /// The request to send once it is back.
    next: NotifyFlags,
    /// The CQ that the command under way is about, by its cookie.
    cookie: u64,
}

impl CqVirtqueue {
    /// Passes completions to the target with this cookie from here on.
    pub(crate) fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Release);
    }

    /// Asks the device for an interrupt. Can be called in any context.
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
        // A device that takes no commands is about to be found dead, and then everybody is woken.
        arming.buffer = self.ctrl.start(&request, buffer, self.clone()).err();
    }
}

impl Background for CqVirtqueue {
    fn answered(self: ArcBorrow<'_, Self>, buffer: CommandBuffer, result: Result) {
        let mut arming = self.arming.lock();
        arming.buffer = Some(buffer);
        let cookie = arming.cookie;
        if arming.next != NotifyFlags::NONE {
            let this: Arc<Self> = self.into();
            this.send(&mut arming);
        }
        drop(arming);
        // Unless the CQ is destroyed, or another has its number by now: the cookie says so.
        if result.is_err() {
            self.targets
                .with(Cookie::decode(cookie), |target| target.arming_refused());
        }
    }
}

impl Handler for CqVirtqueue {
    fn vq_callback(self: ArcBorrow<'_, Self>, _dev: &virtio::Device<Bound>) {
        let cookie = self.cookie.load(Acquire);
        self.targets
            .with(Cookie::decode(cookie), |target| target.completion());
    }
}

/// A virtqueue that one CQ or QP has at a time.
pub(crate) trait Claimable: Send + Sync {
    /// The virtqueue.
    fn elements(&self) -> &Virtqueue<()>;

    /// Whether a CQ or QP has the virtqueue.
    fn claimed(&self) -> &Mutex<bool>;

    /// It goes back.
    fn forget(&self) {}
}

impl Claimable for WorkVirtqueue {
    fn elements(&self) -> &Virtqueue<()> {
        &self.queue
    }

    fn claimed(&self) -> &Mutex<bool> {
        &self.claimed
    }
}

impl Claimable for CqVirtqueue {
    fn elements(&self) -> &Virtqueue<()> {
        &self.queue
    }

    fn claimed(&self) -> &Mutex<bool> {
        &self.claimed
    }

    fn forget(&self) {
        self.cookie.store(NO_COOKIE, Relaxed);
        self.arming.lock().next = NotifyFlags::NONE;
    }
}

/// A virtqueue in the hands of a CQ or QP.
///
/// When it is dropped, which is after the device gave the CQ or QP up, it is reset and can be had
/// again. It may sleep.
pub(crate) struct Claim<Q: Claimable>(Arc<Q>);

impl<Q: Claimable> Claim<Q> {
    fn new(queue: &Arc<Q>) -> Result<Self> {
        if replace(&mut *queue.claimed().lock(), true) {
            // The device gave a number away twice.
            return Err(EIO);
        }
        Ok(Self(queue.clone()))
    }

    /// The virtqueue.
    pub(crate) fn queue(&self) -> &Arc<Q> {
        &self.0
    }
}

impl<Q: Claimable> Deref for Claim<Q> {
    type Target = Q;

    fn deref(&self) -> &Q {
        &self.0
    }
}

impl<Q: Claimable> Drop for Claim<Q> {
    fn drop(&mut self) {
        self.0.forget();
        // The device may give the number away as soon as it was reset.
        let mut claimed = self.0.claimed().lock();
        // A dead device gives no number away. If the reset fails, the virtqueue stays claimed, and
        // the next CQ or QP with its number is refused.
        *claimed = self.0.elements().reset().is_err();
    }
}

/// The virtqueues of a device.
pub(crate) struct Transport {
    cqs: KVec<Arc<CqVirtqueue>>,
    /// Send queues and receive queues.
    pairs: KVec<[Arc<WorkVirtqueue>; 2]>,
}

impl Transport {
    /// The virtqueues for these limits, not attached to a device.
    pub(crate) fn new(
        limits: &QueueLimits,
        ctrl: &Arc<ControlQueue>,
        targets: &Arc<EventTargets>,
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
                    claimed <- new_mutex!(false, "virtio_rdma::transport::claimed"),
                    cqn: Cqn::new(number),
                    ctrl: ctrl.clone(),
                    targets: targets.clone(),
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
                    claimed <- new_mutex!(false, "virtio_rdma::transport::claimed"),
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
                // No interrupts: used elements are looked at when there is need for room.
                to.push(VirtqueueInfo::new(name, &work.queue, None), GFP_KERNEL)?;
            }
        }
        Ok(())
    }

    /// Lowers limits to what the rings hold that were found.
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

    /// Takes the virtqueue of CQ `cqn`, which the device has just created.
    ///
    /// # Errors
    ///
    /// `EIO` if it has no such CQ or gave the number away before.
    pub(crate) fn claim_cq(&self, cqn: Cqn) -> Result<Claim<CqVirtqueue>> {
        Claim::new(self.cqs.get(usize::try_from(cqn.get())?).ok_or(EIO)?)
    }

    /// Takes the virtqueues of QP `qpn`, which the device has just created: the send queue and
    /// the receive queue.
    ///
    /// # Errors
    ///
    /// `EIO` if it has no such QP or gave the number away before.
    pub(crate) fn claim_pair(&self, qpn: Qpn) -> Result<[Claim<WorkVirtqueue>; 2]> {
        let index = qpn.get().checked_sub(1).ok_or(EIO)?;
        let [send, recv] = self.pairs.get(usize::try_from(index)?).ok_or(EIO)?;
        Ok([Claim::new(send)?, Claim::new(recv)?])
    }
}
