// SPDX-License-Identifier: GPL-2.0

//! The peers that other modules have registered, and contexts that are attached to them.
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

/// Maximum number of peers.
const MAX_PEERS: usize = 16;

/// A registered peer.
///
/// # Invariants
///
/// The peer is valid and complete, and its module loaded, until the peer is unregistered. A
/// reference to the module keeps the peer registered.
#[derive(Clone, Copy)]
struct Entry(NonNull<bindings::rdma_peer>);

// SAFETY: A peer is constant, and its callbacks may be called by any thread.
unsafe impl Send for Entry {}

impl Entry {
    fn peer(&self) -> &bindings::rdma_peer {
        // SAFETY: By the type invariants.
        unsafe { self.0.as_ref() }
    }

    fn name(&self) -> &CStr {
        // SAFETY: By the type invariants: `rdma_peer_register` has checked that the peer has a
        // name.
        unsafe { CStr::from_char_ptr(self.peer().name) }
    }
}

global_lock! {
    // SAFETY: Used only by `with_peers`, which checks that the list is initialized.
    unsafe(uninit) static PEERS: Mutex<[Option<Entry>; MAX_PEERS]> = [None; MAX_PEERS];
}

/// Whether [`start`] was called, and whether it has finished.
static STARTED: AtomicFlag = AtomicFlag::new(false);
static READY: AtomicFlag = AtomicFlag::new(false);

/// Initializes the list of peers. Called before the module's first device.
pub fn start() {
    if !STARTED.xchg(true, Relaxed) {
        // SAFETY: The flag admits one caller, once.
        unsafe { PEERS.init() };
        READY.store(true, Release);
    }
}

type Peers = [Option<Entry>; MAX_PEERS];

/// Runs `work` on the list of peers, with its lock held.
fn with_peers<R>(work: impl FnOnce(&mut Peers) -> Result<R>) -> Result<R> {
    if !READY.load(Acquire) {
        return Err(ENODEV);
    }
    work(&mut PEERS.lock())
}

/// Registers a peer.
///
/// # Safety
///
/// `peer` is valid. If this succeeds, `peer` and everything it points to stay valid and unchanged
/// until the peer is unregistered.
#[no_mangle]
pub unsafe extern "C" fn rdma_peer_register(peer: *const bindings::rdma_peer) -> c_int {
    from_result(|| {
        let raw = NonNull::new(peer.cast_mut()).ok_or(EINVAL)?;
        // SAFETY: By the safety requirements.
        let peer = unsafe { raw.as_ref() };
        if peer.name.is_null()
            || peer.get_context_private_data.is_none()
            || peer.put_context_private_data.is_none()
            || peer.get_range.is_none()
        {
            return Err(EINVAL);
        }
        // INVARIANT: By the safety requirements and the check above.
        let new = Entry(raw);
        let length = new.name().to_bytes_with_nul().len();
        if length <= 1 || length > bindings::RDMA_PEER_NAME_MAX as usize {
            return Err(EINVAL);
        }
        with_peers(|peers| {
            if peers
                .iter()
                .flatten()
                .any(|other| other.name() == new.name())
            {
                return Err(EEXIST);
            }
            *peers
                .iter_mut()
                .find(|place| place.is_none())
                .ok_or(ENOSPC)? = Some(new);
            Ok(0)
        })
    })
}

/// Unregisters a peer.
///
/// # Safety
///
/// No context is attached to the peer, and its module is being removed: `try_module_get()` fails.
#[no_mangle]
pub unsafe extern "C" fn rdma_peer_unregister(peer: *const bindings::rdma_peer) {
    // Fails only before `start`, when there are no peers.
    let _ = with_peers(|peers| {
        for place in peers {
            if place.is_some_and(|entry| entry.0.as_ptr().cast_const() == peer) {
                *place = None;
            }
        }
        Ok(())
    });
}

/// Memory of a peer.
pub struct PeerRange {
    /// The buffer that contains the memory.
    pub buffer: DmaBuf,
    /// Offset of the first byte in the buffer.
    pub offset: u64,
}

/// A context that is attached to a peer. It holds a reference to the peer's module.
///
/// # Invariants
///
/// `data` is what the peer returned for this context.
pub struct PeerContext {
    owner: OwnerModule,
    data: *mut c_void,
}

// SAFETY: The callbacks of a peer may be called by any thread.
unsafe impl Send for PeerContext {}

// SAFETY: The callbacks of a peer may be called by several threads at the same time.
unsafe impl Sync for PeerContext {}

/// A reference to the module of a peer.
///
/// # Invariants
///
/// This owns a reference to the module of the peer.
struct OwnerModule(Entry);

impl Drop for OwnerModule {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::module_put(self.0.peer().owner) };
    }
}

impl PeerContext {
    /// Attaches a new context to the peer `name`. The context has the number `id`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such peer, and errors of the peer.
    pub fn attach(name: &CStr, id: u64) -> Result<Self> {
        let owner = with_peers(|peers| {
            let found = peers.iter().flatten().find(|entry| entry.name() == name);
            let entry = *found.ok_or(EINVAL)?;
            // SAFETY: The peer is registered, so its module exists, though it may be being removed.
            if !unsafe { bindings::try_module_get(entry.peer().owner) } {
                return Err(EINVAL);
            }
            // INVARIANT: `try_module_get()` took the reference.
            Ok(OwnerModule(entry))
        })?;
        let get = owner.0.peer().get_context_private_data.ok_or(EINVAL)?;
        // SAFETY: `owner` keeps the module, and the callback accepts any number.
        let data = from_err_ptr(unsafe { get(id) })?;
        // INVARIANT: The callback returned `data` for this context.
        Ok(Self { owner, data })
    }

    /// Finds memory of the context; `None` if the address does not belong to the peer.
    ///
    /// # Errors
    ///
    /// Errors of the peer.
    pub fn range(&self, address: u64, length: u64) -> Result<Option<PeerRange>> {
        let get_range = self.owner.0.peer().get_range.ok_or(EINVAL)?;
        let mut found = bindings::rdma_peer_range {
            dmabuf: null_mut(),
            offset: 0,
        };
        // SAFETY: By the type invariants, and the range is writable.
        let result = to_result(unsafe { get_range(self.data, address, length, &mut found) });
        match result {
            Ok(()) => {
                let buffer = NonNull::new(found.dmabuf).ok_or(EINVAL)?;
                Ok(Some(PeerRange {
                    // SAFETY: The peer has given a reference.
                    buffer: unsafe { DmaBuf::from_raw(buffer) },
                    offset: found.offset,
                }))
            }
            Err(error) if error == ENXIO => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for PeerContext {
    fn drop(&mut self) {
        if let Some(put) = self.owner.0.peer().put_context_private_data {
            // SAFETY: By the type invariants; `data` is not used afterwards.
            unsafe { put(self.data) };
        }
    }
}
