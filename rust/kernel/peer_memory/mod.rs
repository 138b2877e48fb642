// SPDX-License-Identifier: GPL-2.0

//! Peer memory: the exporters that other modules have registered, and contexts that are attached to
//! them.
//!
//! C header: `include/rdma/peer.h`

pub mod buffer;

use crate::{
    bindings,
    dma_buf::DmaBuf, //
};
use core::ptr::{
    null_mut,
    NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        from_result,
        to_result, //
    },
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            AtomicFlag,
            Relaxed,
            Release, //
        },
        global_lock, //
    }, //
};

/// Maximum number of exporters.
const MAX_EXPORTERS: usize = 16;

/// A registered exporter.
///
/// # Invariants
///
/// The exporter is valid and complete, and its module loaded, until the exporter is unregistered. A
/// reference to the module keeps the exporter registered.
#[derive(Clone, Copy)]
struct Entry(NonNull<bindings::rdma_peer>);

// SAFETY: An exporter is constant, and its callbacks may be called by any thread.
unsafe impl Send for Entry {}

impl Entry {
    fn exporter(&self) -> &bindings::rdma_peer {
        // SAFETY: By the type invariants.
        unsafe { self.0.as_ref() }
    }

    fn name(&self) -> &CStr {
        // SAFETY: By the type invariants: `rdma_peer_register` has checked that the exporter has a
        // name.
        unsafe { CStr::from_char_ptr(self.exporter().name) }
    }
}

global_lock! {
    // SAFETY: Used only by `with_exporters`, which checks that the list is initialized.
    unsafe(uninit) static EXPORTERS: Mutex<[Option<Entry>; MAX_EXPORTERS]> = [None; MAX_EXPORTERS];
}

/// Whether [`start`] was called, and whether it has finished.
static STARTED: AtomicFlag = AtomicFlag::new(false);
static READY: AtomicFlag = AtomicFlag::new(false);

/// Initializes the list of exporters. Called before the module's first device.
pub fn start() {
    if !STARTED.xchg(true, Relaxed) {
        // SAFETY: The flag admits one caller, once.
        unsafe { EXPORTERS.init() };
        READY.store(true, Release);
    }
}

type Exporters = [Option<Entry>; MAX_EXPORTERS];

/// Runs `work` on the list of exporters, with its lock held.
fn with_exporters<R>(work: impl FnOnce(&mut Exporters) -> Result<R>) -> Result<R> {
    if !READY.load(Acquire) {
        return Err(ENODEV);
    }
    work(&mut EXPORTERS.lock())
}

/// Registers an exporter.
///
/// # Safety
///
/// `exporter` is valid. If this succeeds, `exporter` and everything it points to stay valid and
/// unchanged until the exporter is unregistered.
#[no_mangle]
pub unsafe extern "C" fn rdma_peer_register(exporter: *const bindings::rdma_peer) -> c_int {
    from_result(|| {
        let raw = NonNull::new(exporter.cast_mut()).ok_or(EINVAL)?;
        // SAFETY: `exporter` is valid until it is unregistered.
        let exporter = unsafe { raw.as_ref() };
        if exporter.name.is_null()
            || exporter.get_context_private_data.is_none()
            || exporter.put_context_private_data.is_none()
            || exporter.get_range.is_none()
        {
            return Err(EINVAL);
        }
        // INVARIANT: `exporter` stays valid and unchanged while it is registered. It has a name and
        // all functions, as checked above.
        let new = Entry(raw);
        let length = new.name().to_bytes_with_nul().len();
        if length <= 1 || length > bindings::RDMA_PEER_NAME_MAX as usize {
            return Err(EINVAL);
        }
        with_exporters(|exporters| {
            if exporters
                .iter()
                .flatten()
                .any(|other| other.name() == new.name())
            {
                return Err(EEXIST);
            }
            *exporters
                .iter_mut()
                .find(|place| place.is_none())
                .ok_or(ENOSPC)? = Some(new);
            Ok(0)
        })
    })
}

/// Unregisters an exporter.
///
/// # Safety
///
/// No context is attached to the exporter, and its module is being removed: `try_module_get()`
/// fails.
#[no_mangle]
pub unsafe extern "C" fn rdma_peer_unregister(exporter: *const bindings::rdma_peer) {
    // Fails only before `start`, when there are no exporters.
    let _ = with_exporters(|exporters| {
        for place in exporters {
            if place.is_some_and(|entry| entry.0.as_ptr().cast_const() == exporter) {
                *place = None;
            }
        }
        Ok(())
    });
}

/// Memory of another driver, as its exporter names it.
pub struct PeerMemory {
    /// The buffer that contains the memory.
    pub buffer: DmaBuf,
    /// Offset of the first byte in the buffer.
    pub offset: u64,
}

/// A context that is attached to an exporter. It holds a reference to the exporter's module.
///
/// # Invariants
///
/// `data` is what the exporter returned for this context.
pub struct ExporterContext {
    owner: OwnerModule,
    data: *mut c_void,
}

// SAFETY: The callbacks of an exporter may be called by any thread.
unsafe impl Send for ExporterContext {}

// SAFETY: The callbacks of an exporter may be called by several threads at the same time.
unsafe impl Sync for ExporterContext {}

/// A reference to the module of an exporter.
///
/// # Invariants
///
/// This owns a reference to the module of the exporter.
struct OwnerModule(Entry);

impl Drop for OwnerModule {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::module_put(self.0.exporter().owner) };
    }
}

impl ExporterContext {
    /// Attaches a new context to the exporter `name`. The context has the number `id`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such exporter, and errors of the exporter.
    pub fn attach(name: &CStr, id: u64) -> Result<Self> {
        let owner = with_exporters(|exporters| {
            let found = exporters
                .iter()
                .flatten()
                .find(|entry| entry.name() == name);
            let entry = *found.ok_or(EINVAL)?;
            // SAFETY: The exporter is registered, so its module exists. Its removal may have begun.
            if !unsafe { bindings::try_module_get(entry.exporter().owner) } {
                return Err(EINVAL);
            }
            // INVARIANT: `try_module_get()` took the reference.
            Ok(OwnerModule(entry))
        })?;
        let get = owner.0.exporter().get_context_private_data.ok_or(EINVAL)?;
        // SAFETY: `owner` keeps the module, and the callback accepts any number.
        let data = from_err_ptr(unsafe { get(id) })?;
        // INVARIANT: The callback returned `data` for this context.
        Ok(Self { owner, data })
    }

    /// Finds memory of the context; `None` if the address does not belong to the exporter.
    ///
    /// # Errors
    ///
    /// Errors of the exporter.
    pub fn range(&self, address: u64, length: u64) -> Result<Option<PeerMemory>> {
        let get_range = self.owner.0.exporter().get_range.ok_or(EINVAL)?;
        let mut found = bindings::rdma_peer_range {
            dmabuf: null_mut(),
            offset: 0,
        };
        // SAFETY: By the type invariants, and the range is writable.
        let result = to_result(unsafe { get_range(self.data, address, length, &mut found) });
        match result {
            Ok(()) => {
                let buffer = NonNull::new(found.dmabuf).ok_or(EINVAL)?;
                Ok(Some(PeerMemory {
                    // SAFETY: The exporter has given a reference.
                    buffer: unsafe { DmaBuf::from_raw(buffer) },
                    offset: found.offset,
                }))
            }
            Err(error) if error == ENXIO => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for ExporterContext {
    fn drop(&mut self) {
        if let Some(put) = self.owner.0.exporter().put_context_private_data {
            // SAFETY: By the type invariants; `data` is not used afterwards.
            unsafe { put(self.data) };
        }
    }
}
