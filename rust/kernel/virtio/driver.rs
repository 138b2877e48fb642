// SPDX-License-Identifier: GPL-2.0

//! The trait that a driver of virtio devices implements.
//!
//! C header: [`include/linux/virtio.h`](srctree/include/linux/virtio.h)

use super::{
    Device,
    Feature,
    IdTable, //
};
use kernel::{
    device,
    prelude::*,
    ModuleMetadata, //
};

/// A virtio driver.
///
/// A device loses its state when it is suspended or its transport is reset. A driver without
/// [`reset_prepare`](Self::reset_prepare) and [`reset_done`](Self::reset_done) is unbound before
/// that, and probes the device again afterwards.
///
/// # Examples
///
/// ```
/// use crate::virtio::{self, DeviceId, Feature, IdTable, VirtioID};
/// use kernel::device::Core;
///
/// struct MyDriver;
///
/// crate::virtio_device_table!(TABLE, [DeviceId::new(VirtioID::Rng)]);
///
/// #[vtable]
/// impl virtio::Driver for MyDriver {
///     type OwnerModule = crate::LocalModule;
///     type Data<'bound> = Self;
///     const ID_TABLE: IdTable = &TABLE;
///     const FEATURES: &'static [Feature] = &[];
///
///     fn probe<'bound>(
///         dev: &'bound virtio::Device<Core<'_>>,
///     ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
///         dev_info!(dev.as_ref(), "found\n");
///         Ok(Self)
///     }
/// }
/// ```
#[vtable]
pub trait Driver {
    /// The module of the implementation, `crate::LocalModule`.
    type OwnerModule: ModuleMetadata;

    /// The type of the driver's private data of a device.
    ///
    /// It is dropped after [`unbind`](Self::unbind). [`config_changed`](Self::config_changed) may
    /// run at the same time as any other function that gets the data.
    type Data<'bound>: Send + Sync + 'bound;

    /// The devices that the driver matches.
    const ID_TABLE: IdTable;

    /// Features of the device type that the driver uses, without those of the transport.
    const FEATURES: &'static [Feature];

    /// Called when a device is matched, with the features negotiated.
    fn probe<'bound>(
        dev: &'bound Device<device::Core<'_>>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;

    /// Called when the device is unbound, before the data is dropped.
    fn unbind<'bound>(dev: &'bound Device<device::Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let _ = (dev, this);
    }

    /// Called when the device changed its configuration, possibly in interrupt context, where the
    /// configuration can't be read.
    fn config_changed<'bound>(dev: &'bound Device<device::Bound>, this: Pin<&Self::Data<'bound>>) {
        let _ = (dev, this);
        kernel::build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Called before the device loses its state. Its queues are [removed](Device::remove_queues)
    /// afterwards, and the data stays.
    ///
    /// # Errors
    ///
    /// An error prevents the suspend or the reset.
    fn reset_prepare<'bound>(
        dev: &'bound Device<device::Core<'_>>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        let _ = (dev, this);
        kernel::build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Called when the device is back, with its features negotiated and without queues.
    ///
    /// # Errors
    ///
    /// After an error the device stays bound, without queues.
    fn reset_done<'bound>(
        dev: &'bound Device<device::Core<'_>>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        let _ = (dev, this);
        kernel::build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Called when the machine is powered off or starts another kernel. The device is reset
    /// afterwards.
    fn shutdown<'bound>(dev: &'bound Device<device::Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let _ = (dev, this);
        kernel::build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }
}

/// Declares a kernel module that exposes a single virtio driver.
///
/// # Examples
///
/// ```ignore
/// module_virtio_driver! {
///     type: MyDriver,
///     name: "my_driver",
///     authors: ["Author"],
///     description: "Driver of my device",
///     license: "GPL",
/// }
/// ```
#[macro_export]
macro_rules! module_virtio_driver {
    ($($f:tt)*) => {
        ::kernel::module_driver!(<T>, $crate::virtio::Adapter<T>, { $($f)* });
    };
}
