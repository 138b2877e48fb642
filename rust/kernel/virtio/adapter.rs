// SPDX-License-Identifier: GPL-2.0

//! Driver registration: callbacks of the virtio core become calls of a [`Driver`].
//!
//! C header: [`include/linux/virtio.h`](srctree/include/linux/virtio.h)

use super::{
    device::Status,
    recovery::Recoveries,
    Device,
    Driver, //
};
use crate::{
    bindings,
    sync::deferred::{
        Deferred,
        Handle, //
    },
};
use core::{
    marker::PhantomData,
    mem::offset_of,
    ptr::{
        self,
        null_mut, //
    },
};
use kernel::{
    device,
    driver,
    error::{
        from_result,
        to_result, //
    },
    prelude::*,
    types::{
        ForeignOwnable,
        Opaque, //
    },
    ThisModule, //
};

/// The lock of a device, which the driver core holds while it binds, unbinds or shuts down the
/// device.
///
/// # Invariants
///
/// The device is valid, and this holds its lock.
struct Locked(*mut bindings::device);

impl Locked {
    /// Takes the lock.
    ///
    /// # Safety
    ///
    /// `vdev` is valid until this is dropped, and the caller does not hold the lock.
    unsafe fn new(vdev: *mut bindings::virtio_device) -> Self {
        // SAFETY: By this function's requirements.
        let dev = unsafe { &raw mut (*vdev).dev };
        // SAFETY: As above.
        unsafe { bindings::device_lock(dev) };
        // INVARIANT: Taken above.
        Self(dev)
    }

    /// The driver that the device is bound to, if an [`Adapter`] of this module has registered it.
    fn driver(&self) -> Option<&VirtioDriver> {
        // SAFETY: By the type invariant the device is valid and locked.
        unsafe { driver_of(self.0) }
    }
}

/// The driver that a device is bound to, if an [`Adapter`] of this module has registered it.
///
/// # Safety
///
/// The device is valid, and its lock is held until the last use of the driver.
unsafe fn driver_of<'a>(dev: *const bindings::device) -> Option<&'a VirtioDriver> {
    // SAFETY: The device is valid; the driver changes under the lock only.
    let driver = unsafe { (*dev).driver };
    if driver.is_null() {
        return None;
    }
    // SAFETY: A device is bound to drivers of its own bus only, and each driver of the virtio bus
    // is embedded in a `struct virtio_driver`.
    let driver = unsafe { driver.byte_sub(offset_of!(bindings::virtio_driver, driver)) };
    let driver = driver.cast::<bindings::virtio_driver>();
    let ours: unsafe extern "C" fn(_) -> _ = reset_prepare_callback;
    // SAFETY: A driver that devices are bound to is valid.
    let callback = unsafe { (*driver).reset_prepare };
    let has_ours = callback.is_some_and(|callback| ptr::fn_addr_eq(callback, ours));
    // SAFETY: Only `Adapter` sets this callback, in the structure at the start of a `VirtioDriver`.
    // The driver stays valid while the device is bound to it.
    has_ours.then(|| unsafe { &*driver.cast::<VirtioDriver>() })
}

/// The recoveries of the driver that `device` is bound to.
pub(super) fn recoveries(device: &Device<device::Core<'_>>) -> Option<Handle<Recoveries>> {
    // SAFETY: The device is valid, and in this context its lock is held.
    let driver = unsafe { driver_of(&raw const (*device.as_raw()).dev) };
    Some(driver?.recoveries.as_ref()?.handle())
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::device_unlock(self.0) };
    }
}

/// A function for a device that is bound to a certain driver.
///
/// # Safety
///
/// The device is bound to the driver, and the caller holds the device's lock.
type BoundFn = unsafe fn(&Device<device::CoreInternal<'_>>) -> Result;

/// The C structure of a driver, and the functions that depend on the type of the driver's data.
///
/// A transport takes the callbacks for suspends and resets from the driver that the device is bound
/// to, but takes no lock. When the callback runs, the device may be bound to another driver, whose
/// data has another type. So both callbacks are the same for all drivers: they take the lock and
/// then call the functions of the present driver.
#[repr(C)]
#[derive(Default)]
pub struct VirtioDriver {
    raw: bindings::virtio_driver,
    reset_prepare: Option<BoundFn>,
    reset_done: Option<BoundFn>,
    recoveries: Option<Deferred<Recoveries>>,
}

/// An adapter for the registration of virtio drivers.
///
/// # Examples
///
/// ```
/// use crate::virtio::{Adapter, Driver};
/// use kernel::{driver::Registration, ModuleMetadata};
///
/// /// A module with more than a driver; other modules use [`module_virtio_driver`].
/// #[pin_data]
/// struct MyModule<T: Driver + 'static> {
///     #[pin]
///     driver: Registration<Adapter<T>>,
/// }
///
/// impl<T: Driver + 'static> MyModule<T> {
///     fn new(module: &'static ThisModule) -> impl PinInit<Self, Error> {
///         try_pin_init!(Self {
///             driver <- Registration::new(<crate::LocalModule as ModuleMetadata>::NAME, module),
///         })
///     }
/// }
/// ```
pub struct Adapter<T: Driver>(PhantomData<T>);

// SAFETY:
// - `VirtioDriver` is declared as `repr(C)`.
// - `T::Data` is the type of the driver's device private data.
// - The `struct virtio_driver` in a `VirtioDriver` embeds a `struct device_driver` at
//   `DEVICE_DRIVER_OFFSET`.
unsafe impl<T: Driver> driver::DriverLayout for Adapter<T> {
    type DriverType = VirtioDriver;
    type DriverData<'bound> = T::Data<'bound>;
    const DEVICE_DRIVER_OFFSET: usize = offset_of!(VirtioDriver, raw.driver);
}

// SAFETY: `unregister` is only valid after a `register` that succeeded.
unsafe impl<T: Driver> driver::RegistrationOps for Adapter<T> {
    unsafe fn register(
        vdrv: &Opaque<Self::DriverType>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        const {
            assert!(
                T::HAS_RESET_PREPARE == T::HAS_RESET_DONE,
                "a driver has both callbacks of a reset or none"
            )
        };
        let features = T::FEATURES;
        let recoveries = Recoveries::new()?;
        // SAFETY: The fields of the driver may be set until it is registered. `Feature` is a
        // transparent `u32`, and the tables are static.
        unsafe {
            let this = vdrv.get();
            (*this).reset_prepare = Some(Self::reset_prepare);
            (*this).reset_done = Some(Self::reset_done);
            (*this).recoveries = Some(recoveries);
            let vdrv = &raw mut (*this).raw;
            (*vdrv).driver.name = name.as_char_ptr();
            (*vdrv).id_table = T::ID_TABLE.as_ptr();
            (*vdrv).feature_table = features.as_ptr().cast();
            (*vdrv).feature_table_size = u32::try_from(features.len())?;
            (*vdrv).validate = Some(Self::validate_callback);
            (*vdrv).probe = Some(Self::probe_callback);
            (*vdrv).remove = Some(Self::remove_callback);
            (*vdrv).shutdown = Some(Self::shutdown_callback);
            (*vdrv).freeze = Some(reset_prepare_callback);
            (*vdrv).restore = Some(reset_done_callback);
            (*vdrv).reset_prepare = Some(reset_prepare_callback);
            (*vdrv).reset_done = Some(reset_done_callback);
            if T::HAS_CONFIG_CHANGED {
                (*vdrv).config_changed = Some(Self::config_changed_callback);
            }
        }
        // SAFETY: The structure is complete, and by this function's requirements stays in place
        // until it is unregistered.
        to_result(unsafe {
            bindings::__register_virtio_driver(&raw mut (*vdrv.get()).raw, module.as_ptr())
        })
        .inspect_err(|_| {
            // SAFETY: No device was bound to the driver.
            drop(unsafe { (*vdrv.get()).recoveries.take() });
        })
    }

    unsafe fn unregister(vdrv: &Opaque<Self::DriverType>) {
        // SAFETY: By this function's requirements the driver was registered.
        unsafe { bindings::unregister_virtio_driver(&raw mut (*vdrv.get()).raw) };
        // Waits for a running recovery, which finds its device unbound.
        //
        // SAFETY: No device is bound to the driver any more.
        drop(unsafe { (*vdrv.get()).recoveries.take() });
    }
}

impl<T: Driver> Adapter<T> {
    /// Probes a device.
    fn bind(vdev: &Device<device::CoreInternal<'_>>) -> Result {
        vdev.clear_priv();
        let dev: &device::Device<device::CoreInternal<'_>> = vdev.as_ref();
        dev.set_drvdata(T::probe(vdev)).inspect_err(|_| {
            let _ = vdev.remove_queues();
        })
    }

    /// Unbinds the driver, but does not drop its data.
    fn unbind(vdev: &Device<device::CoreInternal<'_>>) {
        // SAFETY: The core and `reset_prepare()` drop the data after this function.
        if let Some(data) = unsafe { Self::data(vdev) } {
            T::unbind(vdev, data);
        }
        let _ = vdev.remove_queues();
    }

    /// The driver's data of a device; `None` after a restore that failed.
    ///
    /// # Safety
    ///
    /// The data is not dropped while the caller uses it.
    unsafe fn data<'a>(vdev: &'a Device<device::CoreInternal<'_>>) -> Option<Pin<&'a T::Data<'a>>> {
        let dev: &device::Device<device::CoreInternal<'_>> = vdev.as_ref();
        // SAFETY: `has_drvdata` checks that the data exists. `bind()` set it, with this type. By
        // this function's requirements it is not dropped meanwhile.
        has_drvdata(vdev).then(|| unsafe { dev.drvdata_borrow::<T::Data<'_>>() })
    }

    /// Refuses a device that is gone.
    ///
    /// The feature bits and the status of such a device read as all ones. So the PCI transport
    /// would regard its administration virtqueue as in use while the core fails the probe, and
    /// would access that queue, which was never set up.
    ///
    /// # Safety
    ///
    /// To be called by the virtio core only, which passes a valid device.
    unsafe extern "C" fn validate_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: By this function's requirements.
        //
        // INVARIANT: `vdev` is valid for the duration of the callback.
        let vdev = unsafe { &*vdev.cast::<Device<device::CoreInternal<'_>>>() };
        if matches!(vdev.status(), Status::Read(_)) {
            return 0;
        }
        // SAFETY: The device is valid. The core is negotiating its features, and nothing else uses
        // them.
        unsafe { bindings::__virtio_clear_bit(vdev.as_raw(), bindings::VIRTIO_F_ADMIN_VQ) };
        ENODEV.to_errno()
    }

    /// # Safety
    ///
    /// To be called by the virtio core only, which passes a valid device.
    unsafe extern "C" fn probe_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: By this function's requirements.
        //
        // INVARIANT: `vdev` is valid for the duration of the callback.
        let vdev = unsafe { &*vdev.cast::<Device<device::CoreInternal<'_>>>() };
        from_result(|| Self::bind(vdev).map(|()| 0))
    }

    /// # Safety
    ///
    /// To be called by the virtio core only, for a device that was probed.
    unsafe extern "C" fn remove_callback(vdev: *mut bindings::virtio_device) {
        // SAFETY: By this function's requirements.
        //
        // INVARIANT: `vdev` is valid for the duration of the callback.
        let vdev = unsafe { &*vdev.cast::<Device<device::CoreInternal<'_>>>() };
        Self::unbind(vdev);
    }

    /// Prepares for a suspend or a reset of the transport, in which the device loses its state.
    ///
    /// # Safety
    ///
    /// The requirements of [`BoundFn`].
    unsafe fn reset_prepare(vdev: &Device<device::CoreInternal<'_>>) -> Result {
        if T::HAS_RESET_PREPARE {
            // SAFETY: The data is dropped under the lock, and not in this block.
            if let Some(data) = unsafe { Self::data(vdev) } {
                T::reset_prepare(vdev, data)?;
                let _ = vdev.remove_queues();
                return Ok(());
            }
        }
        Self::unbind(vdev);
        if has_drvdata(vdev) {
            // SAFETY: The device is valid, and `bind()` set its data, with this type. The data is
            // taken out, and the pointer to it cleared.
            unsafe {
                let dev = &raw mut (*vdev.as_raw()).dev;
                let data = bindings::dev_get_drvdata(dev);
                bindings::dev_set_drvdata(dev, null_mut());
                drop(Pin::<KBox<T::Data<'_>>>::from_foreign(data.cast()));
            }
        }
        Ok(())
    }

    /// Restores the device after [`reset_prepare`](Self::reset_prepare). The device's features are
    /// negotiated again.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the device was unbound and bound again: a probe that ran during the reset has to
    /// be repeated by hand.
    ///
    /// # Safety
    ///
    /// The requirements of [`BoundFn`].
    unsafe fn reset_done(vdev: &Device<device::CoreInternal<'_>>) -> Result {
        // SAFETY: The data is dropped under the lock, and not in this function.
        match unsafe { Self::data(vdev) } {
            None => Self::bind(vdev),
            Some(data) if T::HAS_RESET_DONE && !vdev.has_queues() => T::reset_done(vdev, data)
                .inspect_err(|_| {
                    let _ = vdev.remove_queues();
                }),
            Some(_) => Err(EBUSY),
        }
    }

    /// Breaks the queues and then resets the device, for the next kernel.
    ///
    /// The virtio core's own function does the same, but waits for ever if the device is gone. A
    /// device that is being reset already is not waited for either: it may never confirm the reset.
    ///
    /// # Safety
    ///
    /// To be called by the virtio core only, for a device that is bound.
    unsafe extern "C" fn shutdown_callback(vdev: *mut bindings::virtio_device) {
        // SAFETY: By this function's requirements.
        //
        // INVARIANT: `vdev` is valid for the duration of the callback.
        let vdev = unsafe { &*vdev.cast::<Device<device::CoreInternal<'_>>>() };
        if T::HAS_SHUTDOWN {
            // SAFETY: The data is dropped under the device's lock, which the core holds here.
            if let Some(data) = unsafe { Self::data(vdev) } {
                T::shutdown(vdev, data);
            }
        }
        // With the queues broken, running work fails instead of waiting for a device that was
        // reset.
        //
        // SAFETY: The device is valid and bound to this driver.
        unsafe { bindings::virtio_break_device(vdev.as_raw()) };
        // SAFETY: As above.
        unsafe { bindings::virtio_synchronize_cbs(vdev.as_raw()) };
        if !vdev.is_resetting() && matches!(vdev.status(), Status::Read(_)) {
            let _ = vdev.reset();
        }
    }

    /// # Safety
    ///
    /// To be called by the virtio core only, for a device that was probed.
    unsafe extern "C" fn config_changed_callback(vdev: *mut bindings::virtio_device) {
        // SAFETY: By this function's requirements.
        //
        // INVARIANT: `vdev` is valid for the duration of the callback.
        let vdev = unsafe { &*vdev.cast::<Device<device::CoreInternal<'_>>>() };
        // After a restore that raced with an unbinding, reports of changes stay enabled. So a
        // report may arrive before the probe is complete, when the data does not exist.
        //
        // SAFETY: The core reports changes only until the removal starts, and serializes with that.
        if let Some(data) = unsafe { Self::data(vdev) } {
            T::config_changed(vdev, data);
        }
    }
}

/// Prepares for a suspend or a reset of the transport: [`Adapter::reset_prepare`].
///
/// A transport calls this without the lock of the virtio device. So the device may be being unbound
/// through sysfs, be unbound already, or be bound to another driver by now.
///
/// # Safety
///
/// To be called by the virtio core only, with a valid device.
unsafe extern "C" fn reset_prepare_callback(vdev: *mut bindings::virtio_device) -> c_int {
    // SAFETY: By this function's requirements. The virtio core holds no lock of the device.
    let lock = unsafe { Locked::new(vdev) };
    let Some(prepare) = lock.driver().and_then(|driver| driver.reset_prepare) else {
        return 0;
    };
    // SAFETY: By this function's requirements.
    //
    // INVARIANT: `vdev` is valid for the duration of the callback.
    let vdev = unsafe { &*vdev.cast::<Device<device::CoreInternal<'_>>>() };
    // SAFETY: The lock is held, and the device is bound to the driver of this function.
    from_result(|| unsafe { prepare(vdev) }.map(|()| 0))
}

/// Restores the device after [`reset_prepare_callback`]: [`Adapter::reset_done`].
///
/// # Errors
///
/// `ENODEV` if the device was unbound meanwhile.
///
/// # Safety
///
/// To be called by the virtio core only, with a valid device.
unsafe extern "C" fn reset_done_callback(vdev: *mut bindings::virtio_device) -> c_int {
    // SAFETY: By this function's requirements. The virtio core holds no lock of the device.
    let lock = unsafe { Locked::new(vdev) };
    let Some(done) = lock.driver().and_then(|driver| driver.reset_done) else {
        return ENODEV.to_errno();
    };
    // SAFETY: By this function's requirements.
    //
    // INVARIANT: `vdev` is valid for the duration of the callback.
    let vdev = unsafe { &*vdev.cast::<Device<device::CoreInternal<'_>>>() };
    // SAFETY: The lock is held, and the device is bound to the driver of this function.
    from_result(|| unsafe { done(vdev) }.map(|()| 0))
}

/// Whether the driver's data exists: it does not after a failed restore.
fn has_drvdata(vdev: &Device<device::CoreInternal<'_>>) -> bool {
    // SAFETY: The device is valid.
    !unsafe { bindings::dev_get_drvdata(&raw const (*vdev.as_raw()).dev) }.is_null()
}
