// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! Lock order: the lock of a [`CqConsumer`] is taken before any lock that the consumer's handler takes, so before the
//! driver's locks of posting, polling and arming. None of these is held when a handler is called.

use super::{
    deferred::{
        Call,
        Deferred, //
    },
    event::CqEvent,
    ucontext::{
        Context,
        UserContexts, //
    },
    udata::Udata,
    Device,
    Driver,
    Object, //
};
use crate::bindings;
use core::{
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    error::from_result,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};

/// A device with completion queues.
pub trait CompletionQueues: Driver {
    /// Driver's part of a CQ. Dropping it destroys the CQ.
    type Cq: Send + Sync;

    /// Creates a CQ of a kernel client.
    fn create_cq(
        device: &Device<Self>,
        attr: &CqAttributes,
        consumer: CqConsumer,
    ) -> Result<NewCq<Self::Cq>>;
}

/// What a consumer asks for.
pub struct CqAttributes {
    /// Entries at least.
    pub entries: u32,
    /// Completion vector, below the number that the device has.
    pub completion_vector: u32,
    /// `enum ib_uverbs_ex_create_cq_flags`.
    pub flags: u32,
}

/// A CQ that was created.
pub struct NewCq<D> {
    /// Entries that it has.
    pub entries: u32,
    /// Driver's part.
    pub driver: D,
}

/// The driver's part of a CQ, with what the abstraction keeps beside it.
pub(super) struct Parts<D> {
    driver: D,
    consumer: CqConsumer,
}

/// A completion queue. Dereferences to the driver's part.
#[repr(transparent)]
pub struct Cq<T: CompletionQueues>(Object<bindings::ib_cq, Parts<T::Cq>>);

impl<T: CompletionQueues> Cq<T> {
    /// Bytes that the core allocates.
    pub(super) const SIZE: usize = Object::<bindings::ib_cq, Parts<T::Cq>>::SIZE;

    /// Borrows a CQ.
    ///
    /// # Safety
    ///
    /// `raw` is a CQ of a device of `T` that was created and is not destroyed during `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *mut bindings::ib_cq) -> &'a Self {
        // SAFETY: `Self` is transparent over the object; the rest is the caller's promise.
        unsafe { &*raw.cast::<Self>() }
    }
}

impl<T: CompletionQueues> Deref for Cq<T> {
    type Target = T::Cq;

    fn deref(&self) -> &T::Cq {
        &self.0.driver
    }
}

/// The way to the consumer of a CQ. It may be kept longer than the CQ, and leads nowhere from then on.
#[derive(Clone)]
pub struct CqConsumer(Arc<Deferred<Link>>);

/// # Invariants
///
/// `cq` is a CQ that is created and not yet destroyed.
#[pin_data]
struct Link {
    #[pin]
    cq: SpinLockIrq<Option<Created>>,
}

/// A pointer to a CQ that is used with the link's lock held.
struct Created(NonNull<bindings::ib_cq>);

// SAFETY: Handlers of a CQ may be called by any thread.
unsafe impl Send for Created {}

impl Link {
    /// Calls the completion handler.
    fn notify(&self) {
        let guard = self.cq.lock();
        let Some(Created(cq)) = &*guard else { return };
        let cq = cq.as_ptr();
        // SAFETY: By the invariants of `Link`, which hold as long as its lock is held.
        unsafe {
            if bindings::ib_cq_event_unread(cq) {
                return;
            }
            if let Some(handler) = (*cq).comp_handler {
                handler(cq, (*cq).cq_context);
            }
        }
    }
}

impl Call for Link {
    fn call(&self) {
        self.notify();
    }
}

impl CqConsumer {
    fn new() -> Result<Self> {
        let link = Deferred::new(pin_init!(Link { cq <- new_spinlock_irq!(None) }))?;
        Ok(Self(link))
    }

    /// Tells the consumer that there are completions. May be called in any context, for a CQ that the consumer armed.
    ///
    /// A process that has not read the last such event gets no second one.
    pub fn notify(&self) {
        self.0.notify();
    }

    /// Does the same a little later, for callers who hold locks that the consumer's handler takes.
    pub fn notify_later(&self) {
        let guard = self.0.cq.lock();
        if guard.is_some() {
            // With the lock held, so that `unlink` cancels it.
            self.0.queue();
        }
    }

    /// Tells the consumer of an event. May be called in any context.
    pub fn event(&self, event: CqEvent) {
        let guard = self.0.cq.lock();
        let Some(Created(cq)) = &*guard else { return };
        let cq = cq.as_ptr();
        // SAFETY: By the invariants of `Link`, which hold as long as its lock is held.
        let (device, handler, context) =
            unsafe { ((*cq).device, (*cq).event_handler, (*cq).cq_context) };
        let Some(handler) = handler else { return };
        let mut record = bindings::ib_event {
            device,
            event: event.as_raw(),
            ..Default::default()
        };
        // SAFETY: For events of a CQ, the CQ is the active member of the union; the handler takes them in any context.
        unsafe {
            *record.element.cq.as_mut() = cq;
            handler(&mut record, context);
        }
    }

    fn link(&self, cq: NonNull<bindings::ib_cq>) {
        // INVARIANT: The caller has just created the CQ, and destroys it after `unlink`.
        *self.0.cq.lock() = Some(Created(cq));
    }

    /// Returns when no handler runs or will run.
    fn unlink(&self) {
        *self.0.cq.lock() = None;
        self.0.cancel();
    }
}

/// Makes `raw` a CQ by what `create` does.
///
/// # Safety
///
/// `raw` is allocated by the core for a device of `T` and not in use.
unsafe fn create_with<T: CompletionQueues>(
    raw: *mut bindings::ib_cq,
    create: impl FnOnce(CqConsumer) -> Result<NewCq<T::Cq>>,
) -> Result<c_int> {
    let consumer = CqConsumer::new()?;
    let new = create(consumer.clone())?;
    let parts = Parts {
        driver: new.driver,
        consumer: consumer.clone(),
    };
    let entries = c_int::try_from(new.entries)?;
    // SAFETY: `raw` has the size that the operations state and is not in use yet.
    unsafe {
        let Ok(()) = Object::init(raw, parts);
        (*raw).cqe = entries;
    }
    consumer.link(NonNull::new(raw).ok_or(EINVAL)?);
    Ok(0)
}

/// # Safety
///
/// `attr` is valid.
unsafe fn attributes(attr: *const bindings::ib_cq_init_attr) -> CqAttributes {
    // SAFETY: By the safety requirements.
    let attr = unsafe { &*attr };
    CqAttributes {
        entries: attr.cqe,
        completion_vector: attr.comp_vector,
        flags: attr.flags,
    }
}

/// # Safety
///
/// Called by the core as `create_cq` of a device of `T` for a kernel client: `cq` is allocated and not in use.
pub(super) unsafe extern "C" fn create<T: CompletionQueues>(
    cq: *mut bindings::ib_cq,
    attr: *const bindings::ib_cq_init_attr,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: By the function's safety requirements; the core has set the device, which stays registered.
        let (device, attr) = unsafe { (Device::<T>::from_raw((*cq).device), attributes(attr)) };
        // SAFETY: By the function's safety requirements.
        unsafe { create_with::<T>(cq, |consumer| T::create_cq(device, &attr, consumer)) }
    })
}

/// # Safety
///
/// Called by the core as `create_user_cq` of a device of `T`: `cq` is allocated and not in use, `attrs` is valid.
pub(super) unsafe extern "C" fn create_user<T: UserContexts>(
    cq: *mut bindings::ib_cq,
    attr: *const bindings::ib_cq_init_attr,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: By the function's safety requirements; a CQ is created within a context.
        let (attr, context, udata) = unsafe {
            (
                attributes(attr),
                Context::<T>::from_raw((*attrs).__bindgen_anon_1.hdr.context),
                Udata::from_raw(&raw mut (*attrs).__bindgen_anon_1.hdr.driver_udata),
            )
        };
        let udata = udata.ok_or(EINVAL)?;
        // SAFETY: By the function's safety requirements.
        unsafe {
            create_with::<T>(cq, |consumer| {
                T::create_user_cq(context, &attr, consumer, &udata)
            })
        }
    })
}

/// # Safety
///
/// Called by the core as `destroy_cq` of a device of `T`: `cq` was created and no QP uses it any more.
pub(super) unsafe extern "C" fn destroy<T: CompletionQueues>(
    cq: *mut bindings::ib_cq,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: By the function's safety requirements.
    unsafe { Cq::<T>::from_raw(cq) }.0.consumer.unlink();
    // SAFETY: Nobody else has a reference: the core destroys it, and handlers don't run any more.
    unsafe { Object::<_, Parts<T::Cq>>::drop_driver(cq) };
    0
}
