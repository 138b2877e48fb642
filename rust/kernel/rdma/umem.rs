// SPDX-License-Identifier: GPL-2.0

//! Pinned memory of processes, and of the buffers in [`dmabuf`](super::dmabuf).
//!
//! C header: [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h)

use super::{
    mr::AccessFlags,
    while_bound::WhileBound,
    Device,
    Driver, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    device,
    dma::DmaAddress,
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::aref::ARef, //
};

/// Pinned memory, mapped for the device. Memory of a process is charged to the process.
///
/// A umem does not keep the DMA device bound. A driver may keep a umem for longer than the RDMA
/// device is registered. If it drops the umem after its device was unbound, the memory stays pinned
/// and mapped for good.
///
/// # Examples
///
/// ```
/// use crate::rdma::{mr::AccessFlags, umem::Umem, Device, Driver};
///
/// /// Pins memory of the current process and prints where the device finds it.
/// fn pin<T: Driver>(device: &Device<T>, start: u64, length: u64) -> Result<Umem> {
///     let mut umem = Umem::pin(device, start, length, AccessFlags::LOCAL_WRITE)?;
///     // Pages of 4 KiB or of 2 MiB.
///     let shift = umem.best_page_shift(1 << 12 | 1 << 21, start)?;
///     for page in umem.pages(shift)? {
///         pr_debug!("{page:#x}\n");
///     }
///     Ok(umem)
/// }
/// ```
///
/// # Invariants
///
/// The DMA device of the umem is the bound device or an ancestor of it.
pub struct Umem(WhileBound<Owned>);

/// # Invariants
///
/// This owns `raw`, a umem of the RDMA device whose memory `_device` keeps. The umem is released
/// while the DMA device is bound.
pub(super) struct Owned {
    raw: NonNull<bindings::ib_umem>,
    _device: ARef<device::Device>,
}

impl Umem {
    /// Pins `length` bytes at `addr` of the current process. Without a right to write, the device
    /// gets a read-only mapping.
    ///
    /// # Errors
    ///
    /// `ENOMEM` beyond the process's limit of locked memory, `EFAULT` for addresses without memory,
    /// `EINVAL` for a range that wraps, `ESRCH` in a kernel thread, which belongs to no process.
    pub fn pin<T: Driver>(
        device: &Device<T>,
        addr: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        let addr = c_ulong::try_from(addr)?;
        let length = usize::try_from(length)?;
        let access = c_int::try_from(access.0)?;
        if kernel::current!().mm().is_none() {
            return Err(ESRCH);
        }
        // SAFETY: The device is registered, and the current task has an address space, which the
        // core charges.
        let raw = from_err_ptr(unsafe {
            bindings::ib_umem_get_va(device.as_raw(), addr, length, access)
        })?;
        let raw = NonNull::new(raw).ok_or(EINVAL)?;
        // SAFETY: The core has created the umem for this device and this caller.
        Ok(unsafe { Self::from_raw(device, raw) })
    }

    /// Takes over a umem of the caller.
    ///
    /// # Safety
    ///
    /// `raw` was created for `device`, and the caller owns it.
    pub(super) unsafe fn from_raw<T: Driver>(
        device: &Device<T>,
        raw: NonNull<bindings::ib_umem>,
    ) -> Self {
        // INVARIANT: `raw` was created for `device`, and the caller gives it up. `WhileBound` drops
        // the umem only while the bound device is bound. So its ancestors are bound too, among them
        // the DMA device.
        let owned = Owned {
            raw,
            _device: device.memory(),
        };
        Self(WhileBound::new(device, owned))
    }

    /// The umem, tied to the binding.
    pub(super) fn into_inner(self) -> WhileBound<Owned> {
        self.0
    }

    /// The C structure.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_umem {
        self.0.raw.as_ptr()
    }

    /// Binary logarithm n of the largest page size that is supported (bit n of `supported`) and can
    /// describe the memory if the address of the first byte is `iova`.
    pub fn best_page_shift(&mut self, supported: u64, iova: u64) -> Result<u8> {
        // SAFETY: By the type invariants.
        let size = unsafe {
            bindings::ib_umem_find_best_pgsz(self.as_raw(), c_ulong::try_from(supported)?, iova)
        };
        if size == 0 {
            return Err(EINVAL);
        }
        Ok(u8::try_from(size.trailing_zeros())?)
    }

    /// Checks whether the memory can get other access flags: `EACCES` for write access if it was
    /// pinned read-only.
    pub fn check_access(&self, access: AccessFlags) -> Result {
        let flags = bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS as c_int;
        let access = c_int::try_from(access.0)?;
        // SAFETY: By the type invariants.
        to_result(unsafe { bindings::ib_umem_check_rereg(self.as_raw(), flags, access) })
    }

    /// Number of pages of 2^`page_shift` bytes that contain the memory.
    pub fn page_count(&self, page_shift: u8) -> Result<usize> {
        let size = (1 as c_ulong)
            .checked_shl(page_shift.into())
            .ok_or(EINVAL)?;
        // SAFETY: By the type invariants; the size is not 0.
        Ok(unsafe { bindings::ib_umem_num_dma_blocks(self.as_raw(), size) })
    }

    /// The DMA addresses of the pages of 2^`page_shift` bytes that contain the memory. `page_shift`
    /// is that of the kernel's pages, or the last result of
    /// [`best_page_shift`](Self::best_page_shift).
    pub fn pages(&self, page_shift: u8) -> Result<Pages<'_>> {
        let left = self.page_count(page_shift)?;
        let mut iterator = bindings::ib_block_iter::default();
        let size = (1 as c_ulong)
            .checked_shl(page_shift.into())
            .ok_or(EINVAL)?;
        // SAFETY: By the type invariants.
        unsafe {
            bindings::__rdma_umem_block_iter_start(&mut iterator, self.as_raw(), size);
        }
        Ok(Pages {
            iterator,
            mask: u64::MAX << page_shift,
            left,
            _umem: self,
        })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: By the type invariants: `raw` is owned, and the DMA device is bound, so its
        // mapping can be removed.
        unsafe { bindings::ib_umem_release(self.raw.as_ptr()) };
    }
}

// SAFETY: A umem may be released by any thread.
unsafe impl Send for Owned {}

// SAFETY: A umem is not changed through shared references.
unsafe impl Sync for Owned {}

/// Iterator over the pages of a [`Umem`].
pub struct Pages<'a> {
    iterator: bindings::ib_block_iter,
    mask: u64,
    left: usize,
    _umem: &'a Umem,
}

impl Iterator for Pages<'_> {
    type Item = DmaAddress;

    fn next(&mut self) -> Option<DmaAddress> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: The iterator was started over a umem that still exists.
        unsafe { bindings::__rdma_block_iter_next(&mut self.iterator) }
            .then_some(self.iterator.__dma_addr & self.mask)
    }
}
