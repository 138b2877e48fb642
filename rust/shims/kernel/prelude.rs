// SPDX-License-Identifier: GPL-2.0

//! The kernel's prelude, and with it the methods that types lack.

pub use stock::prelude::*;

#[cfg(lacks_dma_address)]
pub use crate::coherent::DmaAddressOf as _;
#[cfg(lacks_errno)]
pub use crate::error::code::*;
#[cfg(lacks_interrupt)]
pub use crate::sync::LockWith as _;
#[cfg(lacks_tgid)]
pub use crate::task::Tgid as _;
