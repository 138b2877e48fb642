// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Driver side of a completion queue, for an owner that polls and arms under one lock.

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
    /// See [`CompletionConsumer::new`].
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// See [`CompletionConsumer::starting_at`].
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self {
            consumer: CompletionConsumer::starting_at(layout, position),
            arm: Arm::new(),
        }
    }

    /// Offsets of the parts of the ring.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        self.consumer.layout()
    }

    /// See [`CompletionConsumer::take`].
    ///
    /// # Errors
    ///
    /// [`RingError::PositionJump`] if the producer's position is invalid.
    #[inline]
    pub fn take<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u32>, RingError> {
        self.consumer.take(memory)
    }

    /// Positions of the producer, as the device has published it, and of the consumer.
    pub fn positions<M: RingMemory + ?Sized>(&self, memory: &M) -> (u32, u32) {
        let produced = CompletionConsumer::produced(self.layout(), memory);
        (produced, self.consumer.next())
    }

    /// Whether `position` is that of the next completion to take.
    #[inline]
    pub fn is_at(&self, position: u32) -> bool {
        self.consumer.next() == position
    }

    /// See [`CompletionConsumer::publish`].
    #[inline]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        self.consumer.publish(memory);
    }

    /// Calls `visit` with the position of each untaken completion, oldest first; see
    /// [`CompletionConsumer::for_each_before`].
    ///
    /// # Errors
    ///
    /// Errors of [`take`](Self::take).
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

    /// Requests a completion event, for any completion or only for solicited ones, which include
    /// errors. Completions that arrived since the last poll or event also cause the event. If
    /// `report_missed` is true, completions that are already waiting are reported instead.
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

    /// Switches to `next`, the queue in the ring `memory`, to which the device has moved. The old
    /// ring must be drained up to its end. `missed` is true if completions of the old ring were
    /// taken out but are not polled yet. Returns whether the CQ's doorbell must be rung.
    pub fn moved<M: RingMemory + ?Sized>(&mut self, next: Self, memory: &M, missed: bool) -> bool {
        let mut arm = replace(self, next).arm;
        let ring_doorbell = arm.moved(self.layout(), memory, missed);
        self.arm = arm;
        ring_doorbell
    }

    /// Notes that a completion event was received: the next [`arm`](Self::arm) requests another
    /// event, for completions that arrive later. Must be called before the consumer is notified,
    /// with the queue's lock held.
    #[inline]
    pub fn event_received<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        self.arm.event_received();
        let produced = CompletionConsumer::produced(self.layout(), memory);
        self.consumer.know(produced);
    }
}
