// SPDX-License-Identifier: GPL-2.0

//! Notifications of changes of network devices.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use super::{
    device::Device,
    rtnl::Rtnl, //
};
use crate::bindings;
use core::pin::Pin;
use kernel::{
    error::to_result,
    prelude::*,
    types::Opaque, //
};

/// A change of a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The device was registered, or existed already when the notifier was registered.
    Register,
    /// The device or the notifier is being unregistered. References to the device have to be
    /// dropped now.
    Unregister,
    /// The device was brought up.
    Up,
    /// The device was brought down.
    Down,
    /// The device's state changed, for example its carrier.
    Change,
    /// The device's MTU changed.
    ChangeMtu,
    /// The device's name changed.
    ChangeName,
    /// The device's address changed.
    ChangeAddress,
    /// Any other change.
    Other,
}

impl From<c_ulong> for Event {
    fn from(raw: c_ulong) -> Self {
        match u32::try_from(raw) {
            Ok(bindings::netdev_cmd_NETDEV_REGISTER) => Self::Register,
            Ok(bindings::netdev_cmd_NETDEV_UNREGISTER) => Self::Unregister,
            Ok(bindings::netdev_cmd_NETDEV_UP) => Self::Up,
            Ok(bindings::netdev_cmd_NETDEV_DOWN) => Self::Down,
            Ok(bindings::netdev_cmd_NETDEV_CHANGE) => Self::Change,
            Ok(bindings::netdev_cmd_NETDEV_CHANGEMTU) => Self::ChangeMtu,
            Ok(bindings::netdev_cmd_NETDEV_CHANGENAME) => Self::ChangeName,
            Ok(bindings::netdev_cmd_NETDEV_CHANGEADDR) => Self::ChangeAddress,
            _ => Self::Other,
        }
    }
}

/// Callback of a [`Notifier`].
pub trait NotifierOps: Send + Sync + 'static {
    /// Called for the devices of every network namespace.
    fn event(&self, event: Event, dev: &Device, rtnl: &Rtnl);
}

impl<T: NotifierOps> NotifierOps for Pin<KBox<T>> {
    fn event(&self, event: Event, dev: &Device, rtnl: &Rtnl) {
        T::event(self, event, dev, rtnl);
    }
}

/// A registered notifier.
///
/// When the notifier is registered, its callback is called for each existing device, as if the
/// device was registered and brought up just then. When the notifier is dropped, its callback is
/// called as if each device was brought down and unregistered.
///
/// # Examples
///
/// ```
/// use crate::net::device::Device;
/// use crate::net::notifier::{Event, Notifier, NotifierOps};
/// use crate::net::rtnl::Rtnl;
/// use kernel::sync::atomic::{Atomic, Relaxed};
///
/// struct Count(Atomic<u32>);
///
/// impl NotifierOps for Count {
///     fn event(&self, event: Event, _dev: &Device, _rtnl: &Rtnl) {
///         if event == Event::Register {
///             self.0.fetch_add(1, Relaxed);
///         }
///     }
/// }
///
/// // The loopback device is there, at least.
/// let count = KBox::pin_init(Notifier::new(Count(Atomic::new(0))), GFP_KERNEL)?;
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// `block` is registered from when it is initialized until it is dropped.
#[pin_data(PinnedDrop)]
#[repr(C)]
pub struct Notifier<T: NotifierOps> {
    #[pin]
    block: Opaque<bindings::notifier_block>,
    ops: T,
}

// SAFETY: The block is only touched by the core, under its locks.
unsafe impl<T: NotifierOps> Send for Notifier<T> {}

// SAFETY: As above.
unsafe impl<T: NotifierOps> Sync for Notifier<T> {}

impl<T: NotifierOps> Notifier<T> {
    /// Registers a notifier. Takes the RTNL.
    pub fn new(ops: T) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            ops,
            // Initialized last, since the callback may run from here on.
            //
            // INVARIANT: The block is registered, or the initialization fails.
            block <- Opaque::try_ffi_init(|slot: *mut bindings::notifier_block| {
                let block = bindings::notifier_block {
                    notifier_call: Some(Self::call),
                    ..pin_init::zeroed()
                };
                // SAFETY: `slot` is valid for writes.
                unsafe { slot.write(block) };
                // SAFETY: The block is complete and stays in place until it is unregistered.
                to_result(unsafe { bindings::register_netdevice_notifier(slot) })
            }),
        })
    }

    /// # Safety
    ///
    /// To be called by the notifier chain only, with the block of a `Notifier<T>`.
    unsafe extern "C" fn call(
        block: *mut bindings::notifier_block,
        event: c_ulong,
        info: *mut c_void,
    ) -> c_int {
        // SAFETY: The block is embedded in a `Notifier<T>` whose `ops` is initialized; no other
        // field of the `Notifier<T>` is accessed.
        let ops = unsafe {
            let this = kernel::container_of!(Opaque::cast_from(block), Self, block);
            &(*this).ops
        };
        // SAFETY: The chain passes the information of a network device, which is valid during the
        // call.
        let dev = unsafe { Device::from_raw(bindings::netdev_notifier_info_to_dev(info)) };
        // SAFETY: The chain is called with the RTNL held.
        let rtnl = unsafe { Rtnl::held() };
        ops.event(Event::from(event), dev, rtnl);
        bindings::NOTIFY_DONE as c_int
    }
}

#[pinned_drop]
impl<T: NotifierOps> PinnedDrop for Notifier<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the block is registered.
        unsafe { bindings::unregister_netdevice_notifier(self.block.get()) };
    }
}
