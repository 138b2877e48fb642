// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Driver side of a completion queue, for an owner who polls and arms under one lock.

use core::mem::replace;

use super::abi::ring::ArmKind;
use super::abi::ring::RingLayout;
use super::Arm;
use super::Armed;
use super::CompletionConsumer;
use super::RingError;
use super::RingMemory;

/// A completion queue: its [consumer](CompletionConsumer), and its [arming](Arm).
#[derive(Debug)]
pub struct CompletionQueue {
    consumer: CompletionConsumer,
    arm: Arm,
}

impl CompletionQueue {
    /// As [`CompletionConsumer::new`].
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// As [`CompletionConsumer::starting_at`].
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self {
            consumer: CompletionConsumer::starting_at(layout, position),
            arm: Arm::new(),
        }
    }

    /// Where the parts of the ring lie.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        self.consumer.layout()
    }

    /// As [`CompletionConsumer::take`].
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] if the producer's position makes no sense.
    #[inline]
    pub fn take<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u32>, RingError> {
        self.consumer.take(memory)
    }

    /// Whether all completions before `position` were taken, and none after.
    #[inline]
    pub fn is_at(&self, position: u32) -> bool {
        self.consumer.next() == position
    }

    /// As [`CompletionConsumer::publish`].
    #[inline]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        self.consumer.publish(memory);
    }

    /// Calls `visit` with the position of each completion that has not been taken, oldest first, as
    /// [`CompletionConsumer::for_each_before`].
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    pub fn for_each_unpolled<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        visit: impl FnMut(u32),
    ) -> Result<(), RingError> {
        let produced = CompletionConsumer::produced(self.layout(), memory);
        let next = self.consumer.next();
        let unpolled = produced.wrapping_sub(next);
        if unpolled > self.layout().slots() || unpolled < self.consumer.seen().wrapping_sub(next) {
            return Err(RingError::PositionJump);
        }
        self.consumer.know(produced);
        self.consumer.for_each_before(produced, visit);
        Ok(())
    }

    /// Asks for a completion event: `kind` says whether any completion or only a solicited one
    /// (errors are) causes it. Completions that came since the consumer last looked, which is at
    /// polling and at an event, cause it too. With `report_missed`, completions that are there
    /// already are reported instead of waited for.
    #[inline]
    pub fn arm<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        kind: ArmKind,
        report_missed: bool,
    ) -> Armed {
        let missed_after = report_missed.then_some(self.consumer.next());
        let seen = self.consumer.seen();
        self.arm
            .arm(self.consumer.layout(), memory, kind, seen, missed_after)
    }

    /// The queue goes on in `memory`, a ring that [`new`](Self::new) has made `next` in and that
    /// the device has moved to. It was drained up to the position that the old ring ends with.
    /// `missed` says that completions from there wait elsewhere to be polled. Returns whether the
    /// CQ's doorbell is to be rung.
    pub fn moved<M: RingMemory + ?Sized>(&mut self, next: Self, memory: &M, missed: bool) -> bool {
        let mut arm = replace(self, next).arm;
        let ring_doorbell = arm.moved(self.layout(), memory, missed);
        self.arm = arm;
        ring_doorbell
    }

    /// A completion event for this queue was received: the next [`arm`](Self::arm) asks for
    /// another, which those that are there already do not cause. Called before the consumer is
    /// told, with the queue's lock held.
    #[inline]
    pub fn event_received<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        self.arm.event_received();
        let produced = CompletionConsumer::produced(self.layout(), memory);
        self.consumer.know(produced);
    }
}
