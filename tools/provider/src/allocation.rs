// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Heap memory. `Box::new` and `vec!` abort the program when memory is short; these functions
//! return `ENOMEM`.

use std::alloc;
use std::alloc::Layout;
use std::io;
use std::mem::MaybeUninit;

/// The error of an allocation that fails.
pub fn no_memory() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

/// Allocates a box for `value`.
///
/// # Errors
///
/// `ENOMEM`. Then `value` is dropped.
pub fn boxed<T>(value: T) -> io::Result<Box<T>> {
    const { assert!(size_of::<T>() != 0) };
    // SAFETY: the size is not 0.
    let place = unsafe { alloc::alloc(Layout::new::<T>()) }.cast::<T>();
    if place.is_null() {
        return Err(no_memory());
    }
    // SAFETY: the place is allocated for a `T` with the layout that Box frees.
    unsafe {
        place.write(value);
        Ok(Box::from_raw(place))
    }
}

/// A box with zeroed memory for a value.
///
/// # Errors
///
/// `ENOMEM`.
pub fn zeroed_box<T>() -> io::Result<Box<MaybeUninit<T>>> {
    const { assert!(size_of::<T>() != 0) };
    // SAFETY: the size is not 0.
    let place = unsafe { alloc::alloc_zeroed(Layout::new::<T>()) }.cast::<MaybeUninit<T>>();
    if place.is_null() {
        return Err(no_memory());
    }
    // SAFETY: the place is allocated with the layout that Box frees, and may have any content.
    Ok(unsafe { Box::from_raw(place) })
}

/// `count` default values.
///
/// # Errors
///
/// `ENOMEM`.
pub fn defaults<T: Default>(count: usize) -> io::Result<Box<[T]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| no_memory())?;
    values.resize_with(count, T::default);
    Ok(values.into_boxed_slice())
}
