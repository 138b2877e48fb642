// SPDX-License-Identifier: GPL-2.0

//! Periodic work: a delayed work item that re-arms itself.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use super::workqueue::Workqueue;
use crate::bindings;
use core::pin::Pin;
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        msecs_to_jiffies,
        Jiffies,
        Msecs, //
    },
    types::Opaque, //
};

/// The work of one tick.
pub trait Tick: Send + Sync + 'static {
    /// Called in process context, by one task at a time. Returns whether it is to be called again.
    fn tick(&self) -> bool;
}

/// Calls a [`Tick`] with a pause between the calls. Dropping it ends the calls, and waits for a
/// running call.
///
/// # Examples
///
/// ```
/// use crate::sync::{
///     periodic::{Periodic, Tick},
///     workqueue::Workqueue,
/// };
///
/// struct Watch;
///
/// impl Tick for Watch {
///     fn tick(&self) -> bool {
///         // Once is enough.
///         false
///     }
/// }
///
/// let queue = Workqueue::with_rescuer(c"example")?;
/// let watch = KBox::pin_init(Periodic::new(queue, 5_000, Watch), GFP_KERNEL)?;
/// watch.hasten();
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// `work` is initialized with `Self::run`. It is queued on `queue` only, and is queued or runs only
/// between the initialization and the drop.
#[pin_data(PinnedDrop)]
pub struct Periodic<T: Tick> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    queue: Arc<Workqueue>,
    pause: Jiffies,
    tick: T,
}

// SAFETY: A work item can be queued and cancelled from any thread; `T` is `Send`.
unsafe impl<T: Tick> Send for Periodic<T> {}

// SAFETY: A work item can be queued and disabled by several threads at a time; `T` is `Sync`.
unsafe impl<T: Tick> Sync for Periodic<T> {}

impl<T: Tick> Periodic<T> {
    /// Starts the calls of `tick` on `queue`. The first call comes after a `pause`.
    pub fn new(queue: Arc<Workqueue>, pause: Msecs, tick: T) -> impl PinInit<Self> {
        pin_init!(Self {
            queue,
            pause: msecs_to_jiffies(pause),
            tick,
            // INVARIANT: `work` is initialized with `Self::run`.
            work <- Opaque::ffi_init(|slot: *mut bindings::delayed_work| {
                // SAFETY: `slot` is valid for writes and stays in place; names and keys are static.
                // The timer is that of a delayed work item, which only the workqueue starts.
                unsafe {
                    bindings::init_work_with_key(
                        &raw mut (*slot).work,
                        Some(Self::run),
                        false,
                        c"sync::Periodic".as_char_ptr(),
                        Pin::get_ref(kernel::static_lock_class!()).as_ptr(),
                    );
                    bindings::timer_init_key(
                        &raw mut (*slot).timer,
                        Some(bindings::delayed_work_timer_fn),
                        bindings::TIMER_IRQSAFE,
                        c"sync::Periodic::timer".as_char_ptr(),
                        Pin::get_ref(kernel::static_lock_class!()).as_ptr(),
                    );
                }
            }),
        })
        .pin_chain(|this| {
            this.queue();
            Ok(())
        })
    }

    /// Makes the next call immediately instead of after the pause. Can be called in any context.
    pub fn hasten(&self) {
        // SAFETY: By the type invariant the work item is initialized. The workqueue exists.
        unsafe {
            bindings::mod_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                self.queue.as_raw(),
                self.work.get(),
                0,
            )
        };
    }

    fn queue(&self) {
        // SAFETY: By the type invariant the work item is initialized, and this is called before the
        // drop only. The workqueue exists.
        unsafe {
            bindings::queue_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                self.queue.as_raw(),
                self.work.get(),
                self.pause as c_ulong,
            )
        };
    }

    /// # Safety
    ///
    /// To be called by the workqueue only, for the work item of a `Periodic<T>`.
    unsafe extern "C" fn run(work: *mut bindings::work_struct) {
        // SAFETY: The work item is the first part of a delayed work item, which is in a
        // `Periodic<T>`. The `Periodic<T>` stays valid, since its drop waits for this call.
        let this = unsafe {
            let work = kernel::container_of!(work, bindings::delayed_work, work);
            &*kernel::container_of!(Opaque::cast_from(work), Self, work)
        };
        if this.tick.tick() {
            this.queue();
        }
    }
}

#[pinned_drop]
impl<T: Tick> PinnedDrop for Periodic<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the work item is initialized.
        unsafe { bindings::disable_delayed_work_sync(self.work.get()) };
    }
}
