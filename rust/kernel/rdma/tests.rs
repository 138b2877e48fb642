// SPDX-License-Identifier: GPL-2.0

//! Tests that need no RDMA device, or only a device that does nothing.

mod host;
pub(crate) mod memory;
pub(crate) mod null;
pub(crate) mod qp_attr;
pub(crate) mod registers;
pub(crate) mod udata;
pub(crate) mod verbs;
