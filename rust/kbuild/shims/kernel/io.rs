// SPDX-License-Identifier: GPL-2.0

//! I/O memory whose layout is a type.

use core::{
    marker::PhantomData,
    ops::Deref, //
};
use stock::error::{
    code::EINVAL,
    Result, //
};

pub use stock::io::*;

/// The layout of I/O memory of at least `SIZE` bytes.
pub struct Region<const SIZE: usize>;

/// The address of I/O memory with the layout `T`.
pub struct MmioRaw<T> {
    addr: usize,
    layout: PhantomData<fn() -> T>,
}

impl<T> Clone for MmioRaw<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for MmioRaw<T> {}

impl<const SIZE: usize> MmioRaw<Region<SIZE>> {
    /// The region of `size` bytes at `addr`; `EINVAL` if it is too short for the layout.
    #[inline]
    pub fn new_region(addr: usize, size: usize) -> Result<Self> {
        if size < SIZE {
            return Err(EINVAL);
        }
        Ok(Self {
            addr,
            layout: PhantomData,
        })
    }

    /// The address.
    #[inline]
    pub fn addr(&self) -> usize {
        self.addr
    }
}

/// Mapped I/O memory.
pub struct Mmio<const SIZE: usize>(stock::io::MmioRaw<SIZE>);

impl<const SIZE: usize> Mmio<SIZE> {
    /// # Safety
    ///
    /// The memory is mapped for as long as the value exists.
    #[inline]
    pub unsafe fn from_raw(raw: MmioRaw<Region<SIZE>>) -> Self {
        let raw = stock::io::MmioRaw::new(raw.addr, SIZE);
        // SAFETY: `new` fails only for a length below `SIZE`.
        Self(unsafe { raw.unwrap_unchecked() })
    }
}

impl<const SIZE: usize> Deref for Mmio<SIZE> {
    type Target = stock::io::Mmio<SIZE>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: By the requirements of `from_raw` the memory is mapped.
        unsafe { stock::io::Mmio::from_raw(&self.0) }
    }
}
