// SPDX-License-Identifier: GPL-2.0

//! Exporters of peer memory: drivers whose device memory has addresses of its own, and is a source
//! and target of RDMA.
//!
//! C header: `include/rdma/peer.h`

use crate::{
    bindings,
    dma_buf::DmaBuf, //
};
use core::marker::PhantomData;
use kernel::{
    error::{
        from_result,
        to_result, //
    },
    prelude::*,
    ModuleMetadata, //
};

/// Peer memory: memory of an exporter.
pub struct Range {
    /// The buffer that contains the memory.
    pub buffer: DmaBuf,
    /// Offset of the first byte in the buffer. The offset equals the address that was passed to
    /// [`get_range`](Exporter::get_range), modulo the page size.
    pub offset: u64,
}

/// An exporter. `Self` is the exporter's data of one context. A process gets such a context when it
/// opens an RDMA device with this exporter.
///
/// The data is dropped together with the context. All callbacks may sleep.
#[vtable]
pub trait Exporter: Send + Sync + Sized + 'static {
    /// The module of the implementation, `crate::LocalModule`.
    type OwnerModule: ModuleMetadata;

    /// The name by which processes select the exporter.
    const NAME: &'static CStr;

    /// Called when a process opens a device with this exporter. The process and the exporter have
    /// agreed on the number `peer_id`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an unknown number. Any error is returned to the process.
    fn get_context(peer_id: u64) -> Result<KBox<Self>>;

    /// Finds memory of the context; `None` if the address belongs to the process and not to the
    /// exporter.
    ///
    /// # Errors
    ///
    /// The registration of the memory fails with the returned error.
    fn get_range(&self, address: u64, length: u64) -> Result<Option<Range>>;
}

/// The registration of an exporter, which processes can select. Contexts that are attached to the
/// exporter hold a reference to its module.
///
/// # Invariants
///
/// The exporter is registered by the address of `table`. The address of a constant may differ from
/// use to use.
pub struct Registration<T: Exporter> {
    table: &'static Table,
    _exporter: PhantomData<T>,
}

/// The C structure of an exporter.
#[repr(transparent)]
struct Table(bindings::rdma_peer);

// SAFETY: Nothing writes the table, and everything that it points to exists as long as its module.
unsafe impl Sync for Table {}

impl<T: Exporter> Registration<T> {
    const TABLE: &'static Table = &Table(bindings::rdma_peer {
        owner: <T::OwnerModule as ModuleMetadata>::THIS_MODULE.as_ptr(),
        name: kernel::str::as_char_ptr_in_const_context(T::NAME),
        get_context_private_data: Some(get_context::<T>),
        put_context_private_data: Some(put_context::<T>),
        get_range: Some(get_range::<T>),
    });

    /// Registers the exporter.
    ///
    /// # Errors
    ///
    /// `EEXIST` if an exporter of this name is registered, `EINVAL` for a name that is too long,
    /// `ENOSPC` if there are too many exporters.
    pub fn new() -> Result<Self> {
        let table = Self::TABLE;
        // SAFETY: The table lives as long as the module, whose end drops the registration.
        to_result(unsafe { bindings::rdma_peer_register(&table.0) })?;
        // INVARIANT: The exporter is registered now.
        Ok(Self {
            table,
            _exporter: PhantomData,
        })
    }
}

impl<T: Exporter> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants. No context is left, since each of them keeps the module
        // loaded.
        unsafe { bindings::rdma_peer_unregister(&self.table.0) };
    }
}

/// # Safety
///
/// Called on behalf of a process for the exporter `T`.
unsafe extern "C" fn get_context<T: Exporter>(peer_id: u64) -> *mut c_void {
    T::get_context(peer_id).map_or_else(Error::to_ptr, |context| KBox::into_raw(context).cast())
}

/// # Safety
///
/// `context` was returned by [`get_context`] of the same exporter, and is not used any more.
unsafe extern "C" fn put_context<T: Exporter>(context: *mut c_void) {
    // SAFETY: `context` is a box of `get_context` that nothing uses any more.
    drop(unsafe { KBox::from_raw(context.cast::<T>()) });
}

/// # Safety
///
/// `context` was returned by [`get_context`] of the same exporter and not put yet, `range` is
/// writable.
unsafe extern "C" fn get_range<T: Exporter>(
    context: *mut c_void,
    address: u64,
    length: u64,
    range: *mut bindings::rdma_peer_range,
) -> c_int {
    from_result(|| {
        // SAFETY: `context` is a box of `get_context` that was not put yet.
        let context = unsafe { &*context.cast::<T>() };
        let Range { buffer, offset } = context.get_range(address, length)?.ok_or(ENXIO)?;
        let found = bindings::rdma_peer_range {
            dmabuf: buffer.into_raw(),
            offset,
        };
        // SAFETY: `range` is writable. The reference becomes the caller's.
        unsafe { range.write(found) };
        Ok(0)
    })
}
