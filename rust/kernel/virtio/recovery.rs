// SPDX-License-Identifier: GPL-2.0

//! Recovery of devices that failed: a reset, after which the driver probes the device again.
//!
//! Lock order: the lock of the parent, then that of the virtio device, then
//! `Recoveries::entries`.
//!
//! C header: [`include/linux/virtio.h`](srctree/include/linux/virtio.h)

use super::{
    adapter,
    device::Status,
    Device, //
};
use crate::{
    bindings,
    sync::{
        deferred::{
            Call,
            Deferred,
            Handle, //
        },
        workqueue::Workqueue, //
    },
};
use core::{
    marker::PhantomData,
    ptr, //
};
use kernel::{
    device,
    error::to_result,
    prelude::*,
    sync::{
        aref::ARef,
        new_mutex,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
};

/// A device that has worked for so many seconds has recovered.
const STABLE_S: i64 = 10;

/// The pause between two recoveries of a device that fails again and again is a second at first,
/// and is doubled so often.
const MAX_DOUBLINGS: u32 = 6;

/// Number of attempts of a recovery. A device may fail again while it is probed.
const ATTEMPTS: u32 = 5;

/// Pause in ms after the first attempt. Each later pause is twice as long as the one before.
const RETRY_MS: i64 = 100;

/// A device that can be recovered.
struct Entry {
    device: ARef<Device>,
    /// The device of the transport.
    parent: ARef<device::Device>,
    /// Number of the last [`Recovery`] of the device.
    generation: u64,
    /// Whether that value exists: the driver uses the device.
    is_used: bool,
    is_requested: bool,
    is_running: bool,
    /// Time from which the device may be recovered; `None` if no recovery was requested.
    due: Option<Instant<Monotonic>>,
    /// The end of the last recovery.
    recovered: Option<Instant<Monotonic>>,
    /// Number of recoveries after which the device did not work for [`STABLE_S`].
    in_a_row: u32,
}

impl Entry {
    fn is_of(&self, device: &Device) -> bool {
        ptr::eq(&raw const *self.device, device)
    }

    /// Requests a recovery of a device that failed, or returns the time to wait before that.
    fn request(&mut self) -> Result<(), Delta> {
        let now = Instant::now();
        let due = *self.due.get_or_insert_with(|| {
            let worked = self.recovered.map(|end| now - end);
            if worked.is_none_or(|worked| worked >= Delta::from_secs(STABLE_S)) {
                self.in_a_row = 0;
            }
            now + pause(self.in_a_row)
        });
        let left = due - now;
        if left > Delta::ZERO {
            return Err(left);
        }
        self.is_requested = true;
        Ok(())
    }

    /// Whether the driver uses the device by this [`Recovery`].
    fn is_used_by(&self, generation: u64) -> bool {
        self.is_used && self.generation == generation
    }

    /// The driver begins to use the device. Returns the number of its [`Recovery`].
    fn begin_use(&mut self) -> u64 {
        self.generation += 1;
        self.is_used = true;
        self.is_requested = false;
        self.due = None;
        self.generation
    }

    fn end_use(&mut self) {
        self.is_used = false;
        self.is_requested = false;
    }

    /// Begins the recovery. Returns the number of the [`Recovery`] that requested it.
    fn begin(&mut self) -> u64 {
        self.is_requested = false;
        self.is_running = true;
        self.generation
    }

    /// Ends the recovery.
    fn end(&mut self) {
        self.is_running = false;
        self.recovered = Some(Instant::now());
        self.in_a_row = self.in_a_row.saturating_add(1);
    }
}

/// The pause before a recovery that follows `in_a_row` recoveries after which the device failed.
pub(super) fn pause(in_a_row: u32) -> Delta {
    let seconds = match in_a_row {
        0 => 0,
        _ => 1 << (in_a_row - 1).min(MAX_DOUBLINGS),
    };
    Delta::from_secs(seconds)
}

/// A recovery that has begun.
struct Begun {
    device: ARef<Device>,
    parent: ARef<device::Device>,
    /// Number of the [`Recovery`] that requested it.
    generation: u64,
}

/// The devices of a driver that can be recovered.
#[pin_data]
pub(super) struct Recoveries {
    #[pin]
    entries: Mutex<KVec<Entry>>,
}

impl Recoveries {
    /// The recoveries of a driver, which run until the value is dropped.
    pub(super) fn new() -> Result<Deferred<Self>> {
        // A probe and an unbinding wait for work items of other workqueues, so there is no rescuer.
        let queue = Workqueue::new(c"virtio_recovery")?;
        let recoveries = pin_init!(Self {
            entries <- new_mutex!(KVec::new(), "virtio::Recoveries::entries"),
        });
        Deferred::new(
            &queue,
            recoveries,
            c"virtio::Recoveries",
            kernel::static_lock_class!(),
        )
    }

    /// Calls `f` with the entry of `device`, if it exists.
    fn with<T>(&self, device: &Device, f: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut entries = self.entries.lock();
        let mut entries = entries.iter_mut();
        entries.find(|entry| entry.is_of(device)).map(f)
    }

    /// Removes the entry of `device` if neither its driver nor a recovery uses the device.
    fn forget_unused(&self, device: &Device) {
        let mut entries = self.entries.lock();
        let unused = |entry: &Entry| entry.is_of(device) && !entry.is_used && !entry.is_running;
        let index = entries.iter().position(unused);
        let entry = index.and_then(|index| entries.remove(index).ok());
        drop(entries);
        drop(entry);
    }

    /// Begins a recovery that was requested.
    fn begin(&self) -> Option<Begun> {
        let mut entries = self.entries.lock();
        let entry = entries.iter_mut().find(|entry| entry.is_requested)?;
        Some(Begun {
            generation: entry.begin(),
            device: entry.device.clone(),
            parent: entry.parent.clone(),
        })
    }

    /// Ends the recovery of `device`.
    fn end(&self, device: &Device) {
        let _ = self.with(device, Entry::end);
        self.forget_unused(device);
    }

    /// Recovers a device.
    fn recover(&self, begun: &Begun) {
        let device: &Device = &begun.device;
        dev_info!(device.as_ref(), "the device is reset and probed again\n");
        let mut generation = begun.generation;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                fsleep(Delta::from_millis(RETRY_MS << (attempt - 1)));
            }
            // A reset of the function, a suspend and a removal hold this lock too.
            let lock = ParentLock::new(&begun.parent);
            // The driver may have been unbound meanwhile, and bound again.
            if self.with(device, |entry| entry.generation) != Some(generation) {
                return;
            }
            let result = reset(device, &lock);
            // The probe that failed may have had a `Recovery` too.
            generation = self
                .with(device, |entry| entry.generation)
                .unwrap_or(generation);
            drop(lock);
            match result {
                Ok(()) => return,
                Err(error) => dev_err!(
                    device.as_ref(),
                    "recovery: attempt {} of {} failed: {:?}\n",
                    attempt + 1,
                    ATTEMPTS,
                    error
                ),
            }
        }
    }
}

impl Call for Recoveries {
    fn call(&self) {
        while let Some(begun) = self.begin() {
            self.recover(&begun);
            self.end(&begun.device);
        }
    }
}

/// Has the driver give up `device`, resets the device, and has the driver probe it, like a reset of
/// the transport. Does nothing if the device was unbound.
fn reset(device: &Device, _parent: &ParentLock<'_>) -> Result {
    let raw = device.as_raw();
    // SAFETY: The device is valid. The parent's lock excludes other calls of this function.
    match to_result(unsafe { bindings::virtio_device_reset_prepare(raw) }) {
        // No driver is bound.
        Err(error) if error == EOPNOTSUPP => return Ok(()),
        result => result?,
    }
    // The transport would wait for ever for the reset of a device that is gone.
    //
    // SAFETY: `status` only needs that the transport is bound. A driver was bound above, so the
    // transport was bound too, and its unbinding waits for the parent's lock.
    if unsafe { device.as_bound() }.status() == Status::Gone {
        return Err(ENODEV);
    }
    // SAFETY: As for the preparation, which succeeded.
    match to_result(unsafe { bindings::virtio_device_reset_done(raw) }) {
        Err(error) if error == EOPNOTSUPP => Ok(()),
        result => result,
    }
}

/// The lock of the device of a transport.
///
/// # Invariants
///
/// The pointer is the device, and this holds its lock.
struct ParentLock<'a>(*mut bindings::device, PhantomData<&'a device::Device>);

impl<'a> ParentLock<'a> {
    fn new(parent: &'a device::Device) -> Self {
        // CAST: A `device::Device` is a transparent wrapper.
        let parent = ptr::from_ref(parent).cast_mut().cast();
        // SAFETY: The device is valid. No code takes the lock and then waits for a recovery.
        unsafe { bindings::device_lock(parent) };
        // INVARIANT: Taken above.
        Self(parent, PhantomData)
    }
}

impl Drop for ParentLock<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::device_unlock(self.0) };
    }
}

/// The means of a driver to have a device recovered. Part of the driver's data of the device.
///
/// # Examples
///
/// ```
/// use crate::virtio::{self, Health, Recovery, Virtqueue};
/// use kernel::device::Core;
///
/// struct Data {
///     recovery: Recovery,
/// }
///
/// impl Data {
///     fn new(dev: &virtio::Device<Core<'_>>) -> Result<Self> {
///         Ok(Self {
///             recovery: dev.recovery()?,
///         })
///     }
///
///     /// Called periodically. Returns whether to call again.
///     fn check<T: Send>(&self, queue: &Virtqueue<T>) -> bool {
///         queue.poll_health() != Health::NeedsReset || self.recovery.request().is_err()
///     }
/// }
/// ```
pub struct Recovery {
    device: ARef<Device>,
    generation: u64,
    recoveries: Handle<Recoveries>,
}

impl Recovery {
    /// Has the device recovered soon: the driver is unbound from it, the device is reset, and the
    /// driver probes it. Does nothing if the driver is unbound before. Can be called in process
    /// context, also by work for which an unbinding waits.
    ///
    /// # Errors
    ///
    /// The device has failed again and again, and the recovery can be requested after this time.
    pub fn request(&self) -> Result<(), Delta> {
        let requested = self.recoveries.with(&self.device, |entry| {
            match entry.is_used_by(self.generation) {
                true => entry.request(),
                false => Ok(()),
            }
        });
        requested.transpose()?;
        self.recoveries.queue();
        Ok(())
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        let _ = self.recoveries.with(&self.device, |entry| {
            if entry.is_used_by(self.generation) {
                entry.end_use();
            }
        });
        self.recoveries.forget_unused(&self.device);
    }
}

impl Device<device::Core<'_>> {
    /// The means to recover the device, for the data of the driver that probes it. Earlier ones
    /// lose their effect.
    ///
    /// # Errors
    ///
    /// [`ENODEV`] for a device without a parent or a driver without an
    /// [`Adapter`](super::Adapter), [`ENOMEM`].
    pub fn recovery(&self) -> Result<Recovery> {
        let recoveries = adapter::recoveries(self).ok_or(ENODEV)?;
        let device: &Device = self;
        let parent: &device::Device = self.parent().ok_or(ENODEV)?;
        let generation = match recoveries.with(device, Entry::begin_use) {
            Some(generation) => generation,
            None => {
                let mut entry = Entry {
                    device: device.into(),
                    parent: parent.into(),
                    generation: 0,
                    is_used: false,
                    is_requested: false,
                    is_running: false,
                    due: None,
                    recovered: None,
                    in_a_row: 0,
                };
                let generation = entry.begin_use();
                recoveries.entries.lock().push(entry, GFP_KERNEL)?;
                generation
            }
        };
        Ok(Recovery {
            device: device.into(),
            generation,
            recoveries,
        })
    }
}
