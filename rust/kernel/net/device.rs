// SPDX-License-Identifier: GPL-2.0

//! The network device.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use super::rtnl::Rtnl;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    device,
    prelude::*,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    types::Opaque, //
};

/// Length of an Ethernet address in bytes.
pub const ETH_ALEN: usize = bindings::ETH_ALEN as usize;

/// A network device.
///
/// The task that removes a device waits until all references to the device are dropped. So owners
/// have to drop their references on [`Event::Unregister`](super::notifier::Event::Unregister).
///
/// # Invariants
///
/// A [`Device`] represents a valid `struct net_device` that was registered.
#[repr(transparent)]
pub struct Device(Opaque<bindings::net_device>);

impl Device {
    /// Makes a reference of a pointer.
    ///
    /// # Safety
    ///
    /// `ptr` is a valid network device, for the duration of `'a`.
    pub unsafe fn from_raw<'a>(ptr: *mut bindings::net_device) -> &'a Self {
        // SAFETY: By this function's requirements; the wrapper is transparent.
        unsafe { &*ptr.cast() }
    }

    /// The C representation.
    pub fn as_raw(&self) -> *mut bindings::net_device {
        self.0.get()
    }

    /// The permanent Ethernet address, if it is an Ethernet device.
    pub fn permanent_address(&self) -> Option<[u8; ETH_ALEN]> {
        // SAFETY: By the type invariant.
        if !unsafe { bindings::netdev_is_ethernet(self.as_raw()) } {
            return None;
        }
        // SAFETY: By the type invariant; the field is longer than an Ethernet address and does not
        // change once the device is registered.
        Some(unsafe { *bindings::netdev_perm_addr(self.as_raw()).cast() })
    }

    /// The present Ethernet address, if it is an Ethernet device. While the address changes, the
    /// bytes may be of both addresses.
    pub fn address(&self) -> Option<[u8; ETH_ALEN]> {
        // SAFETY: By the type invariant.
        if !unsafe { bindings::netdev_is_ethernet(self.as_raw()) } {
            return None;
        }
        let mut address = [0; ETH_ALEN];
        for (at, byte) in (0..).zip(&mut address) {
            // SAFETY: By the type invariant. An Ethernet device has an address of this length, in
            // memory that the core frees with the device.
            *byte = unsafe { bindings::netdev_addr_byte(self.as_raw(), at) };
        }
        Some(address)
    }

    /// The parent device; `None` for a virtual device.
    pub fn parent(&self) -> Option<&device::Device> {
        // SAFETY: By the type invariant.
        let parent = unsafe { bindings::netdev_parent(self.as_raw()) };
        if parent.is_null() {
            return None;
        }
        // SAFETY: A device holds a reference to its parent.
        Some(unsafe { device::Device::from_raw(parent) })
    }

    /// Largest packet, in bytes.
    pub fn mtu(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { bindings::netdev_mtu(self.as_raw()) }
    }

    /// Whether the device is up and has a carrier.
    ///
    /// The operational state (`netif_oper_up`) would differ from this: the kernel updates it some
    /// time after the carrier.
    pub fn is_up(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe {
            bindings::netif_running(self.as_raw()) && bindings::netif_carrier_ok(self.as_raw())
        }
    }

    /// Whether the device is registered and not being unregistered. The result may change at any
    /// time unless the RTNL is held. A device that moves to another namespace is registered.
    pub fn is_registered(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::netdev_is_registered(self.as_raw()) }
    }

    /// The index of the device, by which `ip link` shows it. Unlike the name, it does not change.
    pub fn index(&self) -> i32 {
        // SAFETY: By the type invariant.
        unsafe { bindings::netdev_ifindex(self.as_raw()) }
    }

    /// Whether the device is a port of a bond or team.
    pub fn is_lag_port(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::netif_is_lag_port(self.as_raw()) }
    }

    /// Whether this device and `other` belong to functions of one PCI device. Either device may be
    /// the PCI function itself.
    pub fn shares_pci_slot(&self, other: &device::Device) -> bool {
        match (self.parent().and_then(pci_slot), pci_slot(other)) {
            (Some(mine), Some(its)) => mine == its,
            _ => false,
        }
    }
}

/// The device of all network namespaces for which `key` is greatest, and its key; the first one of
/// several. Devices without a key are skipped. With the RTNL held, no device comes or goes
/// meanwhile, so `key` may sleep.
///
/// # Examples
///
/// ```
/// use crate::net::{device::find_best, rtnl};
///
/// // The loopback device has the greatest MTU, or another device has the same.
/// let best = find_best(&rtnl::lock(), |netdev| Some(netdev.mtu()));
/// assert!(best.is_some_and(|(mtu, netdev)| mtu == netdev.mtu()));
/// ```
pub fn find_best<K: Ord, F: FnMut(&Device) -> Option<K>>(
    _rtnl: &Rtnl,
    key: F,
) -> Option<(K, ARef<Device>)> {
    struct Search<K, F> {
        key: F,
        best: Option<(K, ARef<Device>)>,
    }

    /// # Safety
    ///
    /// `netdev` is a registered network device during the call, `search` a `Search<K, F>` that
    /// nothing else uses.
    unsafe extern "C" fn visit<K: Ord, F: FnMut(&Device) -> Option<K>>(
        netdev: *mut bindings::net_device,
        search: *mut c_void,
    ) {
        // SAFETY: `netdev` is registered during the call, and `search` is a `Search<K, F>` that
        // nothing else uses.
        let (netdev, search) = unsafe {
            (
                Device::from_raw(netdev),
                &mut *search.cast::<Search<K, F>>(),
            )
        };
        let Some(key) = (search.key)(netdev) else {
            return;
        };
        if search.best.as_ref().is_none_or(|(best, _)| key > *best) {
            search.best = Some((key, netdev.into()));
        }
    }

    let mut search = Search { key, best: None };
    // SAFETY: The RTNL is held. The callback is called only during the call, with registered
    // devices and with `search`, which is borrowed only here.
    unsafe { bindings::netdev_for_each(Some(visit::<K, F>), (&raw mut search).cast()) };
    search.best
}

/// The PCI slot of `dev`, or of the nearest PCI function among its ancestors: address of the bus
/// and device number.
fn pci_slot(dev: &device::Device) -> Option<(usize, u32)> {
    let mut dev: *mut bindings::device = core::ptr::from_ref(dev).cast_mut().cast();
    // At most three steps: the device, a device between (on a bus like virtio), and the PCI
    // function.
    for _ in 0..3 {
        // SAFETY: The device is valid; a `struct bus_type` is only compared.
        if unsafe { (*dev).bus } == &raw const bindings::pci_bus_type {
            // SAFETY: A device on the PCI bus is embedded in a `struct pci_dev`, which is valid
            // with it; its bus is only compared.
            let (bus, devfn) = unsafe {
                let pci = kernel::container_of!(dev, bindings::pci_dev, dev);
                ((*pci).bus, (*pci).devfn)
            };
            return Some((bus as usize, devfn >> 3));
        }
        // SAFETY: The device is valid, and holds a reference to its parent.
        dev = unsafe { (*dev).parent };
        if dev.is_null() {
            break;
        }
    }
    None
}

// SAFETY: `dev_hold()` and `dev_put()` count references.
unsafe impl AlwaysRefCounted for Device {
    fn inc_ref(&self) {
        // SAFETY: The existence of a shared reference guarantees that the count is not zero.
        unsafe { bindings::dev_hold(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller gives up a reference that it owns.
        unsafe { bindings::dev_put(obj.cast().as_ptr()) };
    }
}

// SAFETY: References may be given up on any CPU.
unsafe impl Send for Device {}

// SAFETY: What is read through `&Device` is constant or read as a whole.
unsafe impl Sync for Device {}
