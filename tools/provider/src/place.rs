// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory for objects that are initialized in two steps.
//!
//! A command fills in libibverbs' structure at the start of an object. Its response has the offsets
//! of the rings, which the rest of the object needs.

use std::io;
use std::mem::size_of;
use std::mem::ManuallyDrop;
use std::mem::MaybeUninit;
use std::ptr;

use crate::allocation::zeroed_box;
use crate::ffi::Zeroed;

/// An object that starts with a structure of libibverbs.
///
/// # Safety
///
/// The type is `repr(C)` and its first member is an `UnsafeCell<Self::Ibv>`.
pub unsafe trait Object {
    /// libibverbs' structure.
    type Ibv: Zeroed;
}

/// The memory of an object whose libibverbs' structure is zeroed or filled in by a command, and
/// whose other members are not initialized.
pub struct Place<T: Object>(Box<MaybeUninit<T>>);

impl<T: Object> Place<T> {
    /// Allocates a place.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> io::Result<Self> {
        Ok(Self(zeroed_box()?))
    }

    /// libibverbs' structure. Its address stays the same when the object is finished.
    pub fn as_ibv(&mut self) -> *mut T::Ibv {
        self.0.as_mut_ptr().cast()
    }

    /// The finished object: libibverbs' structure as it is here, and the other members from
    /// `value`.
    pub fn finish(mut self, value: T) -> Box<T> {
        const { assert!(size_of::<T>() >= size_of::<T::Ibv>()) };
        let value = ManuallyDrop::new(value);
        let start = size_of::<T::Ibv>();
        // SAFETY: source and destination are as long as a `T`. The bytes after libibverbs'
        // structure, the first member, are moved: `value` is not used any more. The place is then
        // initialized: libibverbs' structure may be all zeroes, or was filled in by a C function.
        unsafe {
            let from = ptr::from_ref(&*value).cast::<MaybeUninit<u8>>();
            let to = self.0.as_mut_ptr().cast::<MaybeUninit<u8>>();
            ptr::copy_nonoverlapping(from.add(start), to.add(start), size_of::<T>() - start);
            Box::from_raw(Box::into_raw(self.0).cast())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;
    use crate::ffi;

    #[repr(C)]
    struct Pd {
        ibv: UnsafeCell<ffi::ibv_pd>,
        rest: String,
    }

    // SAFETY: the type is `repr(C)`, and its first member is the cell of an `ibv_pd`.
    unsafe impl Object for Pd {
        type Ibv = ffi::ibv_pd;
    }

    #[test]
    fn what_a_command_wrote_stays() {
        let mut place = Place::<Pd>::new().unwrap();
        let ibv = place.as_ibv();
        // SAFETY: the place contains an `ibv_pd`.
        unsafe { (*ibv).handle = 7 };
        let pd = place.finish(Pd {
            ibv: UnsafeCell::new(Zeroed::zeroed()),
            rest: String::from("rest"),
        });
        assert_eq!(pd.ibv.get(), ibv);
        // SAFETY: the object has no other user.
        assert_eq!(unsafe { (*pd.ibv.get()).handle }, 7);
        assert_eq!(pd.rest, "rest");
    }
}
