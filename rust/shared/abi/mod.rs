// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The virtio-rdma ABI: every byte that driver, provider and device exchange.
//!
//! It extends the virtio-rdma RFC (device id 42). `Documentation/abi.md` specifies the own-rings
//! extension and what the RFC leaves open. Only this module knows memory layouts. Structures are
//! plain values in native byte order; a codec converts them to and from little-endian bytes. Their
//! offsets and sizes are checked at compile time.
//!
//! | module | what it holds |
//! |---|---|
//! | [`wire`] | the codec and the macros that declare structures, enumerations and bit masks |
//! | [`ib`] | constants of the InfiniBand verbs that the RFC refers to |
//! | [`feature`] | features: their bits and what depends on them |
//! | [`config`] | device configuration |
//! | [`ctrl`] | control virtqueue: commands, requests, responses |
//! | [`qp`] | QP attributes |
//! | [`queues`] | the purpose of each virtqueue in virtqueue mode |
//! | [`wqe`], [`cqe`] | send, receive and completion queue elements |
//! | [`event`] | event virtqueues |
//! | [`number`] | numbers of QPs, CQs, SRQs, PDs, MRs, windows and counter sets |
//! | [`ring`] | own rings: memory layout, arm word, doorbell |
//! | [`uverbs`] | what the kernel module and the user space provider exchange |
//! | [`versions`] | versions of that interface, and how its structures grow |

#[macro_use]
pub mod wire;
#[macro_use]
pub mod versions;

pub mod config;
pub mod cqe;
pub mod ctrl;
pub mod event;
pub mod feature;
pub mod ib;
pub mod number;
pub mod qp;
pub mod queues;
pub mod ring;
pub mod uverbs;
pub mod wqe;

/// Virtio device id of an RDMA device (RFC, "Device ID").
pub const VIRTIO_ID_RDMA: u32 = 42;
