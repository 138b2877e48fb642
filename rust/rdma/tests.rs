// SPDX-License-Identifier: GPL-2.0

//! Tests of what needs no RDMA device, or one that does nothing.

pub(crate) mod memory;
pub(crate) mod null;
pub(crate) mod registers;
pub(crate) mod udata;
