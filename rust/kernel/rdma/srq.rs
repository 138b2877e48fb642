// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    consumer::{
        handled,
        Consumer,
        ConsumerLink, //
    },
    event::SrqEvent,
    object::{
        core_object,
        CoreObject,
        Object, //
    },
    pd::Pd,
    qp::QpInitAttr,
    qp_attr::ModifyQueuePairs,
    ucontext::{
        Context,
        UserContexts, //
    },
    udata::{
        self,
        Udata, //
    },
    wr::{
        recv_list,
        RecvWrs, //
    },
    Device, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device with shared receive queues, of kernel clients and of processes.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     event::SrqEvent,
///     srq::{NewSrq, SharedReceiveQueues, Srq, SrqAttr, SrqConsumer},
/// };
///
/// /// The result of `create_srq` for an SRQ of the requested size.
/// fn create(attr: &SrqAttr, consumer: SrqConsumer) -> NewSrq<SrqConsumer> {
///     NewSrq {
///         max_wr: attr.max_wr,
///         max_sge: attr.max_sge,
///         driver: consumer,
///     }
/// }
///
/// /// Reports to the consumer of an SRQ if fewer work requests are left than its limit.
/// fn consumed<T>(srq: &Srq<T>, left: u32) -> Result
/// where
///     T: SharedReceiveQueues<Srq = SrqConsumer>,
/// {
///     if left < T::query_srq(srq)?.limit {
///         srq.event(SrqEvent::LimitReached);
///     }
///     Ok(())
/// }
/// ```
pub trait SharedReceiveQueues: ModifyQueuePairs + UserContexts {
    /// Driver's part of an SRQ. Dropping it destroys the SRQ.
    type Srq: Send + Sync;

    /// Creates an SRQ of a kernel client.
    fn create_srq(
        pd: &Pd<Self>,
        attr: &SrqAttr,
        consumer: SrqConsumer,
    ) -> Result<NewSrq<Self::Srq>>;

    /// Creates an SRQ in memory of the current process.
    fn create_user_srq(
        context: &Context<Self>,
        pd: &Pd<Self>,
        attr: &SrqAttr,
        consumer: SrqConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewSrq<Self::Srq>>;

    /// Changes attributes of an SRQ. `udata` is `Some` if a process calls. Calls for one SRQ may
    /// run concurrently.
    fn modify_srq(
        srq: &Srq<Self>,
        modification: &SrqModification,
        udata: Option<&Udata<'_>>,
    ) -> Result;

    /// Attributes of an SRQ.
    fn query_srq(srq: &Srq<Self>) -> Result<SrqAttr>;

    /// Posts receive work requests of a kernel client until one fails. Requests before it stay
    /// posted. Called in any context; calls for one SRQ may run concurrently.
    fn post_srq_recv(srq: &Srq<Self>, requests: &mut RecvWrs<'_>) -> Result;
}

/// Sizes and limit of an SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Maximum number of outstanding work requests.
    pub max_wr: u32,
    /// Maximum number of SGEs of a work request.
    pub max_sge: u32,
    /// An event is sent when fewer work requests than this are left; 0 for none, as for each new
    /// SRQ.
    pub limit: u32,
}

impl From<SrqAttr> for bindings::ib_srq_attr {
    fn from(attr: SrqAttr) -> Self {
        Self {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            srq_limit: attr.limit,
        }
    }
}

/// Changes to an SRQ.
///
/// # Examples
///
/// ```
/// use crate::rdma::srq::{SrqAttr, SrqModification};
///
/// /// The attributes of an SRQ after a modification.
/// fn modified(attr: SrqAttr, modification: &SrqModification) -> SrqAttr {
///     SrqAttr {
///         max_wr: modification.max_wr.unwrap_or(attr.max_wr),
///         limit: modification.limit.unwrap_or(attr.limit),
///         ..attr
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqModification {
    /// New maximum number of outstanding work requests.
    pub max_wr: Option<u32>,
    /// New limit; 0 for none.
    pub limit: Option<u32>,
}

/// An SRQ that was created.
pub struct NewSrq<D> {
    /// Actual maximum number of outstanding work requests.
    pub max_wr: u32,
    /// Actual maximum number of SGEs of a work request.
    pub max_sge: u32,
    /// Driver's part.
    pub driver: D,
}

/// A shared receive queue.
pub type Srq<T> = Object<bindings::ib_srq, T>;

/// A handle to the consumer of an SRQ.
pub type SrqConsumer = Consumer<bindings::ib_srq>;

core_object!(
    ib_srq,
    SharedReceiveQueues,
    Srq,
    ConsumerLink<bindings::ib_srq>
);

handled! { ib_srq, SrqEvent, srq_context, srq, }

impl<'a, T: SharedReceiveQueues> QpInitAttr<'a, T> {
    /// The SRQ from which the QP takes receives; `None` if it has a receive queue.
    pub fn srq(&self) -> Option<&'a Srq<T>> {
        let srq = self.raw_srq();
        // SAFETY: By the type invariants of `QpInitAttr`, its SRQ is valid for `'a` and belongs to
        // this device.
        (!srq.is_null()).then(|| unsafe { Srq::from_raw(srq) })
    }
}

/// Initializes the SRQ `raw` with the driver's part that `create` returns.
///
/// # Safety
///
/// `raw` is allocated by the core for a device of `T` and not in use; `init` is writable, and its
/// type and sizes are initialized.
unsafe fn create_with<T: SharedReceiveQueues>(
    raw: *mut bindings::ib_srq,
    init: *mut bindings::ib_srq_init_attr,
    create: impl FnOnce(&SrqAttr, SrqConsumer) -> Result<NewSrq<T::Srq>>,
) -> Result<c_int> {
    // SRQs for XRC and tag matching, which have their own CQs, are not supported.
    //
    // SAFETY: The type is initialized in `init`.
    if unsafe { (*init).srq_type } != bindings::ib_srq_type_IB_SRQT_BASIC {
        return Err(EOPNOTSUPP);
    }
    // SAFETY: `init` is writable.
    let attr = unsafe { &raw mut (*init).attr };
    // SAFETY: The sizes are initialized in `init`.
    let (max_wr, max_sge) = unsafe { ((*attr).max_wr, (*attr).max_sge) };
    let requested = SrqAttr {
        max_wr,
        max_sge,
        limit: 0,
    };
    // SAFETY: `raw` is allocated for a device of `T`; the core has set the device, which stays
    // registered.
    let device = unsafe { Device::<T>::from_raw((*raw).device) };
    let link = ConsumerLink::new(device.work())?;
    let consumer = link.consumer();
    let new = create(&requested, consumer.clone())?;
    // SAFETY: `init` is writable, and `attr` points into it.
    unsafe { ((*attr).max_wr, (*attr).max_sge) = (new.max_wr, new.max_sge) };
    // SAFETY: `raw` has the size that the operations state and is not in use yet.
    let Ok(()) = unsafe { Srq::<T>::init(raw, new.driver, link) };
    // SAFETY: The SRQ was created above, and `destroy` calls `unlink`.
    unsafe { consumer.link(raw, raw) };
    Ok(0)
}

/// # Safety
///
/// Called by the core as `create_srq` of a device of `T`: `srq` is allocated and not in use, `init`
/// writable with its type and sizes initialized, `udata` null for a kernel client, else valid and
/// part of the attributes of a user space verb.
pub(super) unsafe extern "C" fn create<T: SharedReceiveQueues>(
    srq: *mut bindings::ib_srq,
    init: *mut bindings::ib_srq_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: `srq` is allocated and not in use, `init` is initialized, and `udata` is null or
    // valid; the core has set the PD, and a verb of a process has a context.
    from_result(|| unsafe {
        let pd = Pd::<T>::from_raw((*srq).pd);
        match Udata::from_raw(udata)? {
            None => create_with::<T>(srq, init, |attr, consumer| {
                T::create_srq(pd, attr, consumer)
            }),
            Some(data) => {
                let context = Context::<T>::from_raw(bindings::rdma_udata_to_ucontext(udata));
                create_with::<T>(srq, init, |attr, consumer| {
                    T::create_user_srq(context, pd, attr, consumer, &data)
                })
            }
        }
    })
}

/// # Safety
///
/// Called by the core as `modify_srq` of a device of `T`: `srq` is created, `attr` allocated and
/// initialized where `mask` says so, `udata` null or valid.
pub(super) unsafe extern "C" fn modify<T: SharedReceiveQueues>(
    srq: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_attr,
    mask: bindings::ib_srq_attr_mask,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        const MAX_WR: bindings::ib_srq_attr_mask = bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR;
        const LIMIT: bindings::ib_srq_attr_mask = bindings::ib_srq_attr_mask_IB_SRQ_LIMIT;
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(EINVAL);
        }
        // SAFETY: `srq` is created, and `udata` is null or valid.
        let (srq, udata) = unsafe { (Srq::<T>::from_raw(srq), Udata::from_raw(udata)?) };
        let modification = SrqModification {
            max_wr: (mask & MAX_WR != 0).then(|| {
                // SAFETY: The mask names the attribute.
                unsafe { (*attr).max_wr }
            }),
            limit: (mask & LIMIT != 0).then(|| {
                // SAFETY: The mask names the attribute.
                unsafe { (*attr).srq_limit }
            }),
        };
        T::modify_srq(srq, &modification, udata.as_ref())?;
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `query_srq` of a device of `T`: `srq` is created, `attr` writable.
pub(super) unsafe extern "C" fn query<T: SharedReceiveQueues>(
    srq: *mut bindings::ib_srq,
    attr: *mut bindings::ib_srq_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: `srq` is created.
        let attributes = T::query_srq(unsafe { Srq::<T>::from_raw(srq) })?;
        // SAFETY: `attr` is writable.
        unsafe { attr.write(attributes.into()) };
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `destroy_srq` of a device of `T`: `srq` was created and no QP uses it any
/// more, `udata` is null or valid.
pub(super) unsafe extern "C" fn destroy<T: SharedReceiveQueues>(
    srq: *mut bindings::ib_srq,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is null or valid.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: `srq` was created and is not destroyed yet.
        unsafe { Srq::<T>::from_raw(srq) }.own().unlink();
        // SAFETY: No other reference exists: the core destroys the SRQ, and no handler runs any
        // more.
        unsafe { Srq::<T>::drop_parts(srq) };
        Ok(0)
    })
}

/// # Safety
///
/// Called by a client as `post_srq_recv` of a device of `T`: `srq` is created, `list` valid, `bad`
/// writable.
pub(super) unsafe extern "C" fn post_recv<T: SharedReceiveQueues>(
    srq: *mut bindings::ib_srq,
    list: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: `list` is valid, and `bad` is writable.
    unsafe {
        recv_list(list, bad, |requests| {
            T::post_srq_recv(Srq::from_raw(srq), requests)
        })
    }
}
