// SPDX-License-Identifier: GPL-2.0

//! Queues of kernel clients. In virtqueue mode, the kernel uses them for processes too.
//!
//! | module | content |
//! |---|---|
//! | [`cq`], [`cq_backend`] | CQs, and their memory |
//! | [`qp`], [`work_backend`] | send and receive queues, and their memory |
//! | [`srq`] | SRQs |
//! | [`ring`] | rings in memory of the kernel |
//! | [`post`], [`encode`], [`wqe`] | work requests |
//! | [`poll`] | work completions |

pub(super) mod cq;
pub(super) mod cq_backend;
mod encode;
mod poll;
mod post;
pub(super) mod qp;
pub(super) mod ring;
pub(super) mod srq;
mod work_backend;
mod wqe;
