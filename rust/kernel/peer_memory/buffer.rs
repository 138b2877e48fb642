// SPDX-License-Identifier: GPL-2.0

//! Buffers of exporters, for which the current process need not have a file descriptor.
//!
//! C header: [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h)

use crate::{
    bindings,
    dma_buf::DmaBuf,
    rdma::{
        dmabuf::LockedDmabuf,
        mr::AccessFlags,
        Device,
        Driver, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*, //
};

/// Pins `length` bytes of a buffer, at least one, from `offset` on.
///
/// The core itself pins only buffers for which the current process has a file descriptor. So the
/// buffer is attached here, as the core would attach it. All later steps and the release are left
/// to the core.
///
/// # Errors
///
/// `EINVAL` for a range beyond the buffer's end, `ENODEV` for a buffer that the exporter has
/// revoked meanwhile; errors of the exporter.
pub fn pin<'a, T: Driver>(
    device: &'a Device<T>,
    buffer: DmaBuf,
    offset: u64,
    length: u64,
    access: AccessFlags,
) -> Result<LockedDmabuf<'a>> {
    let (offset, length) = (usize::try_from(offset)?, usize::try_from(length)?);
    let end = offset.checked_add(length).ok_or(EINVAL)?;
    if length == 0 || end > buffer.size() {
        return Err(EINVAL);
    }
    let mut new = KBox::new(bindings::ib_umem_dmabuf::default(), GFP_KERNEL)?;
    new.umem.ibdev = device.as_raw();
    new.umem.address = offset;
    new.umem.length = length;
    new.umem
        .set_writable((access.without(AccessFlags::LOCAL_WRITE) != access).into());
    new.umem.set_is_dmabuf(1);
    let raw = KBox::into_raw(new);
    // SAFETY: The device is registered and the buffer valid. The callback gets the umem, which is
    // freed after the attachment has ended.
    let attachment = from_err_ptr(unsafe {
        let dma_device = (*device.as_raw()).dma_device;
        bindings::dma_buf_dynamic_attach(buffer.as_raw(), dma_device, &OPERATIONS, raw.cast())
    })
    // SAFETY: The attachment failed, so the umem is still ours.
    .inspect_err(|_| drop(unsafe { KBox::from_raw(raw) }))?;
    // SAFETY: The umem is valid. The exporter may invalidate the attachment already. But
    // `invalidated` reads this member only if there is a mapping, and there is none yet.
    unsafe { (*raw).attach = attachment };
    // From here on the umem owns the attachment and the reference to the buffer.
    let _ = buffer.into_raw();
    // SAFETY: The umem has an attachment.
    unsafe { bindings::ib_umem_dmabuf_revoke_lock(raw) };
    // SAFETY: The umem belongs to this device, is allocated in the way that the core frees it, and
    // was just locked. On an error below it is unlocked and released.
    let locked = unsafe { LockedDmabuf::from_raw(device, NonNull::new(raw).ok_or(EINVAL)?) }?;
    // SAFETY: The reservation is locked, and the attachment is not pinned yet.
    unsafe {
        if (*raw).revoked() != 0 {
            return Err(ENODEV);
        }
        to_result(bindings::dma_buf_pin((*raw).attach))?;
        (*raw).set_pinned(1);
        to_result(bindings::ib_umem_dmabuf_map_pages(raw))?;
    }
    Ok(locked)
}

/// The callbacks for exporters of buffers that [`pin`] attached.
static OPERATIONS: bindings::dma_buf_attach_ops = bindings::dma_buf_attach_ops {
    allow_peer2peer: true,
    invalidate_mappings: Some(invalidated),
};

/// Called when the exporter revokes a buffer: ends the device's accesses, and unmaps and unpins the
/// buffer.
///
/// # Safety
///
/// Called with the reservation of the buffer locked, for an attachment that [`pin`] made.
unsafe extern "C" fn invalidated(attachment: *mut bindings::dma_buf_attachment) {
    // SAFETY: `pin` made the attachment, and the umem is freed after the attachment has ended. The
    // reservation is locked, and guards all changes of the umem.
    unsafe {
        let raw = (*attachment)
            .importer_priv
            .cast::<bindings::ib_umem_dmabuf>();
        if (*raw).revoked() != 0 {
            return;
        }
        if let Some(revoke) = (*raw).pinned_revoke {
            revoke((*raw).private);
        }
        if !(*raw).sgt.is_null() {
            bindings::ib_umem_dmabuf_unmap_pages(raw);
        }
        if (*raw).pinned() != 0 {
            bindings::dma_buf_unpin(attachment);
            (*raw).set_pinned(0);
        }
        (*raw).set_revoked(1);
    }
}
