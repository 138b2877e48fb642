// SPDX-License-Identifier: GPL-2.0

//! One virtqueue and the buffers in it.
//!
//! A buffer belongs to the queue from [`Virtqueue::add`] until [`Virtqueue::get_buf`] returns it:
//! no safe code can access memory that the device reads or writes. Buffers that the device has not
//! used are freed when the queue is detached, and only if the device confirmed its reset; otherwise
//! they are leaked.
//!
//! A caller that can't retry uses [`Virtqueue::add_or_keep`], which adds the buffer as soon as
//! possible.
//!
//! Lock order: `Virtqueue::device`, the lock of resets, `Virtqueue::attached`. The first two are
//! taken only where the driver may sleep. A task that holds `Virtqueue::device` of one queue may
//! take `Virtqueue::attached` of every queue of the device, one after another.
//! `Virtqueue::resetting` is taken within `Virtqueue::device`, and no other lock within it.
//!
//! C header: [`include/linux/virtio.h`](srctree/include/linux/virtio.h)

use super::{
    Device,
    Health,
    Reset, //
};
use crate::bindings;
use core::{
    mem::replace,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    alloc::Flags,
    error::to_result,
    prelude::*,
    sync::{
        aref::ARef,
        new_mutex,
        new_spinlock_irq,
        rcu,
        Arc,
        Mutex,
        SpinLockIrq, //
    },
};

/// A message through a queue: bytes for the device to read, then bytes for it to write, and the
/// driver's own context, which the device does not see.
///
/// # Examples
///
/// ```
/// use crate::virtio::Buffer;
///
/// // A request of four bytes, room for an answer of eight bytes, and a number as context.
/// let mut buffer = Buffer::new(4, 8, 7, GFP_KERNEL)?;
/// buffer.readable_mut().copy_from_slice(&[1, 2, 3, 4]);
/// assert!(buffer.writable().len() == 8 && buffer.context == 7);
/// // The next use has a shorter request.
/// buffer.reset(2, 8)?;
/// # Ok::<(), Error>(())
/// ```
pub struct Buffer<C> {
    readable: KVec<u8>,
    readable_len: usize,
    writable: KVec<u8>,
    writable_len: usize,
    /// The next buffer in the list of buffers that the queue keeps.
    next: Option<KBox<Self>>,
    /// The driver's own data.
    pub context: C,
}

impl<C> Buffer<C> {
    /// Allocates a buffer of zeroes.
    pub fn new(readable: usize, writable: usize, context: C, flags: Flags) -> Result<KBox<Self>> {
        // Separate allocations, so that the bytes share no cache line with data that a CPU writes
        // while the device uses the buffer.
        Ok(KBox::new(
            Self {
                readable: KVec::from_elem(0, readable, flags)?,
                readable_len: readable,
                writable: KVec::from_elem(0, writable, flags)?,
                writable_len: writable,
                next: None,
                context,
            },
            flags,
        )?)
    }

    /// Sets the lengths of both parts, at most the allocated lengths, and zeroes all bytes. So no
    /// data of an earlier use is left where the device writes less than the length.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if a part was allocated shorter.
    pub fn reset(&mut self, readable: usize, writable: usize) -> Result {
        self.set_len(readable, writable)?;
        self.readable.fill(0);
        self.writable.fill(0);
        Ok(())
    }

    /// Sets the lengths of both parts, at most the allocated lengths. The bytes do not change.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if a part was allocated shorter.
    pub fn set_len(&mut self, readable: usize, writable: usize) -> Result {
        if readable > self.readable.len() || writable > self.writable.len() {
            return Err(EINVAL);
        }
        self.readable_len = readable;
        self.writable_len = writable;
        Ok(())
    }

    /// The bytes for the device to read.
    pub fn readable_mut(&mut self) -> &mut [u8] {
        &mut self.readable[..self.readable_len]
    }

    /// The bytes for the device to write; it may have written fewer.
    pub fn writable(&self) -> &[u8] {
        &self.writable[..self.writable_len]
    }
}

/// A virtqueue whose buffers have a context of type `C`.
///
/// A new queue is detached: [`find_vqs`](super::Device::find_vqs) attaches it to a queue of the
/// device, and the teardown detaches it. While the queue is detached, buffers can be neither added
/// nor taken out.
///
/// # Examples
///
/// ```
/// use crate::virtio::{Buffer, Virtqueue};
/// use kernel::sync::Arc;
///
/// let queue = Arc::pin_init(Virtqueue::<u32>::new(), GFP_KERNEL)?;
/// let buffer = Buffer::new(4, 4, 1, GFP_KERNEL)?;
/// // The queue belongs to no device yet, so `add` returns the buffer with an error.
/// if let Err((error, buffer)) = queue.add(buffer) {
///     assert!(error == ENODEV && buffer.context == 1);
/// } else {
///     queue.kick();
/// }
/// # Ok::<(), Error>(())
/// ```
#[pin_data]
pub struct Virtqueue<C: Send + 'static> {
    #[pin]
    attached: SpinLockIrq<Attached<C>>,
    /// The device for which the queue is reserved. It stays bound while this is locked.
    #[pin]
    device: Mutex<Option<BoundDriver>>,
    /// Held by [`reset_device`](Self::reset_device). The device stays bound while this is locked.
    #[pin]
    resetting: Mutex<()>,
}

/// The device that owns a queue.
struct BoundDriver {
    device: ARef<Device>,
    /// Held while a queue of the device is reset: the queues have registers in common.
    resets: Arc<Mutex<()>>,
}

/// Buffers that wait to be added to the virtqueue. None of them is in the virtqueue.
struct Kept<C>(Option<KBox<Buffer<C>>>);

impl<C> Kept<C> {
    fn push(&mut self, mut buffer: KBox<Buffer<C>>) {
        buffer.next = self.0.take();
        self.0 = Some(buffer);
    }

    fn pop(&mut self) -> Option<KBox<Buffer<C>>> {
        let mut buffer = self.0.take()?;
        self.0 = buffer.next.take();
        Some(buffer)
    }
}

impl<C> Drop for Kept<C> {
    fn drop(&mut self) {
        // Dropped one by one: the drop of a whole list would recurse for each buffer.
        while self.pop().is_some() {}
    }
}

/// # Invariants
///
/// If not null, the virtqueue is valid, at least until an RCU grace period after it was replaced by
/// null; only one [`Virtqueue`] refers to it, and each token in it is a `KBox<Buffer<C>>` of that
/// queue, given up by `into_raw()`.
struct Attached<C> {
    vq: *mut bindings::virtqueue,
    kept: Kept<C>,
}

// SAFETY: A virtqueue may be used on any CPU, by one CPU at a time; the buffers are `Send`.
unsafe impl<C: Send> Send for Attached<C> {}

impl<C> Attached<C> {
    /// Gives `buffer` to the device; see [`Virtqueue::add`].
    fn add(&mut self, buffer: KBox<Buffer<C>>) -> Result<(), (Error, KBox<Buffer<C>>)> {
        let token = KBox::into_raw(buffer);
        // SAFETY: The token is from `into_raw()`, and is used no more unless the queue refuses it.
        unsafe { self.add_token(token) }.map_err(|error| {
            // SAFETY: The queue refused the token.
            (error, unsafe { KBox::from_raw(token) })
        })
    }

    /// Adds a buffer whose token is its pointer.
    ///
    /// # Safety
    ///
    /// `token` comes from `KBox::into_raw()`. On success, it belongs to the queue.
    unsafe fn add_token(&mut self, token: *mut Buffer<C>) -> Result {
        if self.vq.is_null() {
            return Err(ENODEV);
        }
        // SAFETY: By this function's requirements the token is valid, and still the caller's.
        let buffer = unsafe { &mut *token };
        let mut lists = [
            bindings::scatterlist::default(),
            bindings::scatterlist::default(),
        ];
        let mut sgs = [null_mut(); 2];
        let mut counts = [0, 0];
        let mut used = 0;
        let parts = [
            &mut buffer.readable[..buffer.readable_len],
            &mut buffer.writable[..buffer.writable_len],
        ];
        for ((bytes, list), count) in parts.into_iter().zip(&mut lists).zip(&mut counts) {
            let len = u32::try_from(bytes.len())?;
            if len != 0 {
                // SAFETY: The list is ours; the bytes come from kmalloc, so they are contiguous.
                unsafe { bindings::sg_init_one(list, bytes.as_mut_ptr().cast(), len) };
                sgs[used] = list;
                used += 1;
                *count = 1;
            }
        }
        if used == 0 {
            return Err(EINVAL);
        }
        // SAFETY: The queue is valid, and nothing else refers to it, because of `&mut self`; the
        // lists are initialized; the memory that they describe stays in place and untouched until
        // the token is taken out.
        //
        // INVARIANT: The token is a `KBox<Buffer<C>>` of this queue, given up by `into_raw()`.
        let result = to_result(unsafe {
            bindings::virtqueue_add_sgs(
                self.vq,
                sgs.as_mut_ptr(),
                counts[0],
                counts[1],
                token.cast(),
                bindings::GFP_ATOMIC,
            )
        });
        // A packed ring returns the same error for a broken queue as for memory that can't be
        // mapped.
        //
        // SAFETY: The queue is valid.
        let is_broken = || unsafe { bindings::virtqueue_is_broken(self.vq) };
        result.map_err(|error| match error {
            EIO if !is_broken() => ENOMEM,
            error => error,
        })
    }
}

impl<C: Send + 'static> Virtqueue<C> {
    /// A detached queue.
    pub fn new() -> impl PinInit<Self> {
        // INVARIANT: The virtqueue is null.
        let attached = Attached {
            vq: null_mut(),
            kept: Kept(None),
        };
        pin_init!(Self {
            attached <- new_spinlock_irq!(attached, "virtio::Virtqueue::attached"),
            device <- new_mutex!(None, "virtio::Virtqueue::device"),
            resetting <- new_mutex!((), "virtio::Virtqueue::resetting"),
        })
    }

    /// Adds `buffer` to the queue. The device may not notice it before [`kick`](Self::kick).
    ///
    /// # Errors
    ///
    /// The buffer is returned with [`ENOSPC`] if the queue is full, [`ENODEV`] if it is detached,
    /// [`EINVAL`] if the buffer is empty, [`EIO`] if the device broke the queue's rules, and
    /// [`ENOMEM`].
    pub fn add(&self, buffer: KBox<Buffer<C>>) -> Result<(), (Error, KBox<Buffer<C>>)> {
        self.attached.lock().add(buffer)
    }

    /// Like [`add`](Self::add), but keeps the buffer if there is no room or memory now. The buffer
    /// is added later: when [`get_buf`](Self::get_buf) takes a buffer out, or in
    /// [`poll_health`](Self::poll_health).
    ///
    /// # Errors
    ///
    /// The errors of [`add`](Self::add), except [`ENOSPC`] and [`ENOMEM`].
    pub fn add_or_keep(&self, buffer: KBox<Buffer<C>>) -> Result<(), (Error, KBox<Buffer<C>>)> {
        let mut attached = self.attached.lock();
        match attached.add(buffer) {
            Err((ENOSPC | ENOMEM, buffer)) => {
                attached.kept.push(buffer);
                Ok(())
            }
            result => result,
        }
    }

    /// Adds kept buffers, as many as possible.
    #[cold]
    fn add_kept(&self) {
        let mut is_added = false;
        // Kept buffers are added one at a time, since there may be many, and interrupts are off
        // during each addition.
        loop {
            let mut attached = self.attached.lock();
            let Some(buffer) = attached.kept.pop() else {
                break;
            };
            if let Err((_, buffer)) = attached.add(buffer) {
                attached.kept.push(buffer);
                break;
            }
            is_added = true;
        }
        if is_added {
            self.kick();
        }
    }

    /// Takes out a buffer that the device has used. Also returns the number of bytes that the
    /// device wrote, which is at most the length of the writable part.
    pub fn get_buf(&self) -> Option<(KBox<Buffer<C>>, usize)> {
        let mut written = 0;
        let attached = self.attached.lock();
        if attached.vq.is_null() {
            return None;
        }
        // SAFETY: The queue is valid and under its lock. If the device returns a buffer that it
        // does not have, the virtio core notices and marks the queue as broken.
        let token = unsafe { bindings::virtqueue_get_buf(attached.vq, &mut written) };
        let has_kept = attached.kept.0.is_some();
        drop(attached);
        if token.is_null() {
            return None;
        }
        if has_kept {
            self.add_kept();
        }
        // SAFETY: By the type invariant; the token is not in the queue any more.
        let buffer = unsafe { KBox::from_raw(token.cast::<Buffer<C>>()) };
        let written = usize::try_from(written).unwrap_or(usize::MAX);
        let written = written.min(buffer.writable_len);
        Some((buffer, written))
    }

    /// Notifies the device of added buffers, unless it has suppressed notifications.
    pub fn kick(&self) {
        // The notification is sent without the lock, since it may cost a VM exit. The RCU guard
        // keeps the queue valid.
        let _rcu = rcu::read_lock();
        let attached = self.attached.lock();
        let vq = attached.vq;
        // SAFETY: If not null, the queue is valid and under its lock.
        let notify = !vq.is_null() && unsafe { bindings::virtqueue_kick_prepare(vq) };
        drop(attached);
        if notify {
            // SAFETY: By the type invariant the queue is valid until a grace period is over. The
            // guard prevents the end of the grace period. Notifying needs no lock.
            unsafe { bindings::virtqueue_notify(vq) };
        }
    }

    /// Checks the device of the queue, and adds buffers that its queues [keep](Self::add_or_keep).
    /// Returns the health of the device; [`Health::Gone`] for a detached queue. May sleep.
    ///
    /// A driver calls this periodically while it waits for the device: no interrupt reports a queue
    /// that the device broke.
    pub fn poll_health(&self) -> Health {
        let bound = self.device.lock();
        let Some(bound) = bound.as_ref() else {
            return Health::Gone;
        };
        // SAFETY: Until the queue is detached, which takes the lock, the device stays bound.
        let device = unsafe { bound.device.as_bound() };
        match device.health() {
            // SAFETY: The queue is reserved for the device, and stays so while the lock is held.
            Health::Good if !unsafe { device.check_queues() } => Health::Broken,
            health => health,
        }
    }

    /// Resets the whole device, after which none of its queues can be used.
    ///
    /// May sleep as long as the device does not confirm the reset. Meanwhile
    /// [`poll_health`](Self::poll_health) still works, a shutdown does not wait, and an unbinding
    /// waits for the end of the reset.
    ///
    /// [`Reset::Unreachable`] for a queue that is detached, or if another reset of the device by
    /// this queue is running.
    pub fn reset_device(&self) -> Reset {
        let bound = self.device.lock();
        let Some(BoundDriver { device, .. }) = bound.as_ref() else {
            return Reset::Unreachable;
        };
        let Some(_resetting) = self.resetting.try_lock() else {
            return Reset::Unreachable;
        };
        let device = device.clone();
        drop(bound);
        // SAFETY: The device stays bound until the queue is released. `release` takes `resetting`,
        // which is held here, after it has taken `device`, which was held when `resetting` was
        // taken: so the queue was not released yet.
        unsafe { device.as_bound() }.reset()
    }

    /// Enables interrupts for the next buffer that the device uses. Returns `false` if used buffers
    /// wait to be taken out: they may raise no interrupt.
    pub fn enable_cb(&self) -> bool {
        let attached = self.attached.lock();
        // SAFETY: If not null, the queue is valid and under its lock.
        attached.vq.is_null() || unsafe { bindings::virtqueue_enable_cb(attached.vq) }
    }

    /// Takes out the virtqueue, which may be null, and the kept buffers. From then on buffers can't
    /// be added or kept.
    fn detach(&self) -> (*mut bindings::virtqueue, Kept<C>) {
        let mut attached = self.attached.lock();
        // INVARIANT: The virtqueue is null.
        let vq = replace(&mut attached.vq, null_mut());
        // The kept buffers are returned and not dropped here, with the lock held: the drop of a
        // context may run any code.
        (vq, replace(&mut attached.kept, Kept(None)))
    }

    /// The number of entries of the ring; 0 if the queue is detached.
    pub fn vring_size(&self) -> usize {
        let attached = self.attached.lock();
        if attached.vq.is_null() {
            return 0;
        }
        // SAFETY: The queue is valid and under its lock.
        let size = unsafe { bindings::virtqueue_get_vring_size(attached.vq) };
        usize::try_from(size).unwrap_or(usize::MAX)
    }
}

impl<C: Copy + Send + 'static> Virtqueue<C> {
    /// Resets only this queue, frees the buffers in it, and enables it again.
    ///
    /// Meanwhile, buffers can be neither added nor taken out. May sleep. Contexts are `Copy`, so
    /// that no code of theirs runs when they are dropped: the queue's locks are held then.
    ///
    /// # Errors
    ///
    /// [`ENODEV`] if the queue is detached or the device does not work, [`ENOENT`] without
    /// [`RING_RESET`](super::Feature::RING_RESET); errors of the transport. After an error, buffers
    /// that the device may still use stay in the queue.
    pub fn reset(&self) -> Result {
        let bound = self.device.lock();
        let bound = bound.as_ref().ok_or(ENODEV)?;
        let _one_at_a_time = bound.resets.lock();
        // The health is checked before the reset, since a transport waits for ever for the
        // confirmation of a device that is gone or needs a reset.
        //
        // SAFETY: Until the queue is detached, which takes the lock, the device stays bound.
        if unsafe { bound.device.as_bound() }.health() != Health::Good {
            return Err(ENODEV);
        }
        let (vq, _kept) = self.detach();
        if vq.is_null() {
            return Err(ENODEV);
        }
        let free: unsafe extern "C" fn(_, _) = Self::free_token;
        // SAFETY: The queue is valid until it is detached. Nothing else refers to it by now, except
        // a notification under way, which does not touch buffers. By the type invariant, the tokens
        // in it are as `free_token` requires.
        let result = to_result(unsafe { bindings::virtqueue_reset(vq, Some(free), None) });
        // INVARIANT: The virtqueue was attached before, and the tokens that were not freed are
        // still in it.
        self.attached.lock().vq = vq;
        result
    }

    /// Frees a buffer that was in the queue.
    ///
    /// # Safety
    ///
    /// To be called by [`reset`](Self::reset) only, for each token that was in the queue and that
    /// the device does not use any more.
    unsafe extern "C" fn free_token(_vq: *mut bindings::virtqueue, token: *mut c_void) {
        // SAFETY: By the type invariant of `Attached` and this function's requirements.
        drop(unsafe { KBox::from_raw(token.cast::<Buffer<C>>()) });
    }
}

/// A [`Virtqueue`] with any type of context, for setup and teardown of a device.
pub(super) trait AnyVirtqueue: Send + Sync {
    /// Reserves the queue for `device`. Virtqueues with the same `resets` are reset one at a time.
    ///
    /// # Errors
    ///
    /// [`EBUSY`] if the queue is reserved already, for this device or another device.
    ///
    /// # Safety
    ///
    /// `device` is bound, and stays so until [`release`](Self::release).
    unsafe fn reserve(&self, device: &Device, resets: &Arc<Mutex<()>>) -> Result;

    /// Attaches the queue.
    ///
    /// # Safety
    ///
    /// The caller has reserved the queue and has attached nothing to it. `vq` is a valid queue of
    /// the same device, holds no buffers and is attached to no other [`Virtqueue`]. `vq` stays
    /// valid until a grace period after [`release`](Self::release).
    unsafe fn attach(&self, vq: NonNull<bindings::virtqueue>);

    /// Detaches the queue, if it is attached, and ends the reservation. Returns the number of
    /// buffers that the device still held: they are freed if the device was reset, else leaked.
    ///
    /// # Safety
    ///
    /// The caller has reserved the queue. With [`Reset::Done`], the device uses no buffer of the
    /// queue any more.
    unsafe fn release(&self, reset: Reset) -> usize;

    /// Adds kept buffers. Returns whether the queue works: the device has not broken its rules.
    fn check(&self) -> bool;

    /// Whether [`Virtqueue::reset_device`] is resetting the device.
    fn is_resetting(&self) -> bool;
}

impl<C: Send + 'static> AnyVirtqueue for Virtqueue<C> {
    unsafe fn reserve(&self, device: &Device, resets: &Arc<Mutex<()>>) -> Result {
        let mut bound = self.device.lock();
        if bound.is_some() {
            return Err(EBUSY);
        }
        *bound = Some(BoundDriver {
            device: device.into(),
            resets: resets.clone(),
        });
        Ok(())
    }

    unsafe fn attach(&self, vq: NonNull<bindings::virtqueue>) {
        // INVARIANT: By this function's requirements.
        self.attached.lock().vq = vq.as_ptr();
    }

    unsafe fn release(&self, reset: Reset) -> usize {
        let mut bound = self.device.lock();
        let (vq, kept) = self.detach();
        *bound = None;
        drop(bound);
        // Waits for a reset of the device. No other reset by this queue begins any more.
        drop(self.resetting.lock());
        drop(kept);
        let mut count = 0;
        while !vq.is_null() {
            // SAFETY: The queue is valid until a grace period is over. By now only a notification
            // under way may still refer to the queue; it does not touch buffers.
            let token = unsafe { bindings::virtqueue_detach_unused_buf(vq) };
            if token.is_null() {
                break;
            }
            count += 1;
            if reset == Reset::Done {
                // SAFETY: By the type invariant; by this function's requirements the device does
                // not use the buffer any more.
                drop(unsafe { KBox::from_raw(token.cast::<Buffer<C>>()) });
            }
        }
        count
    }

    fn check(&self) -> bool {
        self.add_kept();
        let attached = self.attached.lock();
        // SAFETY: If not null, the queue is valid and under its lock.
        attached.vq.is_null() || !unsafe { bindings::virtqueue_is_broken(attached.vq) }
    }

    fn is_resetting(&self) -> bool {
        self.resetting.try_lock().is_none()
    }
}
