// SPDX-License-Identifier: GPL-2.0

//! The crate pin_init of an older series, with the names of the newest one.

extern crate pin_init as stock;

pub use stock::*;

/// Initializes the memory at `slot`.
///
/// # Safety
///
/// The memory is valid for writes. It stays where it is once it is initialized.
#[cfg(lacks_raw_try_init)]
#[inline]
pub unsafe fn raw_try_init<T, E>(slot: *mut T, init: impl PinInit<T, E>) -> Result<(), E> {
    // SAFETY: The requirements are the same.
    unsafe { init.__pinned_init(slot) }
}
