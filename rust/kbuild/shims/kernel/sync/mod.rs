// SPDX-License-Identifier: GPL-2.0

//! Locks and barriers.

pub use stock::sync::*;

#[cfg(lacks_barrier)]
pub mod barrier;
#[cfg(lacks_interrupt)]
mod spinlock_irq;

#[cfg(lacks_interrupt)]
pub use spinlock_irq::{
    new_spinlock_irq,
    LockWith,
    SpinLockIrq,
    SpinLockIrqBackend,
    SpinLockIrqGuard, //
};
