// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! rdma-core provider for virtio-rdma devices: loaded by a stock libibverbs, it runs the verbs of
//! user programs.
//!
//! Control verbs go through uverbs to the kernel module. Work is posted, completions are polled and
//! CQs are armed without a system call: send, receive and completion queues are rings in the
//! process's own memory, which the device reads and writes, and a doorbell page is all that is
//! mapped from the device.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ffi`] | generated bindings of libibverbs' provider interface |
//! | [`layouts`], [`libibverbs`], `verbs_qp` | facts of that interface by release of rdma-core; what depends on the libibverbs that is loaded |
//! | `registration` | how libibverbs finds the provider and the provider its devices |
//! | [`direct`] | what programs call in the provider itself |
//! | [`driver_data`], [`negotiation`] | what provider and module exchange, in which version |
//! | [`context`], [`pd`], `mr`, [`ah`] | control verbs without rings |
//! | [`cq`], [`cq_ex`] | the verbs of CQs; polling completion by completion |
//! | [`qp`], [`qp_init`], [`builder`] | the verbs of QPs; their creation; the `ibv_wr_*` functions |
//! | [`mw`] | memory windows |
//! | [`srq`] | the verbs of shared receive queues |
//! | [`completion`] | CQE to `ibv_wc` |
//! | `wr`, [`post`], [`wqe`] | work requests of C; what a QP takes; their WQEs |
//! | [`work_ring`], [`shared_ring`], [`completion_ring`], [`memory`] | queues over the ring logic, and their memory |
//! | `kernel_queues` | the verbs of queues in the kernel, where the device has no rings in user memory |
//! | [`lock`], `deferred`, `table` | the lock of a queue, what control verbs leave to its holder,
//! QPs by number |
//! | `glibc` | functions that old versions of glibc lack |
//! | `allocation`, [`arc`] | memory of the heap that may be short |

pub mod ah;
mod allocation;
pub mod allocators;
pub mod arc;
pub mod builder;
pub mod completion;
pub mod completion_ring;
pub mod context;
pub mod cq;
pub mod cq_ex;
mod deferred;
pub mod direct;
pub mod driver_data;
mod errno;
pub mod ffi;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod glibc;
mod kernel_queues;
pub mod layouts;
pub mod libibverbs;
pub mod lock;
pub mod memory;
mod mr;
pub mod mw;
pub mod negotiation;
mod numbers;
pub mod pd;
mod place;
pub mod post;
pub mod qp;
pub mod qp_init;
mod rate_limit;
mod registration;
pub mod shared_ring;
pub mod srq;
mod sync;
mod table;
mod verbs_qp;
pub mod work_ring;
pub mod wqe;
mod wr;
