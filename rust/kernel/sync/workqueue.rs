// SPDX-License-Identifier: GPL-2.0

//! Workqueues.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A workqueue whose work items run on any CPU.
///
/// A work item that may block for long needs a workqueue of its own, since there is one rescuer for
/// each workqueue.
///
/// # Examples
///
/// ```
/// use crate::sync::workqueue::Workqueue;
///
/// let queue = Workqueue::with_rescuer(c"example")?;
/// # drop(queue);
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// The pointer is a workqueue that `self` owns.
pub struct Workqueue(NonNull<bindings::workqueue_struct>);

impl Workqueue {
    /// Allocates a workqueue whose work items may wait for those of any other workqueue.
    pub fn new(name: &CStr) -> Result<Arc<Self>> {
        Self::with_flags(name, 0)
    }

    /// Allocates a workqueue with a rescuer thread (`WQ_MEM_RECLAIM`): its work items run even if
    /// no memory is left for a new worker. Memory may be reclaimed through a device, by swapping or
    /// by writing back dirty pages, so work for which users of the device wait needs such a
    /// workqueue. Its work items must not wait for those of a workqueue without a rescuer.
    pub fn with_rescuer(name: &CStr) -> Result<Arc<Self>> {
        Self::with_flags(name, bindings::wq_flags_WQ_MEM_RECLAIM)
    }

    fn with_flags(name: &CStr, flags: bindings::wq_flags) -> Result<Arc<Self>> {
        // SAFETY: The format takes one string, which is terminated by a zero and copied.
        let raw = unsafe {
            bindings::alloc_workqueue_noprof(
                c"%s".as_char_ptr(),
                bindings::wq_flags_WQ_UNBOUND | flags,
                0,
                name.as_char_ptr(),
            )
        };
        // INVARIANT: The workqueue is new.
        let this = Self(NonNull::new(raw).ok_or(ENOMEM)?);
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// The C structure.
    pub(crate) fn as_raw(&self) -> *mut bindings::workqueue_struct {
        self.0.as_ptr()
    }
}

impl Drop for Workqueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. This waits for work items that are still queued.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

// SAFETY: A workqueue may be used and destroyed by any thread.
unsafe impl Send for Workqueue {}

// SAFETY: See `Send`.
unsafe impl Sync for Workqueue {}
