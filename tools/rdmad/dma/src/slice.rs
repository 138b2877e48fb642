// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Access to a contiguous piece of guest memory.

use std::ops::Deref;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use vm_memory::{AtomicInteger, VolatileMemory, VolatileMemoryError, VolatileSlice};

use crate::copy::copy;
use crate::DmaError;

/// A piece of guest memory that may be read.
#[derive(Clone, Copy, Debug)]
pub struct DmaSlice<'view> {
    memory: VolatileSlice<'view>,
}

/// A piece of guest memory that may be read and written.
#[derive(Clone, Copy, Debug)]
pub struct DmaSliceMut<'view> {
    slice: DmaSlice<'view>,
}

impl<'view> DmaSlice<'view> {
    pub(crate) fn new(memory: VolatileSlice<'view>) -> Self {
        Self { memory }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// `len` bytes of this slice from `offset` on.
    #[inline]
    pub fn subslice(&self, offset: usize, len: usize) -> Result<Self, DmaError> {
        let memory = self
            .memory
            .subslice(offset, len)
            .map_err(|_| DmaError::OutOfBounds)?;
        Ok(Self { memory })
    }

    /// Copies the bytes from `offset` on to `out`, filling it.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), DmaError> {
        self.subslice(offset, out.len())?.memory.copy_to(out);
        Ok(())
    }

    /// Copies this slice to `target`, which is in guest memory of this VM or another. The shorter
    /// slice determines the number of bytes copied, which is returned. The slices may overlap.
    #[inline]
    pub fn copy_to(&self, target: &DmaSliceMut<'_>) -> usize {
        copy(&self.memory, &target.slice.memory);
        self.len().min(target.len())
    }

    /// Loads the aligned 16-bit word at `offset`.
    #[inline]
    pub fn load_u16(&self, offset: usize, order: Ordering) -> Result<u16, DmaError> {
        Ok(self.atomic::<AtomicU16>(offset)?.load(order))
    }

    /// Loads the aligned 32-bit word at `offset`.
    #[inline]
    pub fn load_u32(&self, offset: usize, order: Ordering) -> Result<u32, DmaError> {
        Ok(self.atomic::<AtomicU32>(offset)?.load(order))
    }

    /// Loads the aligned 64-bit word at `offset`.
    #[inline]
    pub fn load_u64(&self, offset: usize, order: Ordering) -> Result<u64, DmaError> {
        Ok(self.atomic::<AtomicU64>(offset)?.load(order))
    }

    #[inline]
    fn atomic<T: AtomicInteger>(&self, offset: usize) -> Result<&T, DmaError> {
        self.memory
            .get_atomic_ref::<T>(offset)
            .map_err(|error| match error {
                VolatileMemoryError::Misaligned { .. } => DmaError::Misaligned,
                _ => DmaError::OutOfBounds,
            })
    }
}

impl<'view> DmaSliceMut<'view> {
    pub(crate) fn new(memory: VolatileSlice<'view>) -> Self {
        Self::of(DmaSlice::new(memory))
    }

    /// The same piece, which lies in a writable region.
    pub(crate) fn of(slice: DmaSlice<'view>) -> Self {
        Self { slice }
    }

    /// `len` bytes of this slice from `offset` on.
    #[inline]
    pub fn subslice(&self, offset: usize, len: usize) -> Result<Self, DmaError> {
        let slice = self.slice.subslice(offset, len)?;
        Ok(Self { slice })
    }

    /// Copies `data` to the bytes from `offset` on.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), DmaError> {
        self.slice
            .subslice(offset, data.len())?
            .memory
            .copy_from(data);
        Ok(())
    }

    /// Stores to the aligned 16-bit word at `offset`.
    #[inline]
    pub fn store_u16(&self, offset: usize, value: u16, order: Ordering) -> Result<(), DmaError> {
        self.slice.atomic::<AtomicU16>(offset)?.store(value, order);
        Ok(())
    }

    /// Stores to the aligned 32-bit word at `offset`.
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32, order: Ordering) -> Result<(), DmaError> {
        self.slice.atomic::<AtomicU32>(offset)?.store(value, order);
        Ok(())
    }

    /// Stores to the aligned 64-bit word at `offset`.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) -> Result<(), DmaError> {
        self.slice.atomic::<AtomicU64>(offset)?.store(value, order);
        Ok(())
    }

    /// Replaces the aligned 64-bit word at `offset` by `new` if it equals `expected`. Returns the
    /// old value. The operation is sequentially consistent, and atomic with respect to the VM's
    /// CPUs and all other users of the memory.
    #[inline]
    pub fn compare_exchange_u64(
        &self,
        offset: usize,
        expected: u64,
        new: u64,
    ) -> Result<u64, DmaError> {
        let word: &AtomicU64 = self.slice.atomic(offset)?;
        let (Ok(old) | Err(old)) =
            word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst);
        Ok(old)
    }

    /// Adds `addend`, wrapping, to the aligned 64-bit word at `offset`. Returns the old value.
    /// Atomic like [`compare_exchange_u64`](Self::compare_exchange_u64).
    #[inline]
    pub fn fetch_add_u64(&self, offset: usize, addend: u64) -> Result<u64, DmaError> {
        Ok(self
            .slice
            .atomic::<AtomicU64>(offset)?
            .fetch_add(addend, Ordering::SeqCst))
    }
}

impl<'view> Deref for DmaSliceMut<'view> {
    type Target = DmaSlice<'view>;

    fn deref(&self) -> &DmaSlice<'view> {
        &self.slice
    }
}
