// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Rings outside of virtqueues (own rings): positions, publication, doorbell suppression and
//! arming, for both sides of a queue.
//!
//! `Documentation/rings.md` describes the protocol and why it loses nothing. [`RingMemory`]
//! abstracts the memory of a ring: memory of a process or of the kernel, or a guest's pages as the
//! device sees them. This code does not allocate, block or lock; the owner of a queue serializes
//! its calls.
//!
//! | side | send or receive queue | shared receive queue | completion queue |
//! |---|---|---|---|
//! | driver, provider | [`WorkQueue`] | [`SharedQueue`] | [`CompletionQueue`], armed through [`Arm`] |
//! | device | [`DeviceQueue`] | [`DeviceSharedQueue`] | [`DeviceCq`], with an [`ArmLatch`] |
//!
//! Positions are 32 bits wide and wrap. Each side keeps its own positions in private memory and
//! never reads them back from the ring. So the other side, or a process that overwrites its own
//! ring, can at worst cause work to be refused.

// Each user needs only one side of a queue, and the kernel compiles this as a private module.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod arm;
mod arm_latch;
mod completion_consumer;
mod completion_queue;
mod device_cq;
mod device_queue;
mod device_shared_queue;
mod error;
mod memory;
mod shared_queue;
mod shared_slots;
mod work_queue;
mod work_slots;

use super::abi;
use abi::ring::RingLayout;

pub use arm::{Arm, Armed};
pub use arm_latch::{ArmLatch, ArmLatchState};
pub use completion_consumer::CompletionConsumer;
pub use completion_queue::CompletionQueue;
pub use device_cq::DeviceCq;
pub use device_queue::{DevicePositions, DeviceQueue};
pub use device_shared_queue::DeviceSharedQueue;
pub use error::RingError;
pub use memory::RingMemory;
pub use shared_queue::SharedQueue;
pub use shared_slots::SharedSlots;
pub use work_queue::WorkQueue;
pub use work_slots::WorkSlots;

/// Publishes the work requests at positions from `old` to before `new`. Returns whether the device
/// requested a doorbell.
#[inline]
fn publish<M: RingMemory + ?Sized>(layout: &RingLayout, memory: &M, old: u32, new: u32) -> bool {
    // The device stores its doorbell position and then loads this position, so one of the two sides
    // sees the other's store.
    let doorbell = u32::from_le(memory.publish_owner(layout, new.to_le()));
    passes(doorbell, new, old)
}

/// Whether a step from position `old` to `new` passes `doorbell`, the position for which the device
/// requested a doorbell.
#[inline]
const fn passes(doorbell: u32, new: u32, old: u32) -> bool {
    new.wrapping_sub(doorbell).wrapping_sub(1) < new.wrapping_sub(old)
}
