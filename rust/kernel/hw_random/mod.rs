// SPDX-License-Identifier: GPL-2.0

//! Hardware random number generators.
//!
//! C header: [`include/linux/hw_random.h`](srctree/include/linux/hw_random.h)

#[cfg(CONFIG_RUST_RDMA_KUNIT_TEST)]
pub(crate) mod tests;

use crate::bindings;
use core::{
    mem::MaybeUninit,
    slice, //
};
use kernel::{
    error::to_result,
    prelude::*,
    str::CString,
    sync::Arc,
    types::Opaque, //
};

/// The buffer of a read for random bytes.
pub struct Buffer<'a> {
    room: &'a mut [MaybeUninit<u8>],
    len: usize,
}

impl<'a> Buffer<'a> {
    /// A buffer without bytes yet.
    pub fn new(room: &'a mut [MaybeUninit<u8>]) -> Self {
        Self { room, len: 0 }
    }

    /// Number of bytes that the read can still take.
    pub fn remaining(&self) -> usize {
        self.room.len() - self.len
    }

    /// Appends bytes, at most [`remaining`](Self::remaining). Returns the number of bytes appended.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let room = &mut self.room[self.len..];
        let count = room.len().min(bytes.len());
        for (to, from) in room.iter_mut().zip(bytes) {
            to.write(*from);
        }
        self.len += count;
        count
    }
}

/// A generator of random numbers.
pub trait HwRng: Send + Sync + 'static {
    /// Writes random bytes to `data`. May wait for them if `can_wait` is true.
    ///
    /// Called in task context, by one reader at a time.
    ///
    /// # Errors
    ///
    /// Errors are ignored if bytes were written.
    fn read(&self, data: &mut Buffer<'_>, can_wait: bool) -> Result;
}

/// A registered generator.
///
/// Dropping it waits for the last read. Signals do not end a read, so the driver has to end reads
/// that wait.
///
/// # Examples
///
/// ```
/// use crate::hw_random::{Buffer, HwRng, Registration};
/// use kernel::{str::CString, sync::Arc};
///
/// struct Die;
///
/// impl HwRng for Die {
///     fn read(&self, data: &mut Buffer<'_>, _can_wait: bool) -> Result {
///         // Chosen by fair dice roll.
///         while data.write(&[4]) != 0 {}
///         Ok(())
///     }
/// }
///
/// fn register() -> Result<Pin<KBox<Registration<Die>>>> {
///     let die = Arc::new(Die, GFP_KERNEL)?;
///     let name = CString::try_from(c"die")?;
///     KBox::pin_init(Registration::new(name, die), GFP_KERNEL)
/// }
/// ```
///
/// # Invariants
///
/// `hwrng` is registered. Its name is `name`, and its private word points to `rng`.
#[pin_data(PinnedDrop)]
pub struct Registration<T: HwRng> {
    name: CString,
    rng: Arc<T>,
    #[pin]
    hwrng: Opaque<bindings::hwrng>,
}

// SAFETY: A generator may be unregistered by any task.
unsafe impl<T: HwRng> Send for Registration<T> {}

// SAFETY: A shared reference gives access to nothing.
unsafe impl<T: HwRng> Sync for Registration<T> {}

impl<T: HwRng> Registration<T> {
    /// Registers a generator. The kernel's parameter `default_quality` determines how much entropy
    /// the kernel assumes in the generator's bytes.
    ///
    /// # Errors
    ///
    /// [`EEXIST`] if a generator of this name is registered.
    pub fn new(name: CString, rng: Arc<T>) -> impl PinInit<Self, Error> {
        let hwrng = bindings::hwrng {
            name: name.as_char_ptr(),
            read: Some(Self::read_callback),
            // CAST: The word is as long as a pointer.
            priv_: Arc::as_ptr(&rng) as c_ulong,
            ..Default::default()
        };
        try_pin_init!(Self {
            name,
            rng,
            // INVARIANT: Name and generator stay where they are when their owners are moved.
            hwrng <- Opaque::try_ffi_init(move |slot: *mut bindings::hwrng| {
                // SAFETY: `slot` is valid for writes.
                unsafe { slot.write(hwrng) };
                // SAFETY: The structure is complete, and pinned until `drop()` unregisters it.
                to_result(unsafe { bindings::hwrng_register(slot) })
            }),
        })
    }

    /// # Safety
    ///
    /// To be called by the core only, for a generator of this type that is registered, with room
    /// for `max` bytes at `data`.
    unsafe extern "C" fn read_callback(
        hwrng: *mut bindings::hwrng,
        data: *mut c_void,
        max: usize,
        wait: bool,
    ) -> c_int {
        // SAFETY: By this function's requirements and the type invariant: before the generator is
        // dropped, it is unregistered, which waits for reads.
        let rng = unsafe { &*((*hwrng).priv_ as *const T) };
        // SAFETY: By this function's requirements; nothing else accesses the room meanwhile.
        let room = unsafe { slice::from_raw_parts_mut(data.cast::<MaybeUninit<u8>>(), max) };
        let mut data = Buffer::new(room);
        match rng.read(&mut data, wait) {
            Err(error) if data.len == 0 => error.to_errno(),
            _ => c_int::try_from(data.len).unwrap_or(c_int::MAX),
        }
    }
}

#[pinned_drop]
impl<T: HwRng> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant.
        unsafe { bindings::hwrng_unregister(self.hwrng.get()) };
    }
}
