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
    pub fn new<M: RingMemory + ?Sized>(layout: RingLayout, memory: &M) -> Self {
        Self {
            consumer: CompletionConsumer::new(layout, memory),
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
    /// [`RingError::IndexJump`] if `used.idx` makes no sense.
    #[inline]
    pub fn take<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Result<Option<u16>, RingError> {
        self.consumer.take(memory)
    }

    /// Whether all completions before `used.idx` `index` were taken.
    #[inline]
    pub fn is_at(&self, index: u16) -> bool {
        self.consumer.next() == index
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
        visit: impl FnMut(u16),
    ) -> Result<(), RingError> {
        let used = CompletionConsumer::used_idx(self.layout(), memory);
        let next = self.consumer.next();
        let unpolled = used.wrapping_sub(next);
        if unpolled > self.layout().slots() as u16
            || unpolled < self.consumer.seen().wrapping_sub(next)
        {
            return Err(RingError::IndexJump);
        }
        self.consumer.know(used);
        self.consumer.for_each_before(used, visit);
        Ok(())
    }

    /// Asks for a completion event: `kind` says whether any completion or only a solicited one (errors are) causes it.
    /// Completions that came since the consumer last looked, which is at polling and at an event, cause it too. With
    /// `report_missed`, completions that are there already are reported instead of waited for.
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

    /// The queue goes on in `memory`, a ring that [`new`](Self::new) has made `next` in and that the device has moved to.
    /// It was drained up to the index that the old ring ends with. `missed` says that completions from there wait elsewhere
    /// to be polled. Returns whether the CQ's doorbell is to be rung.
    pub fn moved<M: RingMemory + ?Sized>(&mut self, next: Self, memory: &M, missed: bool) -> bool {
        let mut arm = replace(self, next).arm;
        let ring_doorbell = arm.moved(self.layout(), memory, missed);
        self.arm = arm;
        ring_doorbell
    }

    /// A completion event for this queue was received: the next [`arm`](Self::arm) asks for another, which those that are
    /// there already do not cause. Called before the consumer is told, with the queue's lock held.
    #[inline]
    pub fn event_received<M: RingMemory + ?Sized>(&mut self, memory: &M) {
        self.arm.event_received();
        let used = CompletionConsumer::used_idx(self.layout(), memory);
        self.consumer.know(used);
    }
}
