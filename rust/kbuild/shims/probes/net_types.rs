// SPDX-License-Identifier: GPL-2.0

//! Compiles only if the kernel crate has the networking types that RDMA structures contain.

pub use kernel::bindings::{
    netdevice_tracker,
    possible_net_t, //
};
