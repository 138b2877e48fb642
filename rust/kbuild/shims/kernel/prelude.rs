// SPDX-License-Identifier: GPL-2.0

//! The kernel's prelude, with traits for methods that types lack in older series.

pub use stock::prelude::*;

#[cfg(lacks_dma_address)]
pub use crate::coherent::DmaAddressOf as _;
#[cfg(lacks_errno)]
pub use crate::error::code::*;
#[cfg(lacks_interrupt)]
pub use crate::sync::LockWith as _;
#[cfg(lacks_tgid)]
pub use crate::task::Tgid as _;
