// SPDX-License-Identifier: GPL-2.0

//! Compiles only if the type of a module contains its `THIS_MODULE`.

pub const fn probe<M: kernel::ModuleMetadata>() -> kernel::ThisModule {
    M::THIS_MODULE
}
