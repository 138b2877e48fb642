// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Shared ownership. std's `Arc` aborts the program when its allocation fails; this `Arc` returns
//! an error.

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::allocation::boxed;
use crate::sync::AtomicUsize;
use crate::sync::Ordering;

/// The value is the first field, so that the value and this structure have the same address.
#[repr(C)]
struct Counted<T> {
    value: T,
    /// Number of `Arc`s.
    count: AtomicUsize,
}

/// A value that lives until its last `Arc` is dropped.
///
/// # Invariants
///
/// `counted` came from a box, and its count includes this `Arc`.
pub struct Arc<T> {
    counted: NonNull<Counted<T>>,
    owns: PhantomData<Counted<T>>,
}

// SAFETY: threads share the value, and any of them may drop it: `T` allows both.
unsafe impl<T: Send + Sync> Send for Arc<T> {}
// SAFETY: as above, since a thread with a reference to an `Arc` can clone it.
unsafe impl<T: Send + Sync> Sync for Arc<T> {}

impl<T> Arc<T> {
    /// Shares `value`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. Then `value` is dropped.
    pub fn try_new(value: T) -> io::Result<Self> {
        let counted = boxed(Counted {
            value,
            count: AtomicUsize::new(1),
        })?;
        // INVARIANT: the value is in a box, and its count of 1 stands for this `Arc`.
        Ok(Self {
            counted: NonNull::from(Box::leak(counted)),
            owns: PhantomData,
        })
    }

    /// Whether both `Arc`s point to the same value.
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        this.counted == other.counted
    }

    /// The address of the value.
    pub fn as_ptr(this: &Self) -> *mut T {
        this.counted.as_ptr().cast()
    }

    /// The address of the value. The caller owns the reference of this `Arc` until
    /// [`from_raw`](Self::from_raw).
    pub fn into_raw(this: Self) -> *mut T {
        let value = Self::as_ptr(&this);
        std::mem::forget(this);
        value
    }

    /// Turns an address back into its `Arc`.
    ///
    /// # Safety
    ///
    /// The address is from [`into_raw`](Self::into_raw), and is used once.
    pub unsafe fn from_raw(value: NonNull<T>) -> Self {
        // INVARIANT: the `Arc` of `into_raw` is still counted.
        Self {
            counted: value.cast(),
            owns: PhantomData,
        }
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: by the invariants the value still exists.
        unsafe { self.counted.as_ref() }
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        // The count can't overflow: each counted `Arc` occupies memory.
        self.counted().count.fetch_add(1, Ordering::Relaxed);
        // INVARIANT: the new `Arc` was counted above.
        Self {
            counted: self.counted,
            owns: PhantomData,
        }
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: by the invariants the value still exists.
        unsafe { &self.counted.as_ref().value }
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        // Acquire and release: uses of the value in other threads happen before its drop.
        if self.counted().count.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: by the invariants the value came from a box, and this was its last `Arc`.
            drop(unsafe { Box::from_raw(self.counted.as_ptr()) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_drops_the_value() {
        let value = std::rc::Rc::new(());
        let first = Arc::try_new(value.clone()).unwrap();
        let second = first.clone();
        assert!(Arc::ptr_eq(&first, &second));
        assert!(std::rc::Rc::ptr_eq(&first, &value));
        drop(first);
        assert_eq!(std::rc::Rc::strong_count(&value), 2);
        let raw = NonNull::new(Arc::into_raw(second)).unwrap();
        assert_eq!(std::rc::Rc::strong_count(&value), 2);
        // SAFETY: the address is from `into_raw` above.
        drop(unsafe { Arc::from_raw(raw) });
        assert_eq!(std::rc::Rc::strong_count(&value), 1);
    }
}
