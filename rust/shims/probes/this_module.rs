// SPDX-License-Identifier: GPL-2.0

//! The type of a module knows its `THIS_MODULE`.

pub const fn probe<M: kernel::ModuleMetadata>() -> kernel::ThisModule {
    M::THIS_MODULE
}
