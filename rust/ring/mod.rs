// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Own rings: positions, publication, doorbell suppression and arming, for either side of a queue.
//!
//! `Documentation/rings.md` has the protocol and says why nothing is lost. Where the bytes of a
//! ring lie is the business of a [`RingMemory`]: memory of a process or of the kernel, or a guest's
//! pages as the device sees them. Nothing here allocates, blocks or locks; the owner of a queue
//! serialises its calls.
//!
//! | side | send or receive queue | shared receive queue | completion queue |
//! |---|---|---|---|
//! | driver, provider | [`WorkQueue`] | [`SharedQueue`] | [`CompletionQueue`], armed through [`Arm`] |
//! | device | [`DeviceQueue`] | [`DeviceSharedQueue`] | [`DeviceCq`], with an [`ArmLatch`] |
//!
//! Positions are 32 bits wide and wrap. Each side keeps what it wrote in private and never reads it
//! back, so that the other side, or a process that overwrites its own ring, can only make it refuse
//! work.

// Every user needs one side of a queue only, and the kernel compiles this as a private module.
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

/// Hands the device what was posted from position `old` on, before `new`. Returns whether the
/// device asked for a doorbell.
#[inline]
fn publish<M: RingMemory + ?Sized>(layout: &RingLayout, memory: &M, old: u32, new: u32) -> bool {
    // The device stores the doorbell's position and then looks at this one: one of the two sees the
    // other's store.
    let doorbell = u32::from_le(memory.publish_owner(layout, new.to_le()));
    passes(doorbell, new, old)
}

/// Whether a position that moved from `old` to `new` passed `doorbell`, the position that the
/// device waits for.
#[inline]
const fn passes(doorbell: u32, new: u32, old: u32) -> bool {
    new.wrapping_sub(doorbell).wrapping_sub(1) < new.wrapping_sub(old)
}
