// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! rdma-core provider for virtio-rdma devices: loaded by a stock libibverbs, it runs the verbs of
//! user programs.
//!
//! Control verbs go through uverbs to the kernel module. Work is posted, completions are polled and
//! CQs are armed without a system call. Send, receive and completion queues are rings in the
//! process's own memory, which the device reads and writes. Only a doorbell page is mapped from the
//! device.
//!
//! | module | contents |
//! |---|---|
//! | [`ffi`] | generated bindings of libibverbs' provider interface |
//! | [`layouts`], [`libibverbs`], `verbs_qp` | that interface in each release of rdma-core; code that depends on the loaded libibverbs |
//! | `registration` | registration with libibverbs, and matching of devices |
//! | [`direct`] | functions of the provider that programs call themselves |
//! | [`driver_data`], [`negotiation`] | requests and responses between provider and module; their version |
//! | [`context`], [`pd`], `mr`, [`ah`] | control verbs without rings |
//! | [`cq`], [`cq_ex`] | the verbs of CQs; extended CQs, polled completion by completion |
//! | [`qp`], [`qp_init`], [`builder`] | the verbs of QPs; their creation; the `ibv_wr_*` functions |
//! | [`mw`] | memory windows |
//! | [`srq`] | the verbs of shared receive queues |
//! | [`completion`] | conversion of a CQE to an `ibv_wc` |
//! | [`send`], [`recv`] | posting: work requests of libibverbs, checked and written as WQEs |
//! | [`opcodes`] | the operations that a QP permits |
//! | [`work_ring`], [`shared_ring`], [`completion_ring`], [`memory`] | queues over the ring logic, and their memory |
//! | `uverbs_queues` | queues that the kernel serves through uverbs, for devices without rings in user memory |
//! | [`lock`], `deferred`, `table` | the lock of a queue; work that control verbs leave to its holder; QPs by number |
//! | `glibc` | functions that old versions of glibc lack |
//! | `allocation`, [`arc`] | fallible heap allocation |

pub mod ah;
mod allocation;
pub mod allocators;
pub mod arc;
pub mod builder;
mod command;
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
pub mod layouts;
pub mod libibverbs;
pub mod lock;
pub mod memory;
mod mr;
pub mod mw;
pub mod negotiation;
mod numbers;
pub mod opcodes;
pub mod pd;
mod place;
pub mod qp;
pub mod qp_init;
mod rate_limit;
pub mod recv;
mod registration;
pub mod send;
pub mod shared_ring;
pub mod srq;
mod sync;
mod table;
mod uverbs_queues;
mod verbs_qp;
pub mod work_ring;
