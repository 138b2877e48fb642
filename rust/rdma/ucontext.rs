// SPDX-License-Identifier: GPL-2.0

//! User contexts: what the device keeps for a process that opened it.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    mmap::{
        Mappings,
        MmapOffset,
        OwnedMappings,
        Registers, //
    },
    object::{
        core_object,
        CoreObject,
        Object, //
    },
    pd::{
        Pd,
        ProtectionDomains, //
    },
    udata::Udata,
    Device,
    Driver, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::from_result,
    prelude::*,
    task::Pid, //
};

/// A device that processes may open.
///
/// Contexts are taken away from their processes when the device is unregistered, so the module need
/// not wait for them.
///
/// # Examples
///
/// ```
/// # crate::rdma::tests::null::null_driver!(MyDriver);
///
/// use crate::rdma::{
///     mmap::{MmapOffset, Registers},
///     ucontext::{Context, NewContext, UserContexts},
///     Udata,
/// };
/// # use kernel::{devres::Devres, io::resource::Region, sync::Arc};
///
/// /// A page of doorbells.
/// struct Page {
///     region: Arc<Devres<Region>>,
///     number: usize,
/// }
/// # impl Registers for Page {
/// #     fn region(&self) -> &Devres<Region> {
/// #         &self.region
/// #     }
/// #     fn page(&self) -> usize {
/// #         self.number
/// #     }
/// # }
/// #
/// # impl MyDriver {
/// #     fn free_page(&self) -> Result<Page> {
/// #         Err(ENOSPC)
/// #     }
/// # }
///
/// impl UserContexts for MyDriver {
///     /// Where the process maps its page.
///     type Context = MmapOffset;
///     type Registers = Page;
///
///     fn alloc_context(
///         context: &mut NewContext<'_, Self>,
///         udata: &Udata<'_>,
///     ) -> Result<MmapOffset> {
///         udata.no_request()?;
///         let page = context.device().free_page()?;
///         context.add_registers(page)
///     }
/// }
///
/// /// The offset that a process learns when it creates its first queue.
/// fn offset(context: &Context<MyDriver>) -> u64 {
///     context.0
/// }
/// ```
pub trait UserContexts: Driver {
    /// Driver's part of a context.
    type Context: Send + Sync;

    /// Registers that a process can map. They are dropped when neither the context nor any
    /// process's memory uses them.
    type Registers: Registers;

    /// Creates a context.
    fn alloc_context(
        context: &mut NewContext<'_, Self>,
        udata: &Udata<'_>,
    ) -> Result<Self::Context>;
}

/// A user context. Its mappings go with it.
pub type Context<T> = Object<bindings::ib_ucontext, T>;

core_object!(ib_ucontext, UserContexts, Context, OwnedMappings<T>);

impl<T: UserContexts> Context<T> {
    /// Its mappings for processes.
    pub fn mappings(&self) -> &Mappings<T> {
        self.own()
    }
}

impl<T: ProtectionDomains + UserContexts> Pd<T> {
    /// The context of the process that it belongs to; `None` for a PD of the kernel.
    pub fn context(&self) -> Option<&Context<T>> {
        // SAFETY: A PD of a process has an object of uverbs as long as it lives, and that is in a
        // context, which is destroyed after its objects.
        unsafe {
            let object = (*self.as_raw()).uobject.as_ref()?;
            (!object.context.is_null()).then(|| Context::from_raw(object.context))
        }
    }
}

/// A context that is being created.
pub struct NewContext<'a, T: UserContexts> {
    device: &'a Device<T>,
    mappings: OwnedMappings<T>,
}

impl<'a, T: UserContexts> NewContext<'a, T> {
    /// The device.
    pub fn device(&self) -> &'a Device<T> {
        self.device
    }

    /// The process that opens the device.
    pub fn process(&self) -> Pid {
        kernel::current!().tgid()
    }

    /// Whether to log why a process gets no context. A process may ask again and again, so this is
    /// so for a few times in some seconds only; the kernel log says how often it was not.
    pub fn may_log_refusal(&self) -> bool {
        // SAFETY: It only counts.
        unsafe { bindings::ucontext_refusal_ratelimit() }
    }

    /// Lets processes map `registers` as long as the context exists, and returns the offset for
    /// that.
    pub fn add_registers(&mut self, registers: T::Registers) -> Result<MmapOffset> {
        self.mappings.add(registers)
    }
}

/// # Safety
///
/// Called by the core as `alloc_ucontext` of a device of `T`: `context` is allocated and not in
/// use, `udata` valid.
pub(super) unsafe extern "C" fn alloc<T: UserContexts>(
    context: *mut bindings::ib_ucontext,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: By the function's safety requirements.
        let udata = unsafe { Udata::of_process(udata) }?;
        let raw = NonNull::new(context).ok_or(EINVAL)?;
        let mut new = NewContext {
            // SAFETY: The core keeps the device registered during the call.
            device: unsafe { Device::<T>::from_raw((*context).device) },
            // SAFETY: `context` is valid by the function's safety requirements. This is dropped
            // before it is freed: here if creation fails, else with the driver's part.
            mappings: unsafe { OwnedMappings::new(raw) }?,
        };
        let driver = T::alloc_context(&mut new, &udata)?;
        // SAFETY: `context` has the size that the operations state and is not in use yet.
        let Ok(()) = unsafe { Context::<T>::init(context, driver, new.mappings) };
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `dealloc_ucontext` of a device of `T`: all objects of the context are
/// destroyed.
pub(super) unsafe extern "C" fn dealloc<T: UserContexts>(context: *mut bindings::ib_ucontext) {
    // SAFETY: By the function's safety requirements, nobody else has a reference.
    unsafe { Context::<T>::drop_parts(context) };
}

/// # Safety
///
/// Called by the core as `disassociate_ucontext`. The core has revoked all mappings; what is left
/// is done when it destroys the context's objects and then the context. That this callback exists
/// tells the core that the driver's module may go while contexts are open.
pub(super) unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}
