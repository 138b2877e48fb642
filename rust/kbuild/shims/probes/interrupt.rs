// SPDX-License-Identifier: GPL-2.0

//! Compiles only if interrupts can be disabled, and spin locks that disable them exist.

pub use kernel::{
    interrupt::{
        local_interrupt_disable,
        LocalInterruptDisabled, //
    },
    sync::{
        new_spinlock_irq,
        SpinLockIrq, //
    }, //
};
