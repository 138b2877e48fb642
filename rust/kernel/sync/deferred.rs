// SPDX-License-Identifier: GPL-2.0

//! Deferred calls: work items that can be disabled for good.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use super::workqueue::Workqueue;
use crate::bindings;
use core::{
    mem::offset_of,
    ops::Deref,
    pin::Pin, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        LockClassKey, //
    },
    types::Opaque, //
};

/// The function of a deferred call.
pub trait Call: Send + Sync + 'static {
    /// Called in process context, by one thread at a time.
    fn call(&self);
}

/// Data, and the work item that runs [`Call::call`] on the data. Dropping it disables the call, so
/// the module of the call may be unloaded afterwards.
///
/// # Examples
///
/// ```
/// use crate::sync::{
///     deferred::{Call, Deferred, Handle},
///     workqueue::Workqueue,
/// };
///
/// struct Message(&'static str);
///
/// impl Call for Message {
///     fn call(&self) {
///         pr_info!("{}\n", self.0);
///     }
/// }
///
/// let queue = Workqueue::with_rescuer(c"example")?;
/// let key = kernel::static_lock_class!();
/// let message = Deferred::new(&queue, Message("deferred"), c"message", key)?;
/// let handle: Handle<Message> = message.handle();
/// handle.queue();
/// drop(message);
/// // Has no effect any more.
/// handle.queue();
/// # Ok::<(), Error>(())
/// ```
pub struct Deferred<T: Call>(Handle<T>);

/// A handle to a [`Deferred`], which queues the call. It may outlive the [`Deferred`].
pub struct Handle<T: Call>(Arc<Inner<T>>);

/// # Invariants
///
/// `work` is queued on `queue` only. While the work item is queued, it owns a reference of the
/// [`Arc`] that contains `self`. It gives the reference up when it runs or is cancelled.
#[repr(C)]
#[pin_data]
struct Inner<T: Call> {
    #[pin]
    work: Opaque<bindings::work_struct>,
    queue: Arc<Workqueue>,
    #[pin]
    data: T,
}

impl<T: Call> Deferred<T> {
    /// A call that is not queued. It runs on `queue`. `name` and `key` are those of its lock class:
    /// one call may wait for the end of another one, but not for its own.
    pub fn new(
        queue: &Arc<Workqueue>,
        data: impl PinInit<T>,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<Self> {
        let inner = pin_init!(Inner {
            work <- Opaque::ffi_init(|work: *mut bindings::work_struct| {
                // SAFETY: `work` is valid for writes and stays where it is; name and key are
                // static.
                unsafe {
                    bindings::init_work_with_key(
                        work,
                        Some(Inner::<T>::run),
                        false,
                        name.as_char_ptr(),
                        Pin::get_ref(key).as_ptr(),
                    );
                }
            }),
            queue: queue.clone(),
            data <- data,
        });
        Ok(Self(Handle(Arc::pin_init(inner, GFP_KERNEL)?)))
    }

    /// A handle to this call.
    pub fn handle(&self) -> Handle<T> {
        self.0.clone()
    }

    /// Cancels a queued call, waits for a running call, and prevents later calls. Called in process
    /// context, and not by the call itself.
    pub fn disable(&self) {
        let inner = &self.0 .0;
        // SAFETY: The work item is initialized.
        if unsafe { bindings::disable_work_sync(inner.work.get()) } {
            // SAFETY: The work item was queued and will not run, so its reference is ours.
            drop(unsafe { Arc::from_raw(Arc::as_ptr(inner)) });
        }
    }
}

impl<T: Call> Drop for Deferred<T> {
    fn drop(&mut self) {
        self.disable();
    }
}

impl<T: Call> Deref for Deferred<T> {
    type Target = Handle<T>;

    fn deref(&self) -> &Handle<T> {
        &self.0
    }
}

impl<T: Call> Handle<T> {
    /// Queues the call, if it is not queued. Can be called in any context. Does nothing after
    /// [`Deferred::disable`].
    pub fn queue(&self) {
        let owned = Arc::into_raw(self.0.clone());
        // SAFETY: The work item is initialized, and valid as long as it owns a reference, and so is
        // the workqueue.
        let queued = unsafe {
            bindings::queue_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                self.0.queue.as_raw(),
                (*owned).work.get(),
            )
        };
        if !queued {
            // SAFETY: The work item did not take this reference: it was queued already and owns
            // another reference, or it is disabled.
            drop(unsafe { Arc::from_raw(owned) });
        }
    }
}

impl<T: Call> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Call> Deref for Handle<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.data
    }
}

impl<T: Call> Inner<T> {
    /// # Safety
    ///
    /// Called by the workqueue for a work item that [`Handle::queue`] queued.
    unsafe extern "C" fn run(work: *mut bindings::work_struct) {
        const { assert!(offset_of!(Self, work) == 0) };
        // SAFETY: By the type invariants the work item owned a reference, which is now ours.
        let this = unsafe { Arc::from_raw(work.cast_const().cast::<Self>()) };
        this.data.call();
    }
}

// SAFETY: Work items may be queued and cancelled by any thread; the data is `Send` and `Sync`.
unsafe impl<T: Call> Send for Inner<T> {}

// SAFETY: See `Send`.
unsafe impl<T: Call> Sync for Inner<T> {}
