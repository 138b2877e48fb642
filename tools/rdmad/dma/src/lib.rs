// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Guest memory as a device sees it: DMA addresses, mapped from file descriptors that the VM's
//! monitor hands over.
//!
//! A [`DmaSpace`] is the DMA map of one VM. Its owner (the thread that talks to the monitor) maps
//! and unmaps regions; workers [`enter`](DmaSpace::enter) it, which pins the map as it is at that
//! moment, and take slices of guest memory from the [`DmaView`] they get. Entering is lock-free and
//! costs the same whatever the map holds. A change of the map publishes a new snapshot;
//! [`DmaSpace::unmap`] returns when no view of an older snapshot is left, so that the monitor may
//! then reuse the memory. Hence a worker keeps a view for one slice of work only, and the thread
//! that unmaps must not hold one.
//!
//! The guest races with every access, so there is no reference into its memory: data is copied in
//! and out, and words that synchronise are accessed as atomics. Words are in memory order; virtio's
//! are little-endian.
//!
//! Memory must come from a file of memory: a memfd or a file on tmpfs or hugetlbfs. Any other file
//! system could keep an access, and with it a worker that serves all VMs, waiting for as long as it
//! likes. A page that the host can't provide ends in SIGBUS, which a handler (`fault.rs`) turns
//! into [lost memory](DmaSpace::lost) of that VM alone.

#![deny(unsafe_code)]

mod error;
mod fault;
mod mapping;
mod slice;
mod space;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::{DmaError, LostMemory, MapError};
pub use slice::{DmaSlice, DmaSliceMut};
pub use space::{DmaSpace, DmaView, MAX_REGIONS};

/// Addresses and lengths of regions are multiples of this.
pub const PAGE_SIZE: u64 = 4096;
