// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    consumer::{
        handled,
        Consumer,
        ConsumerLink, //
    },
    cq::{
        CompletionQueues,
        Cq, //
    },
    event::QpEvent,
    object::{
        core_object,
        CoreObject,
        Object, //
    },
    pd::{
        Pd,
        ProtectionDomains, //
    },
    qp_attr::QpCap,
    ucontext::{
        Context,
        UserContexts, //
    },
    udata::{
        self,
        Udata, //
    },
    Device, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*,
    types::Opaque, //
};

/// A device with queue pairs.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     pd::Pd,
///     qp::{NewQp, Qp, QpConsumer, QpCreateFlags, QpInitAttr, QueuePairs},
///     qp_attr::QpCap,
/// };
///
/// /// The result of `create_qp` for a QP that receives its own multicast messages.
/// fn create<T: QueuePairs>(
///     _pd: &Pd<T>,
///     init: &QpInitAttr<'_, T>,
///     consumer: QpConsumer,
/// ) -> Result<NewQp<QpConsumer>> {
///     if init.create_flags().contains(QpCreateFlags::BLOCK_MULTICAST_LOOPBACK) {
///         return Err(EOPNOTSUPP);
///     }
///     let cap = QpCap {
///         max_inline_data: 0,
///         ..init.cap()
///     };
///     Ok(NewQp {
///         number: 2,
///         cap,
///         driver: consumer,
///     })
/// }
///
/// /// Whether two QPs belong to the same device.
/// fn share_a_device<T: QueuePairs>(one: &Qp<T>, other: &Qp<T>) -> bool {
///     core::ptr::eq(one.device(), other.device())
/// }
/// ```
pub trait QueuePairs: CompletionQueues + ProtectionDomains {
    /// Driver's part of a QP. Dropping it destroys the QP.
    type Qp: Send + Sync;

    /// Creates a QP of a kernel client.
    fn create_qp(
        pd: &Pd<Self>,
        init: &QpInitAttr<'_, Self>,
        consumer: QpConsumer,
    ) -> Result<NewQp<Self::Qp>>;
}

/// A device with queue pairs in memory of processes.
pub trait UserQueuePairs: QueuePairs + UserContexts {
    /// Creates a QP in memory of the current process.
    fn create_user_qp(
        context: &Context<Self>,
        pd: &Pd<Self>,
        init: &QpInitAttr<'_, Self>,
        consumer: QpConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewQp<Self::Qp>>;
}

core_enum! {
    /// Type of a QP.
    QpType: ib_qp_type else EOPNOTSUPP {
        /// General services interface.
        Gsi = ib_qp_type_IB_QPT_GSI,
        /// Reliable connection.
        Rc = ib_qp_type_IB_QPT_RC,
        /// Unreliable connection.
        Uc = ib_qp_type_IB_QPT_UC,
        /// Unreliable datagram.
        Ud = ib_qp_type_IB_QPT_UD,
    }
}

impl QpType {
    /// Whether each send work request names its own destination.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Gsi | Self::Ud)
    }
}

/// Bits of `enum ib_qp_create_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCreateFlags(pub u32);

impl QpCreateFlags {
    /// The QP does not receive its own multicasts.
    pub const BLOCK_MULTICAST_LOOPBACK: Self =
        Self(bindings::ib_qp_create_flags_IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK as u32);

    /// Whether every bit of `bits` is set.
    pub const fn contains(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }
}

/// Attributes of a new QP.
///
/// # Examples
///
/// ```
/// use crate::rdma::qp::{QpInitAttr, QpType, QueuePairs};
///
/// /// The requested size of a send queue, for a device with connected QPs only.
/// fn room<T: QueuePairs>(init: &QpInitAttr<'_, T>) -> Result<u32> {
///     match init.qp_type() {
///         QpType::Rc | QpType::Uc => Ok(init.cap().max_send_wr),
///         QpType::Gsi | QpType::Ud => Err(EOPNOTSUPP),
///     }
/// }
/// ```
///
/// # Invariants
///
/// `srq` is null or an SRQ that is valid for `'a` and belongs to the device.
pub struct QpInitAttr<'a, T: QueuePairs> {
    qp_type: QpType,
    send_cq: &'a Cq<T>,
    recv_cq: &'a Cq<T>,
    srq: *mut bindings::ib_srq,
    signal_all: bool,
    create_flags: QpCreateFlags,
    cap: QpCap,
}

impl<'a, T: QueuePairs> QpInitAttr<'a, T> {
    /// Converts the attributes that every QP has. The core leaves the others, such as the port, to
    /// QPs of certain types, and they may be uninitialized.
    ///
    /// # Safety
    ///
    /// The attributes that every QP has are initialized in `raw`. The CQs and the SRQ are null or
    /// valid for `'a`, and belong to the device.
    unsafe fn from_raw(raw: *const bindings::ib_qp_init_attr) -> Result<Self> {
        // SAFETY: The attributes that every QP has are initialized in `raw`.
        let (qp_type, send_cq, recv_cq) =
            unsafe { ((*raw).qp_type, (*raw).send_cq, (*raw).recv_cq) };
        let qp_type = QpType::try_from(qp_type)?;
        if send_cq.is_null() || recv_cq.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: The attributes are initialized. CQs and SRQ are null or valid for `'a`, and of
        // the device.
        //
        // INVARIANT: The SRQ is null or valid for `'a`, and belongs to the device.
        Ok(unsafe {
            Self {
                qp_type,
                send_cq: Cq::from_raw(send_cq),
                recv_cq: Cq::from_raw(recv_cq),
                srq: (*raw).srq,
                signal_all: (*raw).sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR,
                create_flags: QpCreateFlags((*raw).create_flags),
                cap: QpCap::from_raw(&(*raw).cap),
            }
        })
    }

    /// The type of the QP.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// CQ of the send queue.
    pub fn send_cq(&self) -> &'a Cq<T> {
        self.send_cq
    }

    /// CQ of the receive queue.
    pub fn recv_cq(&self) -> &'a Cq<T> {
        self.recv_cq
    }

    /// The shared receive queue, or null.
    pub(super) fn raw_srq(&self) -> *mut bindings::ib_srq {
        self.srq
    }

    /// Whether all send work requests get a CQE, not only the signaled ones.
    pub fn signal_all(&self) -> bool {
        self.signal_all
    }

    /// The creation flags.
    pub fn create_flags(&self) -> QpCreateFlags {
        self.create_flags
    }

    /// The requested sizes.
    pub fn cap(&self) -> QpCap {
        self.cap
    }
}

/// A QP that was created.
pub struct NewQp<D> {
    /// QPN.
    pub number: u32,
    /// The actual sizes.
    pub cap: QpCap,
    /// Driver's part.
    pub driver: D,
}

/// A queue pair.
pub type Qp<T> = Object<bindings::ib_qp, T>;

/// A handle to the consumer of a QP.
pub type QpConsumer = Consumer<bindings::ib_qp>;

/// The abstraction's part of a QP.
pub struct QpOwn {
    link: ConsumerLink<bindings::ib_qp>,
    pub(super) signal_all: bool,
}

core_object!(ib_qp, QueuePairs, Qp, QpOwn);

handled! { ib_qp, QpEvent, qp_context, qp, }

/// A QP structure with a number and nothing else.
///
/// When the core polls the CQs of a process, it reads the QP numbers after the poll. The QPs may
/// have been destroyed by then. So the completions point to stubs in place of the QPs.
pub(super) struct QpStub(KBox<Opaque<bindings::ib_qp>>);

impl QpStub {
    /// The stub of QP `number`.
    pub(super) fn new(number: u32) -> Result<Self> {
        let stub = KBox::new(Opaque::<bindings::ib_qp>::zeroed(), GFP_KERNEL)?;
        // SAFETY: Nothing else refers to the structure yet, and zeroes are a valid value of it.
        unsafe { (*stub.get()).qp_num = number };
        Ok(Self(stub))
    }

    fn as_raw(&self) -> *mut bindings::ib_qp {
        self.0.get()
    }
}

// SAFETY: A stub is not written after its creation.
unsafe impl Send for QpStub {}

// SAFETY: See `Send`.
unsafe impl Sync for QpStub {}

/// Initializes the QP `raw` with the driver's part that `create` returns. `stub` returns, for a QP
/// number, the structure that completions point to in place of the QP.
///
/// # Safety
///
/// `raw` is allocated by the core for a device of `T` and not in use. `attr` is writable, and as
/// [`QpInitAttr::from_raw`] requires it.
unsafe fn create_with<T: QueuePairs>(
    raw: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_init_attr,
    create: impl FnOnce(&QpInitAttr<'_, T>, QpConsumer) -> Result<NewQp<T::Qp>>,
    stub: impl FnOnce(u32) -> Result<Option<*mut bindings::ib_qp>>,
) -> Result<c_int> {
    // SAFETY: `raw` is allocated for a device of `T`; the core has set the device, which stays
    // registered.
    let device = unsafe { Device::<T>::from_raw((*raw).device) };
    let link = ConsumerLink::new(device.work())?;
    let consumer = link.consumer();
    // SAFETY: `attr` is as `QpInitAttr::from_raw` requires it.
    let init = unsafe { QpInitAttr::<T>::from_raw(attr) }?;
    let signal_all = init.signal_all();
    let new = create(&init, consumer.clone())?;
    let owner = stub(new.number)?.unwrap_or(raw);
    let own = QpOwn { link, signal_all };
    // SAFETY: `raw` has the size that the operations state and is not in use yet; `init` is not
    // used any more.
    unsafe {
        let Ok(()) = Qp::<T>::init(raw, new.driver, own);
        (*raw).qp_num = new.number;
        new.cap.write(&mut (*attr).cap);
    }
    // SAFETY: The QP was created above, and `destroy` calls `unlink`.
    unsafe { consumer.link(raw, owner) };
    Ok(0)
}

/// # Safety
///
/// Called by the core as `create_qp` of a device of `T` without QPs of processes: `qp` is allocated
/// and not in use, `attr` as [`create_with`] requires it.
pub(super) unsafe extern "C" fn create<T: QueuePairs>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // The queues of the QP would be in the kernel, where the process can't use them.
    if !udata.is_null() {
        return EOPNOTSUPP.to_errno();
    }
    // SAFETY: `qp` is allocated and not in use, and `attr` is as `create_with` requires it; the
    // core has set the PD.
    from_result(|| unsafe {
        let pd = Pd::<T>::from_raw((*qp).pd);
        let create = |init: &QpInitAttr<'_, T>, consumer| T::create_qp(pd, init, consumer);
        create_with::<T>(qp, attr, create, |_| Ok(None))
    })
}

/// # Safety
///
/// Called by the core as `create_qp` of a device of `T`: `qp` is allocated and not in use, `attr`
/// valid and writable, `udata` null for a kernel client, else valid and part of a
/// `struct uverbs_attr_bundle`.
pub(super) unsafe extern "C" fn create_any<T: UserQueuePairs>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_qp_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    if udata.is_null() {
        // SAFETY: `udata` is null, `qp` is allocated and not in use, and `attr` is valid and
        // writable.
        return unsafe { create::<T>(qp, attr, udata) };
    }
    // SAFETY: `qp` is allocated and not in use, and `attr` and `udata` are valid; the core has set
    // the PD, and a verb of a process has a context.
    from_result(|| unsafe {
        let data = Udata::of_process(udata)?;
        let pd = Pd::<T>::from_raw((*qp).pd);
        let context = Context::<T>::from_raw(bindings::rdma_udata_to_ucontext(udata));
        let create = |init: &QpInitAttr<'_, T>, consumer| {
            T::create_user_qp(context, pd, init, consumer, &data)
        };
        // The core polls for the process only while the device is registered, and the stubs exist
        // longer.
        create_with::<T>(qp, attr, create, |number| {
            Ok(pd.device().completed_qp(number)?.map(QpStub::as_raw))
        })
    })
}

/// # Safety
///
/// Called by the core as `destroy_qp` of a device of `T`: `qp` was created and nothing uses it any
/// more, `udata` is null or valid.
pub(super) unsafe extern "C" fn destroy<T: QueuePairs>(
    qp: *mut bindings::ib_qp,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is null or valid.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: `qp` was created and is not destroyed yet.
        unsafe { Qp::<T>::from_raw(qp) }.own().link.unlink();
        // SAFETY: No other reference exists: the core destroys the QP, and no handler runs any
        // more.
        unsafe { Qp::<T>::drop_parts(qp) };
        Ok(0)
    })
}
