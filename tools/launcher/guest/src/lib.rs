// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Types and constants that the host and the program in a guest share.
#![forbid(unsafe_code)]

pub mod feed;
pub mod module_list;
pub mod needs;
pub mod proto;
pub mod setup;

/// The name of the program that users call, at the beginning of messages.
pub const NAME: &str = "virtio-rdma";
/// The directory of this program in a guest.
pub const HOME: &str = "/run/virtio-rdma";
/// This program in a guest.
pub const PROGRAM: &str = "/run/virtio-rdma/guest";
/// The guest's [`setup::Setup`], in the root and in the initramfs.
pub const SETUP: &str = "/run/virtio-rdma/setup.json";
/// The directory of modules in the initramfs.
pub const EARLY_MODULES: &str = "/modules";
/// The directory of links to the RDMA programs of `--tools`, which have their own libraries.
pub const TOOLS: &str = "/run/virtio-rdma/bin";
/// The phase of a guest's start that ends when the agent is up.
pub const AGENT_PHASE: &str = "agent";
/// The first phase of a restored guest, which ends when the guest gets its description.
pub const RESTORED_PHASE: &str = "restored";
/// The name of the virtio-serial port between host and agent.
pub const PORT_NAME: &str = "virtio-rdma";
