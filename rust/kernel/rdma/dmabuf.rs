// SPDX-License-Identifier: GPL-2.0

//! DMA buffers: memory of other drivers that a device accesses.
//!
//! A buffer is pinned as long as it is used. Nevertheless its exporter may revoke the buffer for
//! good, because the exporter needs the memory or its device is removed. The driver's [`Revoke`]
//! then ends the device's accesses.
//!
//! C header: [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h)

use super::{
    mr::AccessFlags,
    umem::{
        Owned,
        Umem, //
    },
    while_bound::WhileBound,
    Device,
    Driver, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    devres::Devres,
    error::from_err_ptr,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
    ModuleMetadata, //
};

/// A reference to the driver's module, which keeps it loaded.
///
/// # Invariants
///
/// This owns a reference to the module.
struct LoadedModule(*mut bindings::module);

// SAFETY: References of modules may be dropped by any thread.
unsafe impl Send for LoadedModule {}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::module_put(self.0) };
    }
}

/// A buffer that may stay attached to its exporter for good. As long as this value exists, so do
/// the handler, which the exporter may call, and the module with the handler's code.
///
/// If this is dropped after the driver was unbound from its device, the buffer is leaked.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     dmabuf::{Dmabuf, LingeringDmabuf, Revoke},
///     Driver,
/// };
///
/// /// Leaks a buffer that the device may use for ever. If the module is being unloaded, the buffer
/// /// is given back to the exporter nevertheless.
/// fn abandon<T: Driver, R: Revoke>(buffer: Dmabuf<R>) {
///     match buffer.linger::<T>() {
///         Ok(lingering) => core::mem::forget::<LingeringDmabuf<R>>(lingering),
///         Err(buffer) => drop(buffer),
///     }
/// }
/// ```
pub struct LingeringDmabuf<R: Revoke> {
    /// `None` if the exporter has revoked the buffer already. The umem is dropped first: until
    /// then the exporter may call the handler.
    _umem: Option<WhileBound<(Owned, Needed<R>)>>,
}

/// The handler of a buffer, and the module that contains its code. The exporter may call the
/// handler, so both have to exist.
struct Needed<R: Revoke> {
    _handler: Arc<R>,
    _module: LoadedModule,
}

/// A driver's handler that ends the device's accesses to a buffer.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     dmabuf::{Dmabuf, LockedDmabuf, Revoke},
///     mr::AccessFlags,
///     Device, Driver,
/// };
/// use kernel::sync::Arc;
///
/// /// A handler that logs that a buffer is revoked.
/// struct Told;
///
/// impl Revoke for Told {
///     fn revoke(&self) {
///         pr_debug!("the buffer is taken back\n");
///     }
/// }
///
/// /// Pins a page of a buffer; `fd` is its file descriptor in the current process.
/// fn pin<T: Driver>(device: &Device<T>, fd: c_int) -> Result<Dmabuf<Told>> {
///     let handler = Arc::new(Told, GFP_KERNEL)?;
///     let buffer = LockedDmabuf::pin(device, fd, 0, 4096, AccessFlags::LOCAL_WRITE)?;
///     Ok(buffer.unlock(handler))
/// }
/// ```
pub trait Revoke: Send + Sync + 'static {
    /// Ends the device's accesses to the memory: after the return the device never accesses it.
    ///
    /// Called once at most, with the reservation of the buffer locked: when the exporter revokes
    /// the buffer, or else when the [`Dmabuf`] is dropped. May sleep, but must not access memory of
    /// processes.
    fn revoke(&self);
}

/// A guard that locks the reservation of a buffer, so that the exporter can't revoke the buffer.
///
/// # Invariants
///
/// The umem is valid, and this holds the lock of its reservation.
struct Locked(*mut bindings::ib_umem_dmabuf);

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::ib_umem_dmabuf_revoke_unlock(self.0) };
    }
}

/// A umem with its reservation locked.
struct LockedUmem {
    /// Dropped first, since the release of `umem` locks the reservation again.
    lock: Locked,
    umem: Umem,
}

/// The umem of a [`Dmabuf`]; `None` once it is released.
#[pin_data]
struct Attached {
    /// The lock is held while the umem is released. It is taken before the lock of the reservation.
    #[pin]
    umem: Mutex<Option<Umem>>,
}

/// Ends the attachment of a buffer to its exporter.
struct Detach(Arc<Attached>);

impl Drop for Detach {
    fn drop(&mut self) {
        *self.0.umem.lock() = None;
    }
}

/// The umem of a buffer, which is released at the latest when the driver is unbound.
struct Attachment {
    /// Dropped first: the drop waits for the release of the umem.
    _detach: Devres<Detach>,
    attached: Arc<Attached>,
}

impl Attachment {
    fn new<T: Driver>(device: &Device<T>) -> Result<Self> {
        let attached = Arc::pin_init(
            pin_init!(Attached {
                umem <- new_mutex!(None, "rdma::dmabuf"),
            }),
            GFP_KERNEL,
        )?;
        let detach = Detach(attached.clone());
        Ok(Self {
            _detach: Devres::new(device.bound_device(), Ok::<_, Error>(detach))?,
            attached,
        })
    }
}

/// A buffer that is pinned and mapped for the device. Its reservation is locked, so that the
/// exporter can't revoke the buffer before the device knows the memory.
pub struct LockedDmabuf<'a> {
    locked: LockedUmem,
    attachment: Attachment,
    /// As long as this exists, the device is bound.
    _device: PhantomData<&'a bindings::ib_device>,
}

impl<'a> LockedDmabuf<'a> {
    /// Pins `length` bytes at `offset` of a buffer: the file `fd` of the current process.
    ///
    /// # Errors
    ///
    /// `EBADF` and `EINVAL` if `fd` is not a DMA buffer, `EINVAL` for a range beyond the buffer's
    /// end; errors of the exporter.
    pub fn pin<T: Driver>(
        device: &'a Device<T>,
        fd: c_int,
        offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        // SAFETY: The device is registered.
        let raw = from_err_ptr(unsafe {
            bindings::ib_umem_dmabuf_get_pinned_revocable_and_lock(
                device.as_raw(),
                c_ulong::try_from(offset)?,
                usize::try_from(length)?,
                fd,
                c_int::try_from(access.0)?,
            )
        })?;
        let raw = NonNull::new(raw).ok_or(EINVAL)?;
        // SAFETY: The core has created `raw` for this device and this caller, with its reservation
        // locked.
        unsafe { Self::from_raw(device, raw) }
    }

    /// Takes over a buffer that is attached to its exporter.
    ///
    /// # Safety
    ///
    /// `raw` is a umem of `device`, allocated as the core does it, and belongs to the caller. Its
    /// reservation is locked. Until `raw` is pinned and mapped, the caller may only drop the
    /// result.
    pub unsafe fn from_raw<T: Driver>(
        device: &'a Device<T>,
        raw: NonNull<bindings::ib_umem_dmabuf>,
    ) -> Result<Self> {
        let locked = LockedUmem {
            // INVARIANT: The reservation of `raw` is locked, and `raw` belongs to the caller.
            lock: Locked(raw.as_ptr()),
            // SAFETY: `raw` is a umem of `device` that belongs to the caller; the umem is the first
            // member.
            umem: unsafe { Umem::from_raw(device, raw.cast()) },
        };
        Ok(Self {
            locked,
            attachment: Attachment::new(device)?,
            _device: PhantomData,
        })
    }

    /// The memory.
    pub fn umem(&self) -> &Umem {
        &self.locked.umem
    }

    /// Binary logarithm of the largest page size in `sizes` that describes the memory; see
    /// [`Umem::best_page_shift`].
    pub fn best_page_shift(&mut self, sizes: u64, iova: u64) -> Result<u8> {
        self.locked.umem.best_page_shift(sizes, iova)
    }

    /// Unlocks the reservation. From now on the exporter may revoke the buffer. Then `handler` is
    /// called.
    pub fn unlock<R: Revoke>(self, handler: Arc<R>) -> Dmabuf<R> {
        let Self {
            locked, attachment, ..
        } = self;
        let LockedUmem { lock, umem } = locked;
        let private = core::ptr::from_ref::<R>(&handler).cast_mut().cast();
        // SAFETY: The reservation is locked. The handler is called only while the umem exists, and
        // is dropped after the umem: `Dmabuf` first drops the attachment, which waits for the
        // release of the umem, and `LingeringDmabuf` first drops the umem.
        unsafe { bindings::ib_umem_dmabuf_set_revoke_locked(lock.0, Some(revoked::<R>), private) };
        drop(lock);
        *attachment.attached.umem.lock() = Some(umem);
        // INVARIANT: The handler was set above. The device is still bound, so the attachment still
        // has the umem.
        Dmabuf {
            attachment,
            handler,
        }
    }
}

/// # Safety
///
/// Called by the core for a [`Dmabuf`] whose handler is `private`.
unsafe extern "C" fn revoked<R: Revoke>(private: *mut c_void) {
    // SAFETY: `private` is the handler of the umem, which it outlives.
    unsafe { &*private.cast::<R>() }.revoke();
}

/// A buffer that is pinned and mapped for the device, until this value is dropped or the driver is
/// unbound, whichever is first. Then the handler is called, unless the exporter has revoked the
/// buffer before.
///
/// # Invariants
///
/// The umem in `attachment` is over a buffer, and its handler is `handler`.
pub struct Dmabuf<R: Revoke> {
    /// Dropped before `handler`, since the drop calls the handler.
    attachment: Attachment,
    handler: Arc<R>,
}

impl<R: Revoke> Dmabuf<R> {
    /// The handler.
    pub fn handler(&self) -> &R {
        &self.handler
    }

    /// Keeps the module of `T` loaded as long as the buffer exists. Used for a buffer that the
    /// device may still access. Such a buffer must be kept, perhaps for ever.
    ///
    /// # Errors
    ///
    /// Returns the buffer if the module is being unloaded. The caller must then drop the buffer.
    pub fn linger<T: Driver>(self) -> Result<LingeringDmabuf<R>, Self> {
        let module = <T::OwnerModule as ModuleMetadata>::THIS_MODULE.as_ptr();
        // SAFETY: The module contains this code, so it exists; it may be being unloaded.
        if !unsafe { bindings::try_module_get(module) } {
            return Err(self);
        }
        let Self {
            attachment,
            handler,
        } = self;
        let needed = Needed {
            _handler: handler,
            // INVARIANT: The reference was just taken.
            _module: LoadedModule(module),
        };
        let umem = attachment.attached.umem.lock().take();
        Ok(LingeringDmabuf {
            _umem: umem.map(|umem| umem.into_inner().and(needed)),
        })
    }
}
