// SPDX-License-Identifier: GPL-2.0

//! User contexts: the state of a process that opened the device.
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

/// A device that processes can open.
///
/// Contexts are disassociated from their processes when the device is unregistered, so the module
/// can be unloaded while contexts are open.
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
///     /// The offset at which the process maps its page.
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

    /// Registers that a process can map. They are dropped after the end of the context and of the
    /// last mapping.
    type Registers: Registers;

    /// Creates a context.
    fn alloc_context(
        context: &mut NewContext<'_, Self>,
        udata: &Udata<'_>,
    ) -> Result<Self::Context>;
}

/// A user context. Its mappings end with it.
pub type Context<T> = Object<bindings::ib_ucontext, T>;

core_object!(ib_ucontext, UserContexts, Context, OwnedMappings<T>);

impl<T: UserContexts> Context<T> {
    /// The mappings of the context.
    pub fn mappings(&self) -> &Mappings<T> {
        self.own()
    }
}

impl<T: ProtectionDomains + UserContexts> Pd<T> {
    /// The user context of the PD; `None` for a PD of the kernel.
    pub fn context(&self) -> Option<&Context<T>> {
        // SAFETY: A PD of a process has a uobject as long as it exists. The uobject belongs to a
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

    /// Whether to log why a process gets no context. Rate-limited, since a process may try
    /// repeatedly; the kernel logs the number of suppressed messages.
    pub fn may_log_refusal(&self) -> bool {
        // SAFETY: The function has no requirements; it only counts calls.
        unsafe { bindings::ucontext_refusal_ratelimit() }
    }

    /// Lets processes map `registers` as long as the context exists. Returns the offset for `mmap`.
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
        // SAFETY: `udata` is valid.
        let udata = unsafe { Udata::of_process(udata) }?;
        let raw = NonNull::new(context).ok_or(EINVAL)?;
        let mut new = NewContext {
            // SAFETY: The core keeps the device registered during the call.
            device: unsafe { Device::<T>::from_raw((*context).device) },
            // SAFETY: `context` is valid by the function's safety requirements. The mappings are
            // dropped before the context is freed: here if creation fails, else with the driver's
            // part.
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
    // SAFETY: All objects of the context are destroyed, so there is no other reference.
    unsafe { Context::<T>::drop_parts(context) };
}

/// # Safety
///
/// Called by the core as `disassociate_ucontext`. Does nothing: the core has revoked all mappings,
/// and next destroys the objects of the context and the context. With this callback, the core
/// allows the driver's module to be unloaded while contexts are open.
pub(super) unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}
