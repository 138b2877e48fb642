// SPDX-License-Identifier: GPL-2.0

//! Interrupts can be disabled, and spin locks disable them.

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
