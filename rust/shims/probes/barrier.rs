// SPDX-License-Identifier: GPL-2.0

//! The kind of a barrier is a type parameter.

pub use kernel::{
    bindings::mb,
    sync::barrier::{
        smp_mb,
        Write, //
    }, //
};
