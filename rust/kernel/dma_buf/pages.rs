// SPDX-License-Identifier: GPL-2.0

//! Buffers that consist of pages of the kernel, which never move.

use super::DmaBuf;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    page::{
        Page,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    ModuleMetadata, //
};

/// Pages for a buffer that is not exported yet.
///
/// # Examples
///
/// ```
/// use crate::dma_buf::pages::Pages;
///
/// let buffer = Pages::new(2, |at| at as u8)?.export::<crate::LocalModule>(c"example")?;
/// assert!(buffer.size() == 2 * kernel::page::PAGE_SIZE);
/// # Ok::<(), Error>(())
/// ```
pub struct Pages(KVec<Page>);

impl Pages {
    /// Allocates `count` pages. Byte `n` of the pages, counted from the start of the first page, is
    /// `byte(n)`.
    pub fn new(count: usize, byte: impl Fn(usize) -> u8) -> Result<Self> {
        let mut pages = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut contents = KVec::with_capacity(PAGE_SIZE, GFP_KERNEL)?;
        for number in 0..count {
            let start = number * PAGE_SIZE;
            contents.clear();
            for at in start..start + PAGE_SIZE {
                contents.push(byte(at), GFP_KERNEL)?;
            }
            let page = Page::alloc_page(GFP_KERNEL)?;
            // SAFETY: The source has a page's bytes, and there is no other reference to the page.
            unsafe { page.write_raw(contents.as_ptr(), 0, PAGE_SIZE) }?;
            pages.push(page, GFP_KERNEL)?;
        }
        Ok(Self(pages))
    }

    /// Exports the pages as a buffer. The pages are freed together with the buffer. The buffer
    /// holds a reference to module `M`, whose code it calls.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are no pages.
    pub fn export<M: ModuleMetadata>(self, name: &'static CStr) -> Result<DmaBuf> {
        let size = self.0.len() << PAGE_SHIFT;
        if size == 0 {
            return Err(EINVAL);
        }
        let pages = KBox::into_raw(KBox::new(self, GFP_KERNEL)?);
        let info = bindings::dma_buf_export_info {
            exp_name: name.as_char_ptr(),
            owner: M::THIS_MODULE.as_ptr(),
            ops: &OPERATIONS,
            size,
            flags: bindings::O_RDWR as c_int,
            priv_: pages.cast(),
            ..bindings::dma_buf_export_info::default()
        };
        // SAFETY: The description is complete, and the pages live until the buffer is released.
        let raw = from_err_ptr(unsafe { bindings::dma_buf_export(&info) })
            // SAFETY: No buffer was created, so the pages are still ours.
            .inspect_err(|_| drop(unsafe { KBox::from_raw(pages) }))?;
        // From here on `release` owns the pages.
        let raw = NonNull::new(raw).ok_or(EINVAL)?;
        // SAFETY: The reference to the new buffer is ours.
        Ok(unsafe { DmaBuf::from_raw(raw) })
    }

    /// Maps the pages for a device.
    ///
    /// # Safety
    ///
    /// `device` is valid, and the caller gives the table to [`unmap`] before the pages are freed.
    unsafe fn map(
        &self,
        device: *mut bindings::device,
        direction: bindings::dma_data_direction,
    ) -> Result<KBox<bindings::sg_table>> {
        let mut list = KVec::with_capacity(self.0.len(), GFP_KERNEL)?;
        for page in &self.0 {
            list.push(page.as_ptr(), GFP_KERNEL)?;
        }
        let mut table = KBox::new(bindings::sg_table::default(), GFP_KERNEL)?;
        // SAFETY: The list has the stated number of pages, at least one: `export` refuses 0.
        to_result(unsafe {
            bindings::sg_alloc_table_from_pages_segment(
                &mut *table,
                list.as_mut_ptr(),
                u32::try_from(list.len())?,
                0,
                list.len() << PAGE_SHIFT,
                u32::MAX,
                bindings::GFP_KERNEL,
            )
        })?;
        // SAFETY: `device` is valid, and the table was filled above.
        to_result(unsafe { bindings::dma_map_sgtable(device, &mut *table, direction, 0) })
            // SAFETY: The table was filled above and is not mapped.
            .inspect_err(|_| unsafe { bindings::sg_free_table(&mut *table) })?;
        Ok(table)
    }
}

/// The callbacks of a buffer whose private data is [`Pages`].
static OPERATIONS: bindings::dma_buf_ops = bindings::dma_buf_ops {
    attach: None,
    detach: None,
    pin: Some(pin),
    unpin: Some(unpin),
    map_dma_buf: Some(map),
    unmap_dma_buf: Some(unmap),
    release: Some(release),
    begin_cpu_access: None,
    end_cpu_access: None,
    mmap: None,
    vmap: None,
    vunmap: None,
};

/// # Safety
///
/// Called by the core. Does nothing, since the pages never move.
unsafe extern "C" fn pin(_attachment: *mut bindings::dma_buf_attachment) -> c_int {
    0
}

/// # Safety
///
/// Called by the core, after [`pin`].
unsafe extern "C" fn unpin(_attachment: *mut bindings::dma_buf_attachment) {}

/// # Safety
///
/// Called by the core for an attachment to a buffer of [`Pages`].
unsafe extern "C" fn map(
    attachment: *mut bindings::dma_buf_attachment,
    direction: bindings::dma_data_direction,
) -> *mut bindings::sg_table {
    // SAFETY: The attachment's buffer is one of `Pages`; the core calls `unmap` before `release`.
    let table = unsafe {
        let pages = &*(*(*attachment).dmabuf).priv_.cast::<Pages>();
        pages.map((*attachment).dev, direction)
    };
    table.map_or_else(Error::to_ptr, KBox::into_raw)
}

/// # Safety
///
/// Called by the core with the table that [`map`] returned for the attachment.
unsafe extern "C" fn unmap(
    attachment: *mut bindings::dma_buf_attachment,
    table: *mut bindings::sg_table,
    direction: bindings::dma_data_direction,
) {
    // SAFETY: `map` returned the table for the attachment: a box that is mapped for this device.
    unsafe {
        bindings::dma_unmap_sgtable((*attachment).dev, table, direction, 0);
        bindings::sg_free_table(table);
        drop(KBox::from_raw(table));
    }
}

/// # Safety
///
/// Called by the core when the last reference to a buffer of [`Pages`] is gone.
unsafe extern "C" fn release(buffer: *mut bindings::dma_buf) {
    // SAFETY: The last reference to the buffer is gone, and `export` gave the box up.
    drop(unsafe { KBox::from_raw((*buffer).priv_.cast::<Pages>()) });
}
