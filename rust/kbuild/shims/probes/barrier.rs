// SPDX-License-Identifier: GPL-2.0

//! Compiles only if the kind of a barrier is a type parameter.

pub use kernel::{
    bindings::mb,
    sync::barrier::{
        smp_mb,
        Write, //
    }, //
};
