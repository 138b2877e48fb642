// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Own rings: index arithmetic, publication, doorbell suppression and arming, for either side of a queue.
//!
//! A ring is a split virtqueue whose descriptor table is implicit: descriptor `i` is slot `i`. Where its bytes
//! lie is the business of a [`RingMemory`]: memory of a process, DMA memory of the kernel, or a guest's pages as
//! the device sees them. Nothing here allocates, blocks or locks; whoever owns a queue serialises its calls.
//!
//! | side | send or receive queue | shared receive queue | completion queue |
//! |---|---|---|---|
//! | driver, provider | [`WorkQueue`] | [`SharedQueue`] | [`CompletionQueue`], armed through [`Arm`] |
//! | device | [`DeviceQueue`] | [`DeviceQueue`] | [`DeviceCq`], with an [`ArmLatch`] |
//!
//! Indices are 16 bits wide and wrap. Each side keeps what it wrote in private and never reads it back, so that
//! the other side, or a process that overwrites its own ring, can only make it refuse work.

// Every user needs one side of a queue only, and the kernel compiles this as a private module.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod arm;
mod completion_consumer;
mod completion_queue;
mod device_cq;
mod device_queue;
mod error;
mod memory;
mod shared_queue;
mod shared_slots;
mod work_queue;
mod work_slots;

use super::abi;
use abi::ring::RingLayout;

pub use arm::{Arm, ArmLatch, Armed};
pub use completion_consumer::CompletionConsumer;
pub use completion_queue::CompletionQueue;
pub use device_cq::DeviceCq;
pub use device_queue::DeviceQueue;
pub use error::RingError;
pub use memory::RingMemory;
pub use shared_queue::SharedQueue;
pub use shared_slots::SharedSlots;
pub use work_queue::WorkQueue;
pub use work_slots::WorkSlots;

/// The number of slots as a ring index counts them: at most 32,768.
const fn slot_count(layout: &RingLayout) -> u16 {
    layout.slots() as u16
}

/// Fills the available ring with the slots in their order, without publishing any, and returns their number.
fn offer_every_slot<M: RingMemory + ?Sized>(layout: &RingLayout, memory: &M) -> u16 {
    let slots = slot_count(layout);
    for slot in 0..slots {
        memory.store_u16(layout.avail_ring(slot), slot.to_le());
    }
    slots
}

/// Hands the device what was offered from position `old` on, before `new`: stores avail.idx. Returns whether the device
/// asked for a doorbell.
#[inline]
fn publish<M: RingMemory + ?Sized>(layout: &RingLayout, memory: &M, old: u16, new: u16) -> bool {
    memory.store_u16_release(layout.avail_idx(), new.to_le());
    // The device stores avail_event and then looks at avail.idx once more: one of the two sees the other's store.
    memory.full_barrier();
    let event = u16::from_le(memory.load_u16(layout.avail_event()));
    passes_event(event, new, old)
}

/// Whether an index that moved from `old` to `new` passed `event`, the index whose entry the peer waits for
/// (virtio 1.3, 2.7.10 "Available Buffer Notification Suppression").
#[inline]
const fn passes_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
