// SPDX-License-Identifier: GPL-2.0

//! The kernel crate has the types of networks that RDMA structures contain.

pub use kernel::bindings::{
    netdevice_tracker,
    possible_net_t, //
};
