// SPDX-License-Identifier: GPL-2.0

//! Memory of other drivers that a device uses: DMA buffers.
//!
//! A buffer is pinned as long as it is used, and its exporter may take it back for good all the
//! same: because its device goes away, or to put the memory to other use. The driver's [`Revoke`]
//! says what becomes of it then.
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
    mem::offset_of,
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

/// Keeps the driver's module loaded.
///
/// # Invariants
///
/// Owns a reference of the module.
struct LoadedModule(*mut bindings::module);

// SAFETY: References of modules may be dropped by any thread.
unsafe impl Send for LoadedModule {}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::module_put(self.0) };
    }
}

/// A buffer that may stay attached to its exporter for good, and with it the handler and the module
/// that the exporter calls back.
///
/// It is dropped before the driver is unbound from its device, or never: it is leaked if it is
/// dropped later.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     dmabuf::{Dmabuf, LingeringDmabuf, Revoke},
///     Driver,
/// };
///
/// /// Leaks a buffer that the device may use for ever. While the module is being unloaded, the
/// /// exporter gets it back all the same.
/// fn abandon<T: Driver, R: Revoke>(buffer: Dmabuf<R>) {
///     match buffer.linger::<T>() {
///         Ok(lingering) => core::mem::forget::<LingeringDmabuf<R>>(lingering),
///         Err(buffer) => drop(buffer),
///     }
/// }
/// ```
pub struct LingeringDmabuf<R: Revoke> {
    /// `None` if the exporter had the buffer back already. The umem is dropped first: the exporter
    /// calls what it needs until then.
    _umem: Option<WhileBound<(Owned, Needed<R>)>>,
}

/// The handler of a buffer, and the module with its code: an exporter that calls it needs both.
struct Needed<R: Revoke> {
    _handler: Arc<R>,
    _module: LoadedModule,
}

/// Driver that has the device let go of a buffer.
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
/// /// Tells what happens to a buffer.
/// struct Told;
///
/// impl Revoke for Told {
///     fn revoke(&self) {
///         pr_debug!("the buffer is taken back\n");
///     }
/// }
///
/// /// Pins a page of the buffer that a file of the current process is.
/// fn pin<T: Driver>(device: &Device<T>, fd: c_int) -> Result<Dmabuf<Told>> {
///     let handler = Arc::new(Told, GFP_KERNEL)?;
///     let buffer = LockedDmabuf::pin(device, fd, 0, 4096, AccessFlags::LOCAL_WRITE)?;
///     Ok(buffer.unlock(handler))
/// }
/// ```
pub trait Revoke: Send + Sync + 'static {
    /// On return the device does not use the memory any more, and never will again.
    ///
    /// Called once at most, with the reservation of the buffer locked: when the exporter takes it
    /// back, else when the [`Dmabuf`] is dropped. May sleep, but not touch memory of processes.
    fn revoke(&self);
}

/// The start of a umem over a buffer.
fn container(umem: &Umem) -> *mut bindings::ib_umem_dmabuf {
    const { assert!(offset_of!(bindings::ib_umem_dmabuf, umem) == 0) };

    umem.as_raw().cast()
}

/// The reservation of a buffer is locked: its exporter does not take it back meanwhile.
///
/// # Invariants
///
/// The umem is valid, and its reservation locked by this.
struct Locked(*mut bindings::ib_umem_dmabuf);

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::ib_umem_dmabuf_revoke_unlock(self.0) };
    }
}

/// A umem with its reservation locked.
struct LockedUmem {
    /// Dropped first: it is `umem`'s, whose end locks it again.
    lock: Locked,
    umem: Umem,
}

/// The umem of a [`Dmabuf`], until its end.
#[pin_data]
struct Attached {
    /// The lock is held while the umem is released. It is taken before the reservation.
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

/// The place of a umem, which is empty when the driver is unbound.
struct Slot {
    /// Dropped first.
    _detach: Devres<Detach>,
    attached: Arc<Attached>,
}

impl Slot {
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

/// A buffer that is pinned and mapped for the device, with its reservation locked, so that the
/// exporter can't take it back while the device gets to know it.
pub struct LockedDmabuf<'a> {
    locked: LockedUmem,
    slot: Slot,
    /// The device is bound as long as this exists.
    _device: PhantomData<&'a bindings::ib_device>,
}

impl<'a> LockedDmabuf<'a> {
    /// Pins `length` bytes from `offset` on of the buffer that file `fd` of the current process is.
    ///
    /// # Errors
    ///
    /// `EBADF` and `EINVAL` for what is no buffer, `EINVAL` for a range beyond its end, and those
    /// of the exporter.
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
        // SAFETY: A buffer of this device was just made for us. It came with its reservation
        // locked.
        unsafe { Self::from_raw(device, raw) }
    }

    /// Takes over a buffer that is attached to its exporter.
    ///
    /// # Safety
    ///
    /// `raw` is made for `device` and belongs to the caller, allocated as the core allocates it.
    /// Its reservation is locked. Until it is pinned and mapped, the result is only dropped.
    pub unsafe fn from_raw<T: Driver>(
        device: &'a Device<T>,
        raw: NonNull<bindings::ib_umem_dmabuf>,
    ) -> Result<Self> {
        let locked = LockedUmem {
            // INVARIANT: By the safety requirements.
            lock: Locked(raw.as_ptr()),
            // SAFETY: By the safety requirements; the umem is the first member.
            umem: unsafe { Umem::from_raw(device, raw.cast()) },
        };
        Ok(Self {
            locked,
            slot: Slot::new(device)?,
            _device: PhantomData,
        })
    }

    /// The memory.
    pub fn umem(&self) -> &Umem {
        &self.locked.umem
    }

    /// The largest of `sizes` in which the memory can be described; see [`Umem::best_page_shift`].
    pub fn best_page_shift(&mut self, sizes: u64, iova: u64) -> Result<u8> {
        self.locked.umem.best_page_shift(sizes, iova)
    }

    /// Unlocks the reservation. From now on the exporter may take the buffer back, which `handler`
    /// is told of.
    pub fn unlock<R: Revoke>(self, handler: Arc<R>) -> Dmabuf<R> {
        let Self { locked, slot, .. } = self;
        let LockedUmem { lock, umem } = locked;
        let private = core::ptr::from_ref::<R>(&handler).cast_mut().cast();
        // SAFETY: The reservation is locked. The handler is called as long as the umem exists at
        // most. It is dropped later: `Dmabuf` drops the slot before it, which waits for the end of
        // the umem, and `LingeringDmabuf` drops the umem before it.
        unsafe { bindings::ib_umem_dmabuf_set_revoke_locked(lock.0, Some(revoked::<R>), private) };
        drop(lock);
        *slot.attached.umem.lock() = Some(umem);
        // INVARIANT: Set above. The device is still bound, so this place is still to be emptied.
        Dmabuf { slot, handler }
    }
}

/// # Safety
///
/// Called by the core for a [`Dmabuf`] with an `R`, whose handler `private` is.
unsafe extern "C" fn revoked<R: Revoke>(private: *mut c_void) {
    // SAFETY: By the function's safety requirements; the handler outlives the umem.
    unsafe { &*private.cast::<R>() }.revoke();
}

/// A buffer that is pinned and mapped for the device, until this is dropped or the driver is
/// unbound from its device, whichever is first. Then its handler is called, unless the exporter has
/// taken the buffer back.
///
/// # Invariants
///
/// The umem in `slot` is over a buffer, and its handler is `handler`.
pub struct Dmabuf<R: Revoke> {
    /// Dropped first: it calls the handler.
    slot: Slot,
    handler: Arc<R>,
}

impl<R: Revoke> Dmabuf<R> {
    /// The handler.
    pub fn handler(&self) -> &R {
        &self.handler
    }

    /// For a buffer that the device may still use and that is kept, perhaps for good: the module of
    /// `T` can't be unloaded meanwhile.
    ///
    /// # Errors
    ///
    /// The buffer, if the module is being unloaded. Then it must be dropped.
    pub fn linger<T: Driver>(self) -> Result<LingeringDmabuf<R>, Self> {
        let module = <T::OwnerModule as ModuleMetadata>::THIS_MODULE.as_ptr();
        // SAFETY: It is the module of this code, so it is there; it may be on its way out.
        if !unsafe { bindings::try_module_get(module) } {
            return Err(self);
        }
        let Self { slot, handler } = self;
        let needed = Needed {
            _handler: handler,
            // INVARIANT: It was just taken.
            _module: LoadedModule(module),
        };
        let umem = slot.attached.umem.lock().take();
        Ok(LingeringDmabuf {
            _umem: umem.map(|umem| umem.into_inner().and(needed)),
        })
    }

    /// Runs `work` while the exporter can't take the buffer back. May sleep.
    pub fn locked<U>(&self, work: impl FnOnce() -> U) -> U {
        let umem = self.slot.attached.umem.lock();
        let _lock = umem.as_ref().map(|umem| {
            let raw = container(umem);
            // SAFETY: By the type invariants.
            unsafe { bindings::ib_umem_dmabuf_revoke_lock(raw) };
            // INVARIANT: It was just locked.
            Locked(raw)
        });
        work()
    }
}
