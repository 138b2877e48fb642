// SPDX-License-Identifier: GPL-2.0

//! The virtqueues of a device: discovery, callbacks, teardown.
//!
//! The queues belong to the binding of device and driver: [`find_vqs`](Device::find_vqs) sets them
//! up in the probe, and if the driver does not remove them itself when it is unbound, the bus does.

use super::{
    virtqueue::AnyVirtqueue,
    Device,
    Reset, //
    Virtqueue,
};
use crate::bindings;
use core::ptr::{
    self,
    null_mut,
    NonNull, //
};
use kernel::{
    device::{
        Bound,
        Core,
        DeviceContext, //
    },
    error::to_result,
    prelude::*,
    str::CString,
    sync::{
        barrier::{
            smp_mb,
            Write, //
        },
        new_mutex,
        Arc,
        ArcBorrow, //
    },
};

/// Interrupt handler of a queue.
///
/// Each queue has its own handler, since queues of one device may have contexts of different types.
///
/// # Examples
///
/// ```
/// use crate::virtio::{self, Handler, Virtqueue, VirtqueueInfo};
/// use kernel::{
///     device::{Bound, Core},
///     str::CString,
///     sync::{Arc, ArcBorrow},
/// };
///
/// struct Events(Arc<Virtqueue<()>>);
///
/// impl Handler for Events {
///     fn vq_callback(self: ArcBorrow<'_, Self>, dev: &virtio::Device<Bound>) {
///         while let Some((buffer, written)) = self.0.get_buf() {
///             dev_info!(dev.as_ref(), "{} bytes\n", written);
///             // The device may use the buffer again.
///             let _ = self.0.add_or_keep(buffer);
///         }
///         self.0.kick();
///     }
/// }
///
/// fn start(dev: &virtio::Device<Core<'_>>) -> Result<Arc<Events>> {
///     let queue = Arc::pin_init(Virtqueue::new(), GFP_KERNEL)?;
///     let events = Arc::new(Events(queue), GFP_KERNEL)?;
///     let name = CString::try_from(c"events")?;
///     let mut queues = KVec::new();
///     let info = VirtqueueInfo::new(name, &events.0, Some(events.clone()));
///     queues.push(info, GFP_KERNEL)?;
///     dev.find_vqs(queues)?;
///     dev.ready()?;
///     Ok(events)
/// }
/// ```
pub trait Handler: Send + Sync {
    /// Called in interrupt context when the device has used buffers, which
    /// [`get_buf`](Virtqueue::get_buf) takes out. May also be called without used buffers.
    fn vq_callback(self: ArcBorrow<'_, Self>, dev: &Device<Bound>);
}

/// A queue to be found by [`find_vqs`](Device::find_vqs).
///
/// The device owns references to queue and handler for as long as it has virtqueues, so neither
/// depends on what the driver does with its own references.
pub struct VirtqueueInfo {
    name: CString,
    queue: Arc<dyn AnyVirtqueue>,
    handler: Option<Arc<dyn Handler>>,
    cpu: Option<u32>,
}

impl VirtqueueInfo {
    /// A queue whose `name` appears in interrupt statistics. A queue without handler takes no
    /// interrupt vector.
    pub fn new<C: Send + 'static>(
        name: CString,
        queue: &Arc<Virtqueue<C>>,
        handler: Option<Arc<dyn Handler>>,
    ) -> Self {
        Self {
            name,
            queue: queue.clone(),
            handler,
            cpu: None,
        }
    }

    /// Sends the queue's interrupts to one CPU by default. The list of online CPUs begins with the
    /// CPUs near the device; `index`, modulo the number of online CPUs, selects one of them. The
    /// administrator may choose another CPU. Ignored where queues share a vector, or the transport
    /// knows no affinities.
    ///
    /// # Examples
    ///
    /// ```
    /// use crate::virtio::{Handler, Virtqueue, VirtqueueInfo};
    /// use kernel::{str::CString, sync::Arc};
    ///
    /// /// One queue for each CPU.
    /// fn info<H: Handler + 'static>(
    ///     index: u32,
    ///     queue: &Arc<Virtqueue<()>>,
    ///     handler: Arc<H>,
    /// ) -> Result<VirtqueueInfo> {
    ///     let name = CString::try_from_fmt(fmt!("queue.{index}"))?;
    ///     Ok(VirtqueueInfo::new(name, queue, Some(handler)).with_affinity(index))
    /// }
    /// ```
    pub fn with_affinity(self, index: u32) -> Self {
        Self {
            cpu: Some(index),
            ..self
        }
    }
}

/// The queues of a device, in the order of their numbers.
///
/// The device's `priv` points to this from before its queues are found until they are deleted.
/// While the device is bound and has no queues, `priv` is null.
///
/// # Invariants
///
/// Every queue is reserved for the device.
pub(super) struct Virtqueues(KVec<VirtqueueInfo>);

impl Virtqueues {
    /// Reserves all of `queues`, or none.
    fn reserve(device: &Device<Core<'_>>, queues: KVec<VirtqueueInfo>) -> Result<Self> {
        let resets = Arc::pin_init(new_mutex!((), "virtio::Virtqueues::resets"), GFP_KERNEL)?;
        for (index, info) in queues.iter().enumerate() {
            // SAFETY: The device is bound. `remove_queues()` releases the queue, and the bus calls
            // that function before the device is unbound.
            if let Err(error) = unsafe { info.queue.reserve(device, &resets) } {
                for info in &queues[..index] {
                    // SAFETY: The queue was reserved above, and the device never had a buffer of
                    // it.
                    let _ = unsafe { info.queue.release(Reset::Done) };
                }
                return Err(error);
            }
        }
        // INVARIANT: Done above.
        Ok(Self(queues))
    }

    /// Releases all queues and returns how many buffers the device still held.
    ///
    /// # Safety
    ///
    /// With [`Reset::Done`], the device uses no buffer of the queues any more. This is called once.
    unsafe fn release(&self, reset: Reset) -> usize {
        let mut left = 0;
        for info in &self.0 {
            // SAFETY: By the type invariant and this function's requirements.
            left += unsafe { info.queue.release(reset) };
        }
        left
    }
}

impl<Ctx: DeviceContext> Device<Ctx> {
    /// The `priv` member, which belongs to the driver.
    ///
    /// It is accessed by volatile operations and never borrowed: an interrupt may read it at any
    /// time.
    fn slot(&self) -> *mut *mut Virtqueues {
        // SAFETY: By the type invariant the device is valid.
        unsafe { &raw mut (*self.as_raw()).priv_ }.cast()
    }
}

impl Device<Bound> {
    /// Checks all queues that were found, and repeats failed additions of buffers. Returns whether
    /// all queues work.
    ///
    /// # Safety
    ///
    /// One of the queues is reserved and stays so until this returns.
    pub(super) unsafe fn check_queues(&self) -> bool {
        // SAFETY: The device is valid.
        let queues = unsafe { self.slot().read_volatile() };
        // SAFETY: If not null, `priv` points to a complete `Virtqueues`, by the barrier in
        // `find_vqs()`. The `Virtqueues` is freed only after all queues were released, and one
        // queue is not released until this returns.
        unsafe { queues.as_ref() }.is_none_or(|queues| {
            queues
                .0
                .iter()
                .fold(true, |all, info| info.queue.check() && all)
        })
    }
}

impl Device<Core<'_>> {
    /// Clears `priv`. Called when the queues are deleted, and when the device is bound: a previous
    /// driver may have left a pointer there.
    pub(super) fn clear_priv(&self) {
        // SAFETY: The device is valid; `priv` changes in this context only.
        unsafe { self.slot().write_volatile(null_mut()) };
    }

    /// Whether the device has queues: they were found and not removed.
    pub(super) fn has_queues(&self) -> bool {
        // SAFETY: The device is valid; `priv` changes in this context only.
        !unsafe { self.slot().read_volatile() }.is_null()
    }

    /// Whether one of the queues is resetting the device.
    pub(super) fn is_resetting(&self) -> bool {
        // SAFETY: The device is valid; `priv` changes in this context only. If not null, it points
        // to the queues.
        unsafe { self.slot().read_volatile().as_ref() }
            .is_some_and(|queues| queues.0.iter().any(|info| info.queue.is_resetting()))
    }

    /// Finds the queues from number 0 on, and attaches each to its [`Virtqueue`].
    ///
    /// The handlers are not called before [`ready`](Self::ready).
    ///
    /// # Errors
    ///
    /// [`EBUSY`] if the device has queues already, or if one of `queues` belongs to a device.
    /// Errors of the transport, such as [`ENOENT`] if the device has fewer queues.
    pub fn find_vqs(&self, queues: KVec<VirtqueueInfo>) -> Result {
        if self.has_queues() {
            return Err(EBUSY);
        }
        let count = u32::try_from(queues.len())?;
        let mut found = KVec::from_elem(null_mut(), queues.len(), GFP_KERNEL)?;
        let mut info = KVec::with_capacity(queues.len(), GFP_KERNEL)?;
        for VirtqueueInfo { name, handler, .. } in &queues {
            let callback: unsafe extern "C" fn(_) = vq_callback;
            info.push(
                bindings::virtqueue_info {
                    name: name.as_char_ptr(),
                    callback: handler.as_ref().map(|_| callback),
                    ctx: false,
                },
                GFP_KERNEL,
            )?;
        }
        let handlers = info.iter().filter(|info| info.callback.is_some()).count();
        let handlers = u32::try_from(handlers)?;
        let place = KBox::new_uninit(GFP_KERNEL)?;
        let queues = KBox::into_raw(KBox::write(place, Virtqueues::reserve(self, queues)?));
        // A reader that sees the pointer also sees the data that it points to.
        smp_mb(Write);
        // SAFETY: The device is valid; `priv` changes in this context only.
        unsafe { self.slot().write_volatile(queues) };
        // SAFETY: The device is valid; both arrays have the stated length; every queue has a name,
        // and names and handlers stay in place until the queues are deleted.
        let result = to_result(unsafe {
            bindings::virtio_find_vqs(
                self.as_raw(),
                count,
                found.as_mut_ptr(),
                info.as_mut_ptr(),
                null_mut(),
            )
        });
        if let Err(error) = result {
            self.clear_priv();
            // SAFETY: From `into_raw()` above; a transport that fails has deleted its queues.
            let queues = unsafe { KBox::from_raw(queues) };
            // SAFETY: No queue was attached, so the device never had a buffer.
            let _ = unsafe { queues.release(Reset::Done) };
            return Err(error);
        }
        // SAFETY: From `into_raw()` above, and shared from here on.
        let queues = unsafe { &*queues };
        let has_own_vectors = self.has_vector(handlers);
        for (info, vq) in queues.0.iter().zip(&found) {
            // Every queue has a name, so the transport left none out.
            let vq = NonNull::new(*vq).ok_or(ENOENT)?;
            // SAFETY: The queue is reserved, and new; `vq` is this device's. `remove_queues()`
            // releases the queue a grace period before it deletes `vq`.
            unsafe { info.queue.attach(vq) };
            if let (Some(index), Some(_), true) = (info.cpu, &info.handler, has_own_vectors) {
                self.set_affinity(vq, index);
            }
        }
        Ok(())
    }

    /// Whether the device has an interrupt vector with this number. Number 0 is for changes of the
    /// configuration. If each queue with a handler has a vector of its own, the number of these
    /// queues is the last vector. Queues that share a vector have vector 1.
    ///
    /// The PCI transport does not tell whether queues share a vector. It also forgets to remove the
    /// affinity of a shared vector when it frees the vector, of which the kernel then warns.
    fn has_vector(&self, number: u32) -> bool {
        let Some(function) = self.pci_function() else {
            // Other transports that know affinities have an interrupt for each queue.
            return true;
        };
        // SAFETY: The abstraction is transparent over the C structure, and valid.
        unsafe { bindings::pci_irq_vector(ptr::from_ref(function).cast_mut().cast(), number) > 0 }
    }

    /// Sends the interrupts of `vq`, a queue of the device, to the online CPU number `index`. The
    /// queue shares its vector with no other queue.
    fn set_affinity(&self, vq: NonNull<bindings::virtqueue>, index: u32) {
        // SAFETY: The device is valid. `cpumask_of()` has a mask for each CPU, and
        // `cpumask_local_spread()` returns an online CPU. The queue exists until `remove_queues()`,
        // which needs the same context. This context may sleep.
        let result = to_result(unsafe {
            let node = bindings::dev_to_node(&raw mut (*self.as_raw()).dev);
            let cpu = bindings::cpumask_local_spread(index, node);
            bindings::virtqueue_set_affinity(vq.as_ptr(), bindings::cpumask_of(cpu))
        });
        // The affinity is only a hint: the queue works without it.
        if let Err(error) = result {
            dev_dbg!(
                self.as_ref(),
                "can't set the affinity of the queue for CPU {}: {:?}\n",
                index,
                error
            );
        }
    }

    /// Resets the device and removes its queues, if it has any.
    ///
    /// When this returns, no handler runs any more. Buffers that the device held are freed, or
    /// leaked if the device is unreachable.
    pub fn remove_queues(&self) -> Reset {
        let reset = self.reset();
        // SAFETY: The device is valid; `priv` changes in this context only.
        let queues = unsafe { self.slot().read_volatile() };
        if queues.is_null() {
            return reset;
        }
        // SAFETY: `priv` is null or points to the queues. After a reset the device uses no memory.
        // `priv` is cleared below, so this is called once.
        let left = unsafe { (*queues).release(reset) };
        if left != 0 && reset == Reset::Unreachable {
            dev_warn!(
                self.as_ref(),
                "the device does not answer its reset: {} buffers are leaked\n",
                left
            );
        }
        // Waits for running notifications.
        //
        // SAFETY: This context may sleep.
        unsafe { bindings::synchronize_rcu() };
        if let Some(del_vqs) = self.ops().del_vqs {
            // SAFETY: The device is valid, its queues have no user any more. This waits for
            // interrupts under way.
            unsafe { del_vqs(self.as_raw()) };
        }
        self.clear_priv();
        // SAFETY: From `into_raw()` when the queues were found; there are no callbacks without
        // queues.
        drop(unsafe { KBox::from_raw(queues) });
        reset
    }
}

/// Passes an interrupt on to the queue's handler.
///
/// # Safety
///
/// To be called by a transport only, with a queue that [`Device::find_vqs`] found.
unsafe extern "C" fn vq_callback(vq: *mut bindings::virtqueue) {
    // SAFETY: The transport passes a valid queue of a valid device.
    let (index, vdev) = unsafe { ((*vq).index, (*vq).vdev) };
    // SAFETY: As above. The device is bound: `remove_queues()` waits for callbacks under way, and
    // is called before the device is unbound.
    let dev = unsafe { &*vdev.cast::<Device<Bound>>() };
    // SAFETY: `priv` was set before the queue was found, and points to the queues until the queue
    // is deleted.
    let queues = unsafe { &*dev.slot().read_volatile() };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if let Some(handler) = queues.0.get(index).and_then(|info| info.handler.as_ref()) {
        handler.as_arc_borrow().vq_callback(dev);
    }
}
