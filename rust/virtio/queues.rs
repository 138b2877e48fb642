// SPDX-License-Identifier: GPL-2.0

//! The virtqueues of a device: discovery, callbacks, teardown.
//!
//! The queues belong to the binding of device and driver: [`find_queues`](Device::find_queues) sets
//! them up in the probe, and if the driver does not take them down itself when it is unbound, the
//! bus does.

use super::{
    queue::AnyQueue,
    Device,
    Reset, //
};
use crate::bindings;
use core::ptr::{
    null_mut,
    NonNull, //
};
use kernel::{
    device::Core,
    error::to_result,
    prelude::*,
    str::CString,
    sync::{
        new_mutex,
        Arc,
        ArcBorrow, //
    },
};

/// What serves a queue.
pub trait Handler: Send + Sync {
    /// The [`Queue`](super::Queue) that is served.
    fn queue(&self) -> &dyn AnyQueue;

    /// Whether [`used`](Self::used) is to be called. A queue without interrupts takes no vector.
    fn has_interrupts(&self) -> bool {
        true
    }

    /// Called in interrupt context when the device used buffers.
    fn used(self: ArcBorrow<'_, Self>);
}

/// The queues of a device, in the order of their numbers.
///
/// The device's `priv` points to it from before its queues are found until they are gone.
pub(super) struct Queues(KVec<(CString, Arc<dyn Handler>)>);

impl Device<Core<'_>> {
    /// Finds the queues from number 0 on, and attaches each to the queue of its handler. The name
    /// appears in interrupt statistics.
    ///
    /// The handlers are not called before [`ready`](Self::ready).
    ///
    /// # Errors
    ///
    /// [`EBUSY`] if they were found before, and those of the transport: [`ENOENT`] if there are
    /// fewer queues.
    pub fn find_queues(&self, queues: KVec<(CString, Arc<dyn Handler>)>) -> Result {
        // SAFETY: The device is valid; `priv` is the driver's and changes in this context only.
        let slot = unsafe { &mut (*self.as_raw()).priv_ };
        if !slot.is_null() {
            return Err(EBUSY);
        }
        let count = queues.len();
        let mut found = KVec::from_elem(null_mut(), count, GFP_KERNEL)?;
        let mut info = KVec::with_capacity(count, GFP_KERNEL)?;
        for (name, handler) in &queues {
            let callback: unsafe extern "C" fn(_) = used_callback;
            info.push(
                bindings::virtqueue_info {
                    name: name.as_char_ptr(),
                    callback: handler.has_interrupts().then_some(callback),
                    ctx: false,
                },
                GFP_KERNEL,
            )?;
        }
        let resets = Arc::pin_init(new_mutex!((), "virtio::Queues::resets"), GFP_KERNEL)?;
        let queues = KBox::new(Queues(queues), GFP_KERNEL)?;
        *slot = KBox::into_raw(queues).cast();
        // SAFETY: The device is valid; both arrays have the stated length; every queue has a name,
        // and names and handlers stay in place until the queues are deleted.
        let result = to_result(unsafe {
            bindings::virtio_find_vqs(
                self.as_raw(),
                u32::try_from(count)?,
                found.as_mut_ptr(),
                info.as_mut_ptr(),
                null_mut(),
            )
        });
        let queues: *mut Queues = slot.cast();
        if let Err(error) = result {
            *slot = null_mut();
            // SAFETY: From `into_raw()` above; a transport that fails has deleted its queues.
            drop(unsafe { KBox::from_raw(queues) });
            return Err(error);
        }
        // SAFETY: From `into_raw()` above, and shared from here on.
        let queues = unsafe { &*queues };
        for ((_, handler), vq) in queues.0.iter().zip(&found) {
            // Every queue has a name, so the transport left none out.
            let vq = NonNull::new(*vq).ok_or(ENOENT)?;
            // SAFETY: The queue is new and this device's; `remove_queues()` detaches it a grace
            // period before it deletes it, and is called at the latest when the device is unbound.
            unsafe { handler.queue().attach(self, &resets, vq) };
        }
        Ok(())
    }

    /// Resets the device and takes its queues down, if that has not been done yet.
    ///
    /// When it returns, no handler runs any more. Buffers that the device held are freed, or leak
    /// if it is unreachable.
    pub fn remove_queues(&self) -> Reset {
        let reset = self.reset();
        // SAFETY: The device is valid; `priv` is the driver's and changes in this context only.
        let slot = unsafe { &mut (*self.as_raw()).priv_ };
        let queues: *mut Queues = slot.cast();
        if queues.is_null() {
            return reset;
        }
        // SAFETY: `priv` is null or points to the queues.
        let shared = unsafe { &*queues };
        let mut left = 0;
        for (_, handler) in &shared.0 {
            // SAFETY: If the reset is done, the device has let go of all memory.
            left += unsafe { handler.queue().detach(reset) };
        }
        if left != 0 && reset == Reset::Unreachable {
            dev_warn!(
                self.as_ref(),
                "device does not answer: {} buffers stay allocated for good\n",
                left
            );
        }
        // Notifications that are under way.
        //
        // SAFETY: This context may sleep.
        unsafe { bindings::synchronize_rcu() };
        if let Some(del_vqs) = self.ops().del_vqs {
            // SAFETY: The device is valid, its queues have no user any more. This waits for
            // interrupts under way.
            unsafe { del_vqs(self.as_raw()) };
        }
        *slot = null_mut();
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
/// To be called by a transport only, with a queue that [`Device::find_queues`] found.
unsafe extern "C" fn used_callback(vq: *mut bindings::virtqueue) {
    // SAFETY: The transport passes a valid queue of a valid device.
    let (index, queues) = unsafe { ((*vq).index, (*(*vq).vdev).priv_) };
    // SAFETY: `priv` was set before the queue was found and points to the queues until it is
    // deleted.
    let queues = unsafe { &*queues.cast::<Queues>() };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if let Some((_, handler)) = queues.0.get(index) {
        handler.as_arc_borrow().used();
    }
}
