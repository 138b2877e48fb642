// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    consumer::{
        handled,
        Consumer,
        ConsumerLink, //
    },
    event::CqEvent,
    object::{
        core_object,
        CoreObject,
        Object, //
    },
    ucontext::{
        Context,
        UserContexts, //
    },
    udata::{
        self,
        Udata, //
    },
    Device,
    Driver, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device with completion queues.
///
/// # Examples
///
/// ```
/// # crate::rdma::tests::null::null_driver!(MyDriver);
/// use crate::rdma::{
///     cq::{CompletionQueues, CqAttr, CqConsumer, NewCq},
///     Device,
/// };
///
/// impl CompletionQueues for MyDriver {
///     /// The consumer, which is notified of completions.
///     type Cq = CqConsumer;
///
///     fn create_cq(
///         _device: &Device<Self>,
///         attr: &CqAttr,
///         consumer: CqConsumer,
///     ) -> Result<NewCq<CqConsumer>> {
///         if attr.flags != 0 {
///             return Err(EOPNOTSUPP);
///         }
///         Ok(NewCq {
///             entries: attr.entries.checked_next_power_of_two().ok_or(EINVAL)?,
///             driver: consumer,
///         })
///     }
/// }
/// ```
pub trait CompletionQueues: Driver {
    /// Driver's part of a CQ. Dropping it destroys the CQ.
    type Cq: Send + Sync;

    /// Creates a CQ of a kernel client.
    fn create_cq(
        device: &Device<Self>,
        attr: &CqAttr,
        consumer: CqConsumer,
    ) -> Result<NewCq<Self::Cq>>;
}

/// A device with completion queues in memory of processes.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     cq::{Cq, UserCompletionQueues},
///     Udata,
/// };
///
/// /// Grows a CQ of the current process, unless it has `wanted` entries already.
/// fn grow<T: UserCompletionQueues>(
///     cq: &Cq<T>,
///     entries: u32,
///     wanted: u32,
///     udata: &Udata<'_>,
/// ) -> Result<u32> {
///     if wanted <= entries {
///         return Ok(entries);
///     }
///     T::resize_user_cq(cq, wanted, udata)
/// }
/// ```
pub trait UserCompletionQueues: CompletionQueues + UserContexts {
    /// Creates a CQ in memory of the current process.
    fn create_user_cq(
        context: &Context<Self>,
        attr: &CqAttr,
        consumer: CqConsumer,
        udata: &Udata<'_>,
    ) -> Result<NewCq<Self::Cq>>;

    /// Moves a CQ to other memory of the current process, with at least `entries` entries. Returns
    /// the number of entries.
    fn resize_user_cq(cq: &Cq<Self>, entries: u32, udata: &Udata<'_>) -> Result<u32>;
}

/// A device that can delay the events of CQs.
///
/// # Examples
///
/// ```
/// use crate::rdma::cq::{Cq, ModerateCompletionQueues};
///
/// /// Sends an event for 8 completions, or 50 microseconds after the first one.
/// fn delay<T: ModerateCompletionQueues>(cq: &Cq<T>) -> Result {
///     T::moderate_cq(cq, 8, 50)
/// }
/// ```
pub trait ModerateCompletionQueues: CompletionQueues {
    /// Sets the moderation of a CQ of a process or of a kernel client: its event is sent after
    /// `count` completions, or `period` microseconds after the first of them.
    ///
    /// May be called while the CQ is polled and armed. For CQs of kernel clients, the core calls it
    /// from a work item if [`Config::adaptive_moderation`](super::device::Config) is set.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if this device has no moderation, `EINVAL` for values beyond
    /// [`DeviceAttr`](super::attributes::DeviceAttr).
    fn moderate_cq(cq: &Cq<Self>, count: u16, period: u16) -> Result;
}

/// Attributes of a new CQ.
pub struct CqAttr {
    /// Minimum number of entries.
    pub entries: u32,
    /// Completion vector; the driver checks that the device has it.
    pub completion_vector: u32,
    /// Flags, `enum ib_uverbs_ex_create_cq_flags`.
    pub flags: u32,
}

/// A CQ that was created.
pub struct NewCq<D> {
    /// Number of entries of the CQ.
    pub entries: u32,
    /// Driver's part.
    pub driver: D,
}

/// A completion queue.
pub type Cq<T> = Object<bindings::ib_cq, T>;

/// A handle to the consumer of a CQ.
pub type CqConsumer = Consumer<bindings::ib_cq>;

core_object!(ib_cq, CompletionQueues, Cq, ConsumerLink<bindings::ib_cq>);

handled! { ib_cq, CqEvent, cq_context, cq,
    unsafe fn complete(this: *mut Self) {
        // SAFETY: The CQ is created; the consumer passed the handler together with this context.
        unsafe {
            // uverbs allocates an event for each call. Out of the kernel's tree the number of
            // events is limited here; in the tree, uverbs itself has to limit it.
            #[cfg(OUT_OF_TREE)]
            if bindings::ib_cq_event_unread(this) {
                return;
            }
            if let Some(handler) = (*this).comp_handler {
                handler(this, (*this).cq_context);
            }
        }
    }
}

/// Initializes the CQ `raw` with the driver's part that `create` returns.
///
/// # Safety
///
/// `raw` is allocated by the core for a device of `T` and not in use.
unsafe fn create_with<T: CompletionQueues>(
    raw: *mut bindings::ib_cq,
    create: impl FnOnce(CqConsumer) -> Result<NewCq<T::Cq>>,
) -> Result<c_int> {
    // SAFETY: `raw` is allocated for a device of `T`; the core has set the device, which stays
    // registered.
    let device = unsafe { Device::<T>::from_raw((*raw).device) };
    let link = ConsumerLink::new(device.work())?;
    let consumer = link.consumer();
    let new = create(consumer.clone())?;
    let entries = c_int::try_from(new.entries)?;
    // SAFETY: `raw` has the size that the operations state and is not in use yet.
    unsafe {
        let Ok(()) = Cq::<T>::init(raw, new.driver, link);
        (*raw).cqe = entries;
    }
    // SAFETY: The CQ was created above, and `pre_destroy` calls `unlink`.
    unsafe { consumer.link(raw, raw) };
    Ok(0)
}

/// # Safety
///
/// `attr` is valid.
unsafe fn attributes(attr: *const bindings::ib_cq_init_attr) -> CqAttr {
    // SAFETY: `attr` is valid.
    let attr = unsafe { &*attr };
    CqAttr {
        entries: attr.cqe,
        completion_vector: attr.comp_vector,
        flags: attr.flags,
    }
}

/// # Safety
///
/// Called by the core as `create_cq` of a device of `T`: `cq` is allocated and not in use. The core
/// also calls it for a process, with its `attrs`, if the device has no CQs of processes.
pub(super) unsafe extern "C" fn create<T: CompletionQueues>(
    cq: *mut bindings::ib_cq,
    attr: *const bindings::ib_cq_init_attr,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // The queue of the CQ would be in the kernel, where the process can't use it.
    if !attrs.is_null() {
        return EOPNOTSUPP.to_errno();
    }
    from_result(|| {
        // SAFETY: `cq` is allocated and `attr` valid; the core has set the device, which stays
        // registered.
        let (device, attr) = unsafe { (Device::<T>::from_raw((*cq).device), attributes(attr)) };
        // SAFETY: `cq` is allocated for a device of `T` and not in use.
        unsafe { create_with::<T>(cq, |consumer| T::create_cq(device, &attr, consumer)) }
    })
}

/// # Safety
///
/// Called by the core as `create_user_cq` of a device of `T`: `cq` is allocated and not in use,
/// `attrs` is valid.
pub(super) unsafe extern "C" fn create_user<T: UserCompletionQueues>(
    cq: *mut bindings::ib_cq,
    attr: *const bindings::ib_cq_init_attr,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: `attrs` is valid; a CQ is created within a context.
        let (attr, context, udata) = unsafe {
            if bindings::uverbs_cq_has_buffer(attrs) {
                // Memory of a CQ is passed in the driver's own data, not by these attributes.
                return Err(EOPNOTSUPP);
            }
            (
                attributes(attr),
                Context::<T>::from_raw((*attrs).__bindgen_anon_1.hdr.context),
                Udata::of_process(&raw mut (*attrs).__bindgen_anon_1.hdr.driver_udata)?,
            )
        };
        // SAFETY: `cq` is allocated for a device of `T` and not in use.
        unsafe {
            create_with::<T>(cq, |consumer| {
                T::create_user_cq(context, &attr, consumer, &udata)
            })
        }
    })
}

/// # Safety
///
/// Called by the core as `resize_user_cq` of a device of `T`: `cq` is created, `udata` valid.
pub(super) unsafe extern "C" fn resize_user<T: UserCompletionQueues>(
    cq: *mut bindings::ib_cq,
    entries: c_uint,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is valid.
        let udata = unsafe { Udata::of_process(udata) }?;
        // SAFETY: `cq` is created.
        let resized = T::resize_user_cq(unsafe { Cq::<T>::from_raw(cq) }, entries, &udata)?;
        let resized = c_int::try_from(resized)?;
        // SAFETY: `cq` is created; no Rust reference to the C structure exists.
        unsafe { (*cq).cqe = resized };
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `modify_cq` of a device of `T`: `cq` was created, and is not destroyed
/// before the call returns.
pub(super) unsafe extern "C" fn moderate<T: ModerateCompletionQueues>(
    cq: *mut bindings::ib_cq,
    count: u16,
    period: u16,
) -> c_int {
    from_result(|| {
        // SAFETY: `cq` is created and not destroyed before the call returns.
        let cq = unsafe { Cq::<T>::from_raw(cq) };
        T::moderate_cq(cq, count, period).map(|()| 0)
    })
}

/// Ends the calls of completion and event handlers, since a handler could make the core poll again.
/// Afterwards the core cancels its polling of the CQ and calls [`post_destroy`].
///
/// # Safety
///
/// Called by the core as `pre_destroy_cq` of a device of `T`: `cq` was created and no QP uses it
/// any more.
pub(super) unsafe extern "C" fn pre_destroy<T: CompletionQueues>(
    cq: *mut bindings::ib_cq,
) -> c_int {
    // SAFETY: `cq` was created and is not destroyed yet.
    unsafe { Cq::<T>::from_raw(cq) }.own().unlink();
    0
}

/// # Safety
///
/// Called by the core as `post_destroy_cq` of a device of `T`: [`pre_destroy`] was called, and no
/// client polls or arms `cq` any more.
pub(super) unsafe extern "C" fn post_destroy<T: CompletionQueues>(cq: *mut bindings::ib_cq) {
    // SAFETY: No other reference exists: the core destroys the CQ, and no handler runs any more.
    unsafe { Cq::<T>::drop_parts(cq) };
}

/// # Safety
///
/// Called by the core as `destroy_cq` of a device of `T`: `cq` was created, no QP uses it, and no
/// client polls or arms it any more; `udata` is null or valid.
pub(super) unsafe extern "C" fn destroy<T: CompletionQueues>(
    cq: *mut bindings::ib_cq,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is null or valid.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: `cq` was created, and no QP uses it.
        let result = unsafe { pre_destroy::<T>(cq) };
        // SAFETY: Nobody uses `cq` any more; `pre_destroy` was called above.
        unsafe { post_destroy::<T>(cq) };
        Ok(result)
    })
}
