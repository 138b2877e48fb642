// SPDX-License-Identifier: GPL-2.0

//! The kernel crate of an older series, with the names of the newest series.
//!
//! Our crates are compiled with this crate in place of the kernel's if the kernel lacks a name that
//! they use. Each module adds the names of one probe, and re-exports all other names.

extern crate kernel as stock;

pub use stock::*;

pub mod bindings;
#[cfg(lacks_dma_address)]
mod coherent;
#[cfg(lacks_device_table)]
pub mod device_id;
#[cfg(lacks_errno)]
pub mod error;
#[cfg(lacks_faux_device)]
pub mod faux;
#[cfg(lacks_interrupt)]
pub mod interrupt;
#[cfg(lacks_io_region)]
pub mod io;
#[cfg(lacks_this_module)]
mod module;
pub mod prelude;
pub mod sync;
#[cfg(lacks_tgid)]
pub mod task;

#[cfg(lacks_this_module)]
pub use module::ModuleMetadata;
