// SPDX-License-Identifier: GPL-2.0

//! Tests that need no RDMA device, or one without functions.

pub(crate) mod memory;
pub(crate) mod null;
pub(crate) mod registers;
pub(crate) mod udata;
