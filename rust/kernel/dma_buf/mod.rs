// SPDX-License-Identifier: GPL-2.0

//! DMA buffers: memory of one driver that devices of other drivers access in place.
//!
//! | module | content |
//! |---|---|
//! | [`pages`] | buffers that consist of pages of the kernel |
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

pub mod pages;

use crate::bindings;
use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};

/// A reference to a buffer.
///
/// # Examples
///
/// ```
/// use crate::dma_buf::{pages::Pages, DmaBuf};
///
/// let buffer: DmaBuf = Pages::new(1, |_| 0)?.export::<crate::LocalModule>(c"example")?;
/// let second = buffer.clone();
/// drop(buffer);
/// // The buffer lives as long as there is a reference.
/// assert!(second.size() == kernel::page::PAGE_SIZE);
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// The pointer is to a valid buffer, and this owns one reference to it.
pub struct DmaBuf(NonNull<bindings::dma_buf>);

// SAFETY: References to buffers are counted atomically, and may be given up by any thread.
unsafe impl Send for DmaBuf {}

// SAFETY: Nothing of the buffer is changed through shared references.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Takes over a reference of the caller.
    ///
    /// # Safety
    ///
    /// `raw` is a valid buffer. The caller owns a reference to `raw`, and gives it up.
    pub unsafe fn from_raw(raw: NonNull<bindings::dma_buf>) -> Self {
        // INVARIANT: `raw` is a valid buffer, and the caller's reference becomes this one's.
        Self(raw)
    }

    /// Passes the reference to the caller.
    pub fn into_raw(self) -> *mut bindings::dma_buf {
        ManuallyDrop::new(self).as_raw()
    }

    /// The C structure.
    pub fn as_raw(&self) -> *mut bindings::dma_buf {
        self.0.as_ptr()
    }

    /// Size of the buffer in bytes.
    pub fn size(&self) -> usize {
        // SAFETY: By the type invariants; the size never changes.
        unsafe { (*self.as_raw()).size }
    }
}

impl Clone for DmaBuf {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariants; the references of a buffer are those of its file.
        unsafe { bindings::get_file((*self.as_raw()).file) };
        // INVARIANT: The reference was taken above.
        Self(self.0)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::dma_buf_put(self.as_raw()) };
    }
}
