// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Guest memory as a device sees it: DMA addresses that map files, whose descriptors the VM's
//! monitor passes.
//!
//! A [`DmaSpace`] is the DMA map of one VM. The thread that serves the monitor maps and unmaps
//! regions. A worker calls [`enter`](DmaSpace::enter), which pins the present snapshot of the map
//! and returns a [`DmaView`], from which the worker gets slices of guest memory. Entering is
//! lock-free and its cost does not depend on the size of the map. A change of the map publishes a
//! new snapshot. [`DmaSpace::unmap`] returns when no view of an older snapshot is left, so that the
//! monitor may then reuse the memory. Hence a worker holds a view only for a short piece of work,
//! and the thread that unmaps must not hold a view.
//!
//! The guest may change its memory during every access, so there are no references into guest
//! memory: data is copied, and words that synchronize are accessed as atomics. Words are in host
//! byte order; virtio's words are little-endian.
//!
//! Guest memory must be a memfd or a file on tmpfs or hugetlbfs. Any other file system could block
//! an access for any time, and thus block a worker that serves all VMs. An access to a page that
//! the host can't provide raises SIGBUS. A handler (`fault.rs`) turns this into [lost
//! memory](DmaSpace::lost) of only that VM.

#![deny(unsafe_code)]

mod advice;
mod copy;
mod error;
mod fault;
mod fills;
mod left_behind;
mod mapping;
mod pace;
mod slice;
mod space;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::{DmaError, LostMemory, MapError};
pub use fills::count_filled_pages;
pub use mapping::Region;
pub use slice::{DmaSlice, DmaSliceMut};
pub use space::{DmaRegion, DmaSpace, DmaView, MAX_REGIONS};

/// Addresses and lengths of regions are multiples of this number of bytes.
pub const PAGE_SIZE: u64 = 4096;
