// SPDX-License-Identifier: GPL-2.0

//! RDMA devices and their registration.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    attributes::DeviceAttr,
    event::{
        DeviceEvent,
        Event,
        PortEvent, //
    },
    object::{
        CoreObject,
        Object, //
    },
    qp::QpStub,
    while_bound::Binding,
    Operations, //
};
use crate::{
    bindings,
    net,
    sync::workqueue::Workqueue, //
};
use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    device::{
        self,
        Bound,
        DeviceContext, //
    },
    devres::Devres,
    error::to_result,
    prelude::*,
    sync::{
        aref::ARef,
        new_mutex,
        Arc,
        Mutex, //
    },
    ModuleMetadata, //
};

/// The part of a driver that is common to all RDMA devices. `Self` is the driver's data of one
/// device.
///
/// Callbacks run while a device is registered or being registered, in process context unless stated
/// otherwise.
#[vtable]
pub trait Driver: Sized + Send + Sync + 'static {
    /// The module of the implementation, `crate::LocalModule`.
    type OwnerModule: ModuleMetadata;

    /// Pattern for names of devices: text with one `%d` and no other `%`.
    ///
    /// The core uses it as a format string, so any other pattern fails to compile.
    const NAME: &'static CStr;

    /// The initial node description, 63 bytes at most. Administrators can change it.
    const NODE_DESC: &'static CStr;

    /// `enum rdma_driver_id` of the user space ABI.
    const DRIVER_ID: u32;

    /// Version of the ABI between this driver and its user space counterpart.
    const UVERBS_ABI_VERSION: u32;

    /// The verbs of the device.
    const OPERATIONS: Operations<Self>;

    /// Limits and capabilities, which never change.
    fn query_device(device: &Device<Self>) -> DeviceAttr;
}

/// A registered device, as callbacks get it. Dereferences to the driver's data.
///
/// # Invariants
///
/// As long as references exist, the device is registered or being registered, and
/// [`Config::bound_device`] is bound to its driver. The ancestors of `bound_device`, among them the
/// parent and the DMA device, are then bound too: the driver of an ancestor removes `bound_device`
/// before the ancestor is unbound.
#[repr(transparent)]
pub struct Device<T: Driver>(Object<bindings::ib_device, T>);

impl<T: Driver> CoreObject<T> for bindings::ib_device {
    type Driver = T;
    type Own = DeviceParts;
}

/// The abstraction's part of a device.
pub struct DeviceParts {
    bound_device: ARef<device::Device>,
    binding: Binding,
    /// Runs calls of consumers' handlers: clients may write back memory through the device.
    work: Arc<Workqueue>,
    /// Stubs that take the place of QPs in the completions that the core polls on behalf of
    /// processes. Sorted by QPN, from 1 on. Empty if the core does not poll on behalf of processes.
    stubs: KVec<QpStub>,
}

impl<T: Driver> Device<T> {
    /// Borrows a device.
    ///
    /// # Safety
    ///
    /// `raw` is a device of `T` whose driver data is initialized, and that is not deregistered
    /// during `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *mut bindings::ib_device) -> &'a Self {
        // INVARIANT: `raw` is not deregistered during `'a`.
        // SAFETY: The driver data of `raw` is initialized. `Self` is transparent over the object.
        unsafe { &*raw.cast::<Self>() }
    }

    /// The C structure.
    pub fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.as_raw()
    }

    /// The device that performs DMA.
    pub fn dma_device(&self) -> &device::Device<Bound> {
        // SAFETY: `Registration::new` set the DMA device; by the type invariants it is bound as
        // long as `self` is borrowed.
        unsafe { device::Device::from_raw((*self.as_raw()).dma_device) }
    }

    /// The device that the driver is bound to: [`Config::bound_device`].
    pub fn bound_device(&self) -> &device::Device<Bound> {
        // SAFETY: By the type invariants the device is bound as long as `self` is borrowed.
        unsafe { self.0.own().bound_device.as_bound() }
    }

    /// A counted reference to the memory of the device.
    pub(super) fn memory(&self) -> ARef<device::Device> {
        // SAFETY: The device is allocated.
        unsafe { embedded(self.as_raw()) }.into()
    }

    /// The binding of the [bound device](Self::bound_device).
    pub(super) fn binding(&self) -> &Binding {
        &self.0.own().binding
    }

    /// The workqueue for calls of consumers' handlers.
    pub(super) fn work(&self) -> &Arc<Workqueue> {
        &self.0.own().work
    }

    /// The stub that takes the place of QP `number` in the completions that the core polls on
    /// behalf of a process. `None` if the core does not poll on behalf of processes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a number greater than [`Config::user_queues_in_kernel`].
    pub(super) fn completed_qp(&self, number: u32) -> Result<Option<&QpStub>> {
        let stubs = &self.0.own().stubs;
        if stubs.is_empty() {
            return Ok(None);
        }
        let index = usize::try_from(number)?.checked_sub(1).ok_or(EINVAL)?;
        stubs.get(index).ok_or(EINVAL).map(Some)
    }

    /// The network device of a port. The caller must drop the reference soon, since the removal of
    /// the network device waits until all references are dropped.
    pub fn netdev(&self, port: u32) -> Option<ARef<net::device::Device>> {
        // SAFETY: The device is registered or being registered, by the type invariants.
        let netdev = unsafe { bindings::ib_device_get_netdev(self.as_raw(), port) };
        // SAFETY: The core returns a valid device with a reference for the caller.
        NonNull::new(netdev.cast()).map(|netdev| unsafe { ARef::from_raw(netdev) })
    }

    /// Reports to clients that the state of the port of `netdev` changed. For a network device that
    /// is a member of a bond or team, the core leaves this report to drivers; for other network
    /// devices it reports the change itself.
    pub fn dispatch_port_state(&self, netdev: &net::device::Device) {
        // SAFETY: The device is registered by the type invariants, and the network device is valid.
        unsafe { bindings::ib_dispatch_port_state_event(self.as_raw(), netdev.as_raw()) };
    }

    /// Fills the GID table of a port with the addresses that its network device already has. The
    /// core follows later changes by itself. Takes the RTNL. Does nothing for a port that does not
    /// exist or has no network device.
    pub fn rescan_gids(&self, port: u32) {
        if self.netdev(port).is_none() {
            return;
        }
        // SAFETY: The device is registered by the type invariants. The port exists, since it has a
        // network device.
        unsafe { bindings::rdma_roce_rescan_port(self.as_raw(), port) };
    }

    /// Reports an event of a port to clients. Can be called in any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a port that does not exist: clients use the number as an index without a check.
    pub fn dispatch_port_event(&self, port: u32, event: PortEvent) -> Result {
        // SAFETY: The number of ports does not change.
        let ports = unsafe { (*self.as_raw()).phys_port_cnt };
        if !(1..=ports).contains(&port) {
            return Err(EINVAL);
        }
        let mut record = self.event(event.as_raw());
        record.element.port_num = port;
        // SAFETY: The device is registered by the type invariants, and has the port. The core
        // copies the record.
        unsafe { bindings::ib_dispatch_event(&record) };
        Ok(())
    }

    /// Reports an event of the device to clients. Can be called in any context.
    pub fn dispatch_event(&self, event: DeviceEvent) {
        // SAFETY: The device is registered by the type invariants. The core copies the record.
        unsafe { bindings::ib_dispatch_event(&self.event(event.as_raw())) };
    }

    fn event(&self, event: bindings::ib_event_type) -> bindings::ib_event {
        bindings::ib_event {
            device: self.as_raw(),
            event,
            ..Default::default()
        }
    }
}

impl<T: Driver> Deref for Device<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Whether the ports of a device may have network devices.
#[pin_data]
struct Netdevs {
    /// Unset for good before the core drops the ports' network devices for the last time.
    #[pin]
    are_allowed: Mutex<bool>,
}

/// A counted reference to a device, registered or not.
///
/// Lock order: the RTNL, then the lock of the network devices of the ports.
///
/// # Invariants
///
/// `memory` is embedded in the device `raw`, so `raw` is allocated as long as `self` exists.
pub struct DeviceRef<T: Driver> {
    raw: NonNull<bindings::ib_device>,
    _memory: ARef<device::Device>,
    netdevs: Arc<Netdevs>,
    _driver: PhantomData<T>,
}

impl<T: Driver> DeviceRef<T> {
    /// Takes a reference.
    ///
    /// # Safety
    ///
    /// `raw` is an allocated device of `T`. Its ports have network devices only while `netdevs`
    /// allows them.
    unsafe fn new(raw: NonNull<bindings::ib_device>, netdevs: Arc<Netdevs>) -> Self {
        // INVARIANT: The generic device is embedded in the device `raw`, and the drop of its last
        // reference frees `raw`.
        Self {
            raw,
            // SAFETY: `raw` is an allocated device.
            _memory: unsafe { embedded(raw.as_ptr()) }.into(),
            netdevs,
            _driver: PhantomData,
        }
    }

    /// Sets or clears the network device of a port. The device need not be registered: while the
    /// core moves it to another network namespace, it is not registered, but keeps its network
    /// devices.
    ///
    /// # Errors
    ///
    /// `ENODEV` once the registration has ended, `EINVAL` for a port that does not exist.
    pub fn set_netdev(&self, port: u32, netdev: Option<&net::device::Device>) -> Result {
        let netdev = netdev.map_or(core::ptr::null_mut(), net::device::Device::as_raw);
        // The lock is held during the call, so the core drops this network device too.
        let are_allowed = self.netdevs.are_allowed.lock();
        if !*are_allowed {
            return Err(ENODEV);
        }
        // SAFETY: By the type invariants the device is allocated; `netdev` is valid. The core takes
        // a reference to `netdev`. The lock serializes the calls.
        to_result(unsafe { bindings::ib_device_set_netdev(self.raw.as_ptr(), netdev, port) })
    }

    /// Like [`try_get`](Self::try_get), but first waits for the end of an unregistration, or of a
    /// move to another network namespace, after which all clients have the device again. May sleep,
    /// and must not be called where such an end is waited for.
    pub fn wait_and_get(&self) -> Option<Registered<'_, T>> {
        // SAFETY: By the type invariants the device is allocated. The core has initialized the
        // lock, which it holds during an unregistration and a move.
        unsafe {
            let lock = &raw mut (*self.raw.as_ptr()).unregistration_lock;
            bindings::mutex_lock(lock);
            bindings::mutex_unlock(lock);
        }
        self.try_get()
    }

    /// Keeps the device registered until the guard is dropped. Returns `None` if the device is not
    /// registered.
    ///
    /// # Examples
    ///
    /// ```
    /// use crate::rdma::{device::Registered, event::DeviceEvent, DeviceRef, Driver};
    ///
    /// /// Tells clients that the device has failed, unless it is gone already.
    /// fn fail<T: Driver>(device: &DeviceRef<T>) {
    ///     let device: Option<Registered<'_, T>> = device.try_get();
    ///     if let Some(device) = device {
    ///         device.dispatch_event(DeviceEvent::Fatal);
    ///     }
    /// }
    /// ```
    pub fn try_get(&self) -> Option<Registered<'_, T>> {
        // SAFETY: By the type invariants the device is allocated.
        if !unsafe { bindings::ib_device_try_get(self.raw.as_ptr()) } {
            return None;
        }
        // INVARIANT: The reference was just taken.
        Some(Registered {
            raw: self.raw,
            _device: PhantomData,
        })
    }
}

impl<T: Driver> Clone for DeviceRef<T> {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariants.
        unsafe { Self::new(self.raw, self.netdevs.clone()) }
    }
}

// SAFETY: Reference counts of devices may be taken and dropped by any thread; the driver's data is
// `Send` and `Sync`.
unsafe impl<T: Driver> Send for DeviceRef<T> {}

// SAFETY: See `Send`.
unsafe impl<T: Driver> Sync for DeviceRef<T> {}

/// A guard that keeps a device registered. Unregistration waits for all guards, so they are held
/// briefly.
///
/// # Invariants
///
/// Owns a registration reference of `raw`.
pub struct Registered<'a, T: Driver> {
    raw: NonNull<bindings::ib_device>,
    _device: PhantomData<&'a DeviceRef<T>>,
}

impl<T: Driver> Deref for Registered<'_, T> {
    type Target = Device<T>;

    fn deref(&self) -> &Device<T> {
        // SAFETY: By the type invariants the device stays registered as long as `self`.
        unsafe { Device::from_raw(self.raw.as_ptr()) }
    }
}

impl<T: Driver> Drop for Registered<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours.
        unsafe { bindings::ib_device_put(self.raw.as_ptr()) };
    }
}

/// The generic device that is embedded in the C structure. As long as references to the generic
/// device exist, the memory of both structures is not freed.
///
/// # Safety
///
/// `raw` is a device that is allocated during `'a`.
unsafe fn embedded<'a>(raw: *mut bindings::ib_device) -> &'a device::Device {
    // SAFETY: `raw` is allocated during `'a`; the core has initialized the generic device and holds
    // a reference.
    unsafe { device::Device::from_raw(embedded_device(raw)) }
}

/// The generic device in the C structure, which is a member of a union.
///
/// # Safety
///
/// `raw` is an allocated device.
unsafe fn embedded_device(raw: *mut bindings::ib_device) -> *mut bindings::device {
    // SAFETY: `raw` is an allocated device. All members of a union lie at its start.
    unsafe { (&raw mut (*raw).__bindgen_anon_1).cast() }
}

/// The C structure of a generic device; the abstraction is a transparent wrapper.
pub(super) fn as_raw_device<C: DeviceContext>(device: &device::Device<C>) -> *mut bindings::device {
    core::ptr::from_ref(device).cast_mut().cast()
}

/// Whether `ancestor` is `device`, or above it in the device model.
fn is_ancestor(ancestor: *mut bindings::device, device: &device::Device<Bound>) -> bool {
    let mut device = as_raw_device(device);
    while !device.is_null() && device != ancestor {
        // SAFETY: The first device is bound, so it is in the device model. Each device there holds
        // a reference to its parent, which does not change.
        device = unsafe { (*device).parent };
    }
    !device.is_null()
}

/// Properties of a device that are set before its registration.
pub struct Config<'a> {
    /// The device to which the driver is bound. Its unbinding ends the registration.
    pub bound_device: &'a device::Device<Bound>,
    /// Parent in the device model, shown as `device` by sysfs: `bound_device` or one of its
    /// ancestors, which stay bound at least as long.
    pub parent: &'a device::Device<Bound>,
    /// The device that performs DMA: `bound_device` or one of its ancestors.
    pub dma_device: &'a device::Device<Bound>,
    /// GUID of the node, in network byte order.
    pub node_guid: [u8; 8],
    /// Number of ports, counted from 1.
    pub ports: u32,
    /// Number of completion vectors.
    pub completion_vectors: u32,
    /// The largest QPN, if processes post, poll and arm through the core; else `None`.
    pub user_queues_in_kernel: Option<u32>,
    /// Whether this device has port counters.
    pub port_counters: bool,
    /// Whether QPs of this device can have counters, which requires `port_counters`.
    pub qp_counters: bool,
    /// Whether the core moderates CQs of kernel clients by their load. An administrator may change
    /// this. Needs [`with_cq_moderation`](super::Operations::with_cq_moderation).
    pub adaptive_moderation: bool,
}

/// Length of a node description in bytes, terminating zero included.
const NODE_DESC_MAX: usize = bindings::IB_DEVICE_NODE_DESC_MAX as usize;

/// The commands of user space that work on queues in the kernel.
const USER_QUEUE_COMMANDS: u64 = 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND
    | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_RECV
    | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POLL_CQ
    | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ;

/// Whether `name` is a format string that takes one integer as `%d`, and nothing else.
pub(super) const fn is_name_pattern(name: &CStr) -> bool {
    let name = name.to_bytes_with_nul();
    let (mut at, mut found) = (0, 0);
    while at < name.len() {
        if name[at] == b'%' {
            // The next byte exists, since the name ends with a zero.
            if name[at + 1] != b'd' {
                return false;
            }
            found += 1;
        }
        at += 1;
    }
    found == 1
}

/// Writes the node description, truncated or padded with zeroes.
///
/// # Safety
///
/// `device` is valid.
unsafe fn write_node_desc(device: *mut bindings::ib_device, text: &[u8]) {
    // SAFETY: `device` is valid.
    let start = unsafe { &raw mut (*device).node_desc };
    // Readers take no lock, so they may see parts of the old and of the new text. The last byte
    // stays zero.
    for index in 0..NODE_DESC_MAX - 1 {
        let byte = text.get(index).copied().unwrap_or(0);
        // SAFETY: The index is within the array.
        unsafe { start.cast::<u8>().add(index).write_volatile(byte) };
    }
}

/// Changes the node description, the only attribute of a device that can be changed.
///
/// # Safety
///
/// Called by the core as `modify_device`: `device` is registered, `change` valid.
pub(super) unsafe extern "C" fn modify(
    device: *mut bindings::ib_device,
    mask: c_int,
    change: *mut bindings::ib_device_modify,
) -> c_int {
    if mask != bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC as c_int {
        return EOPNOTSUPP.to_errno();
    }
    // SAFETY: `change` is valid, and `device` is registered.
    unsafe {
        let text = (&raw const (*change).node_desc).cast::<[u8; NODE_DESC_MAX]>();
        write_node_desc(device, &*text);
    }
    0
}

/// The registration of a device with the core, for clients and user space.
///
/// It ends when this is dropped or [`Config::bound_device`] is unbound, whichever is first, in this
/// order:
/// 1. New opens fail; kernel clients destroy their objects and stop using the device.
/// 2. User contexts are disassociated: their mappings are revoked, and their objects and contexts
///    destroyed. From then on their processes get `EIO`; they need not exit.
/// 3. GIDs are deleted, and the reference to the port's network device is dropped.
/// 4. The driver's data is dropped.
///
/// The memory of the device itself is freed with the last [`DeviceRef`].
///
/// # Examples
///
/// ```
/// use crate::rdma::{device::Config, Driver, Registration};
/// use kernel::{device, device::Bound};
///
/// /// Registers a device with one port, whose parent and DMA device is that of the driver.
/// fn register<T: Driver>(bound: &device::Device<Bound>, data: T) -> Result<Registration<T>> {
///     let config = Config {
///         bound_device: bound,
///         parent: bound,
///         dma_device: bound,
///         node_guid: [0, 0, 0, 0, 0, 0, 0, 1],
///         ports: 1,
///         completion_vectors: 1,
///         user_queues_in_kernel: None,
///         port_counters: false,
///         qp_counters: false,
///         adaptive_moderation: false,
///     };
///     Registration::new(&config, Ok(data))
/// }
/// ```
pub struct Registration<T: Driver> {
    _registered: Devres<Inner<T>>,
    device: DeviceRef<T>,
}

impl<T: Driver> Registration<T> {
    /// Allocates and registers a device.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the parent or the DMA device is neither the bound device nor one of its
    /// ancestors, or if there are no ports or no completion vectors; errors of the core.
    pub fn new(config: &Config<'_>, data: impl PinInit<T, Error>) -> Result<Self> {
        for device in [config.parent, config.dma_device] {
            if !is_ancestor(as_raw_device(device), config.bound_device) {
                return Err(EINVAL);
            }
        }
        // The core warns about these values, or divides by them.
        if matches!(config.ports, 0 | u32::MAX) || config.completion_vectors == 0 {
            return Err(EINVAL);
        }
        let allocated = Allocated::<T>::new(config, data)?;
        let device = allocated.reference();
        let registered = allocated.register(config.dma_device)?;
        Ok(Self {
            _registered: Devres::new(config.bound_device, registered)?,
            device,
        })
    }

    /// The registered device.
    pub fn device(&self) -> &DeviceRef<T> {
        &self.device
    }
}

/// A device that is allocated and initialized, but not registered.
///
/// # Invariants
///
/// Owns the allocation of `raw`, a device of `T` with its driver data initialized.
pub(super) struct Allocated<T: Driver> {
    raw: NonNull<bindings::ib_device>,
    netdevs: Arc<Netdevs>,
    _driver: PhantomData<T>,
}

impl<T: Driver> Allocated<T> {
    pub(super) fn new(config: &Config<'_>, data: impl PinInit<T, Error>) -> Result<Self> {
        let netdevs = Arc::pin_init(
            pin_init!(Netdevs {
                are_allowed <- new_mutex!(true, "rdma::netdevs"),
            }),
            GFP_KERNEL,
        )?;
        let mut stubs = KVec::new();
        for number in 1..=config.user_queues_in_kernel.unwrap_or(0) {
            stubs.push(QpStub::new(number)?, GFP_KERNEL)?;
        }
        let parts = DeviceParts {
            bound_device: config.bound_device.into(),
            // The binding is made before the registration, so that it ends after the registration.
            binding: Binding::new(config.bound_device)?,
            work: Workqueue::with_rescuer(c"rdma_events")?,
            stubs,
        };
        // SAFETY: The size is that of an object, which starts with the C structure. The initial
        // namespace always exists.
        let raw = unsafe {
            bindings::_ib_alloc_device(
                Object::<bindings::ib_device, T>::SIZE,
                &raw mut bindings::init_net,
            )
        };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: The allocation has the size of an object, and nothing else refers to it.
        if let Err(error) = unsafe { Object::<_, T>::init(raw.as_ptr(), data, parts) } {
            // SAFETY: The device was allocated above and not registered.
            unsafe { bindings::ib_dealloc_device(raw.as_ptr()) };
            return Err(error);
        }
        // INVARIANT: The device was just allocated and its driver data initialized.
        let this = Self {
            raw,
            netdevs,
            _driver: PhantomData,
        };
        let device = raw.as_ptr();
        // SAFETY: Nothing else refers to the device yet. The parent outlives the registration: the
        // registration ends before the bound device and its ancestors are unbound, and until then
        // `device_add()` holds a reference to the parent. The class devices of the core and its
        // clients (namespaces, uverbs, umad) have the same parent and are deleted with the
        // registration. Afterwards an open file or directory keeps only the memory of these class
        // devices, which does not refer to the parent.
        unsafe {
            bindings::ib_set_device_ops(device, T::OPERATIONS.as_raw());
            // Every callback that takes driver data checks it through `Udata` or refuses it.
            (*device).ops.set_uverbs_robust_udata(1);
            (*embedded_device(device)).parent = as_raw_device(config.parent);
            (*device).node_type = bindings::RDMA_NODE_IB_CA as u8;
            (*device).node_guid = u64::from_ne_bytes(config.node_guid);
            write_node_desc(device, T::NODE_DESC.to_bytes());
            (*device).phys_port_cnt = config.ports;
            (*device).num_comp_vectors = i32::try_from(config.completion_vectors)?;
            (*device).set_use_cq_dim(config.adaptive_moderation.into());
            if !config.port_counters {
                (*device).ops.alloc_hw_port_stats = None;
                (*device).ops.get_hw_stats = None;
                (*device).ops.process_mad = None;
            }
            // The core needs all callbacks of counters of QPs, or none. It adds their values to
            // those of the port.
            if !(config.port_counters && config.qp_counters) {
                (*device).ops.counter_init = None;
                (*device).ops.counter_alloc_stats = None;
                (*device).ops.counter_bind_qp = None;
                (*device).ops.counter_unbind_qp = None;
                (*device).ops.counter_dealloc = None;
                (*device).ops.counter_update_stats = None;
            }
            if config.user_queues_in_kernel.is_some() {
                (*device).uverbs_cmd_mask |= USER_QUEUE_COMMANDS;
            }
        }
        Ok(this)
    }

    /// The C structure.
    #[cfg(CONFIG_RUST_RDMA_KUNIT_TEST)]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_device {
        self.raw.as_ptr()
    }

    /// A reference to the device.
    pub(super) fn reference(&self) -> DeviceRef<T> {
        // SAFETY: By the type invariants. `drop` ends the permission for network devices before the
        // core drops them.
        unsafe { DeviceRef::new(self.raw, self.netdevs.clone()) }
    }

    fn register(self, dma_device: &device::Device<Bound>) -> Result<Inner<T>> {
        const {
            assert!(
                is_name_pattern(T::NAME),
                "the name needs one %d and no other %"
            )
        };
        // SAFETY: The device is set up and not registered. The name is a format string for one
        // integer, which the core passes.
        to_result(unsafe {
            bindings::ib_register_device(
                self.raw.as_ptr(),
                T::NAME.as_char_ptr(),
                as_raw_device(dma_device),
            )
        })?;
        // INVARIANT: The device was just registered.
        Ok(Inner { allocated: self })
    }
}

impl<T: Driver> Drop for Allocated<T> {
    fn drop(&mut self) {
        *self.netdevs.are_allowed.lock() = false;
        // SAFETY: The device is not registered, so the data is unused.
        unsafe { Object::<_, T>::drop_parts(self.raw.as_ptr()) };
        // SAFETY: By the type invariants the allocation is ours.
        unsafe { bindings::ib_dealloc_device(self.raw.as_ptr()) };
    }
}

// SAFETY: The device may be unregistered and freed by any thread.
unsafe impl<T: Driver> Send for Allocated<T> {}

/// A registered device.
///
/// # Invariants
///
/// The device is registered.
struct Inner<T: Driver> {
    allocated: Allocated<T>,
}

impl<T: Driver> Drop for Inner<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants. When this returns, all objects are destroyed and no
        // callback runs or will run.
        unsafe { bindings::ib_unregister_device(self.allocated.raw.as_ptr()) };
    }
}
