// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Checks of all that the driver reads from the device.
//!
//! The device is not trusted: every value that it writes is checked here before the kernel uses it.
//! The functions take bytes and plain values, do not call the kernel and keep no state, so the same
//! code runs in tests and fuzzers on the host.
//!
//! | module | what it checks |
//! |---|---|
//! | [`config`] | the configuration: limits, and what depends on features |
//! | [`answer`] | answers to commands: success, an errno, or nonsense |
//! | [`port`], [`qp`] | values in the answers about a port or a QP |
//! | [`event`] | events: what happened, and to which object |
//! | [`completion`] | CQEs, against the work requests that they complete |

pub mod answer;
pub mod completion;
pub mod config;
pub mod event;
#[cfg(any(test, CONFIG_INFINIBAND_VIRTIO_RDMA_KUNIT_TEST))]
mod kunit;
pub mod port;
pub mod qp;

use super::abi;
