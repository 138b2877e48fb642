// SPDX-License-Identifier: GPL-2.0

//! The virtio device: features and life cycle.
//!
//! C header: [`include/linux/virtio_config.h`](srctree/include/linux/virtio_config.h)

use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    device,
    pci,
    prelude::*,
    sync::aref::AlwaysRefCounted,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
    types::Opaque, //
};

/// Time in ms after which a read that ends with all ones was given up by a monitor. A device that
/// is gone reads as all ones at once.
const SILENT_MS: i64 = 100;

/// Interval in ms at which a reset reads the status of a silent device.
const RETRY_MS: i64 = 100;

/// The number of a feature bit.
///
/// # Examples
///
/// ```
/// use crate::virtio::{self, Feature};
/// use kernel::device::Bound;
///
/// const F_TOPOLOGY: Feature = Feature::device_type(10);
///
/// fn has_topology(dev: &virtio::Device<Bound>) -> bool {
///     dev.has_feature(F_TOPOLOGY) && dev.has_feature(Feature::VERSION_1)
/// }
///
/// assert!(F_TOPOLOGY.bit() == 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Feature(u32);

impl Feature {
    /// The device complies with version 1 of the specification.
    pub const VERSION_1: Self = Self(bindings::VIRTIO_F_VERSION_1);
    /// The device accesses memory through the DMA API like other devices of its platform.
    pub const ACCESS_PLATFORM: Self = Self(bindings::VIRTIO_F_ACCESS_PLATFORM);
    /// Virtqueues need the platform's barriers for devices instead of barriers between CPUs.
    ///
    /// The transport accepts this feature without asking the driver. The virtio core uses the
    /// platform's barriers for virtqueues. For other memory that a driver shares with the device,
    /// the driver itself has to use them.
    pub const ORDER_PLATFORM: Self = Self(bindings::VIRTIO_F_ORDER_PLATFORM);
    /// A single queue can be reset.
    pub const RING_RESET: Self = Self(bindings::VIRTIO_F_RING_RESET);

    /// A feature of the device type: a bit that the transport does not use.
    ///
    /// In a constant, any other bit fails to compile.
    pub const fn device_type(bit: u32) -> Self {
        assert!(
            bit < bindings::VIRTIO_TRANSPORT_F_START
                || (bit >= bindings::VIRTIO_TRANSPORT_F_END && bit < 64),
            "the bit belongs to the transport"
        );
        Self(bit)
    }

    /// The number of the bit.
    pub const fn bit(self) -> u32 {
        self.0
    }
}

/// The result of a reset of a device.
///
/// # Examples
///
/// ```
/// use crate::virtio::{self, Reset};
/// use kernel::device::Core;
///
/// /// Frees memory that a device knows, unless it may still use the memory.
/// fn free<T>(dev: &virtio::Device<Core<'_>>, memory: T) {
///     match dev.remove_queues() {
///         Reset::Done => drop(memory),
///         Reset::Unreachable => core::mem::forget(memory),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reset {
    /// The device confirmed the reset: it uses no memory of the driver any more.
    Done,
    /// The device is gone or confirmed nothing: whether it still uses memory is unknown.
    Unreachable,
}

/// Health of a device after [`ready`](Device::ready).
///
/// # Examples
///
/// ```
/// use crate::virtio::{Health, Virtqueue};
///
/// /// Called periodically: logs a message if the device does not work any more.
/// fn check<T: Send>(queue: &Virtqueue<T>) -> bool {
///     match queue.poll_health() {
///         Health::Good => return true,
///         Health::NeedsReset => pr_err!("the device needs a reset\n"),
///         Health::Broken => pr_err!("the device broke the rules of a queue\n"),
///         Health::Silent => pr_err!("the device does not answer\n"),
///         Health::Gone => pr_err!("the device is gone\n"),
///     }
///     false
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The device works.
    Good,
    /// The device met an error from which only a reset recovers it, or lost its state.
    NeedsReset,
    /// The device's status is good, but it broke the rules of a virtqueue, which is unusable now.
    Broken,
    /// The device did not answer: its process was stopped, for example. It may continue at any time
    /// and access memory.
    Silent,
    /// The device is gone and can't come back.
    Gone,
}

/// The result of a read of the status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The status.
    Read(u8),
    /// See [`Health::Silent`].
    Silent,
    /// See [`Health::Gone`].
    Gone,
}

/// A device on the virtio bus.
///
/// # Invariants
///
/// A [`Device`] represents a valid `struct virtio_device` created by the C portion of the kernel.
#[repr(transparent)]
pub struct Device<Ctx: device::DeviceContext = device::Normal>(
    Opaque<bindings::virtio_device>,
    PhantomData<Ctx>,
);

impl<Ctx: device::DeviceContext> Device<Ctx> {
    /// The C representation.
    pub(super) fn as_raw(&self) -> *mut bindings::virtio_device {
        self.0.get()
    }
}

impl Device {
    /// The transport's operations.
    ///
    /// They may sleep.
    pub(super) fn ops(&self) -> &bindings::virtio_config_ops {
        // SAFETY: By the type invariant the device is valid; every transport sets its operations
        // before it registers the device and never changes them.
        unsafe { &*(*self.as_raw()).config }
    }

    /// The device in the context [`Bound`](device::Bound).
    ///
    /// # Safety
    ///
    /// The device stays bound for as long as the reference lives.
    pub(super) unsafe fn as_bound(&self) -> &Device<device::Bound> {
        // SAFETY: The context is a marker of size zero. The caller guarantees that it applies.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }
}

impl Device<device::Bound> {
    /// Reads the status byte. A status of all ones is invalid.
    ///
    /// May sleep.
    pub(super) fn status(&self) -> Status {
        let Some(get_status) = self.ops().get_status else {
            return Status::Gone;
        };
        let began = Instant::<Monotonic>::now();
        // SAFETY: By the type invariant the device is valid, and this is its transport's operation.
        let status = unsafe { get_status(self.as_raw()) };
        if status != u8::MAX {
            Status::Read(status)
        } else if began.elapsed() >= Delta::from_millis(SILENT_MS) {
            Status::Silent
        } else {
            Status::Gone
        }
    }

    /// The device's health according to its status. May sleep.
    pub(super) fn health(&self) -> Health {
        const BITS: u32 =
            bindings::VIRTIO_CONFIG_S_DRIVER_OK | bindings::VIRTIO_CONFIG_S_NEEDS_RESET;
        match self.status() {
            Status::Gone => Health::Gone,
            Status::Silent => Health::Silent,
            Status::Read(status)
                if u32::from(status) & BITS == bindings::VIRTIO_CONFIG_S_DRIVER_OK =>
            {
                Health::Good
            }
            Status::Read(_) => Health::NeedsReset,
        }
    }

    /// Resets the device unless it is gone.
    ///
    /// A silent device is waited for, since it may still access memory. A transport waits for ever
    /// for the confirmation of a device that is gone, so the status is read immediately before the
    /// reset. If the device goes away after that and before it has confirmed the reset, this waits
    /// for ever: only the transport could end the wait. So callers hold no lock that the health
    /// check of the device needs. May sleep. Two concurrent calls both return after the reset.
    pub(super) fn reset(&self) -> Reset {
        if self.await_status().is_none() {
            // From now on buffers can't be added, and late interrupts are ignored.
            //
            // SAFETY: By the type invariant the device is valid.
            unsafe { bindings::virtio_break_device(self.as_raw()) };
            // SAFETY: As above.
            unsafe { bindings::virtio_synchronize_cbs(self.as_raw()) };
            return Reset::Unreachable;
        }
        // SAFETY: By the type invariant the device is valid.
        unsafe { bindings::virtio_reset_device(self.as_raw()) };
        match self.await_status() {
            Some(0) => Reset::Done,
            _ => Reset::Unreachable,
        }
    }

    /// The status byte, or `None` if the device is gone. Waits for a silent device.
    fn await_status(&self) -> Option<u8> {
        let mut waits = false;
        loop {
            match self.status() {
                Status::Read(status) => return Some(status),
                Status::Gone => return None,
                Status::Silent if !waits => {
                    waits = true;
                    dev_warn!(
                        self.as_ref(),
                        "the device does not answer: its reset waits for it\n"
                    );
                }
                Status::Silent => fsleep(Delta::from_millis(RETRY_MS)),
            }
        }
    }

    /// Whether `feature` was negotiated.
    ///
    /// A feature that is neither the transport's nor in the driver's own
    /// [`FEATURES`](super::Driver::FEATURES) is never negotiated.
    pub fn has_feature(&self, feature: Feature) -> bool {
        // SAFETY: By the type invariant the device is valid, its features don't change while it is
        // bound, and a `Feature` is below the number of bits. `virtio_has_feature()` would stop the
        // kernel for a feature that the driver does not list.
        unsafe { bindings::__virtio_test_bit(self.as_raw(), feature.bit()) }
    }

    /// The device to pass to the DMA API: the parent of the virtio device, which performs the DMA.
    ///
    /// `None` without [`Feature::ACCESS_PLATFORM`], since such a device bypasses the DMA API. Also
    /// `None` for a transport that maps memory by its own operations, such as VDUSE.
    ///
    /// # Examples
    ///
    /// ```
    /// use crate::virtio;
    /// use kernel::{device::Bound, dma::Coherent};
    ///
    /// fn allocate(dev: &virtio::Device<Bound>) -> Result<Coherent<[u8]>> {
    ///     let device = dev.dma_device().ok_or(EOPNOTSUPP)?;
    ///     Coherent::zeroed_slice(device, 4096, GFP_KERNEL)
    /// }
    /// ```
    pub fn dma_device(&self) -> Option<&device::Device<device::Bound>> {
        // SAFETY: By the type invariant the device is valid; the transport sets `map` before it
        // registers the device.
        let has_own_map = unsafe { !(*self.as_raw()).map.is_null() };
        if has_own_map || !self.has_feature(Feature::ACCESS_PLATFORM) {
            return None;
        }
        self.parent()
    }

    /// The PCI function that the virtio device belongs to. `None` for a transport other than PCI.
    pub fn pci_function(&self) -> Option<&pci::Device<device::Bound>> {
        self.parent()?.try_into().ok()
    }

    /// The parent, whose driver is the transport.
    pub(super) fn parent(&self) -> Option<&device::Device<device::Bound>> {
        // SAFETY: By the type invariant the device is valid; its parent is set by the transport
        // before the device is registered and outlives it.
        let parent = unsafe { (*self.as_raw()).dev.parent };
        if parent.is_null() {
            return None;
        }
        // SAFETY: The parent is a valid device. It stays bound to its driver, the transport, for as
        // long as the virtio device is registered, and so for as long as the virtio device is
        // bound.
        Some(unsafe { device::Device::from_raw(parent) })
    }
}

impl Device<device::Core<'_>> {
    /// Sets DRIVER_OK: from then on the queues can be used.
    ///
    /// # Errors
    ///
    /// [`ENODEV`] if the device is gone or silent, [`EIO`] if DRIVER_OK is set already.
    pub fn ready(&self) -> Result {
        let Status::Read(status) = self.status() else {
            return Err(ENODEV);
        };
        if u32::from(status) & bindings::VIRTIO_CONFIG_S_DRIVER_OK != 0 {
            return Err(EIO);
        }
        // SAFETY: By the type invariant the device is valid.
        unsafe { bindings::virtio_device_ready(self.as_raw()) };
        Ok(())
    }
}

// SAFETY: `Device` is a transparent wrapper of a type that doesn't depend on `Device`'s generic
// argument.
kernel::impl_device_context_deref!(unsafe { Device });
kernel::impl_device_context_into_aref!(Device);

impl<Ctx: device::DeviceContext> AsRef<device::Device<Ctx>> for Device<Ctx> {
    fn as_ref(&self) -> &device::Device<Ctx> {
        // SAFETY: By the type invariant the device is valid, and so is the `struct device` in it,
        // which is in the same context.
        unsafe { device::Device::from_raw(&raw mut (*self.as_raw()).dev) }
    }
}

// SAFETY: `get_device()` and `put_device()` on the embedded device count the references of the
// whole structure.
unsafe impl AlwaysRefCounted for Device {
    fn inc_ref(&self) {
        // SAFETY: The existence of a shared reference guarantees that the count is not zero.
        unsafe { bindings::get_device(&raw mut (*self.as_raw()).dev) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        let vdev: *mut bindings::virtio_device = obj.cast().as_ptr();
        // SAFETY: The caller gives up a reference that it owns.
        unsafe { bindings::put_device(&raw mut (*vdev).dev) };
    }
}

// SAFETY: A `Device` is reference-counted and can be released from any thread.
unsafe impl Send for Device {}

// SAFETY: What is reachable through `&Device` is either constant or protected by the virtio core.
unsafe impl Sync for Device {}

// SAFETY: As for `Device<Normal>`: the context is a marker of size zero.
unsafe impl Sync for Device<device::Bound> {}
