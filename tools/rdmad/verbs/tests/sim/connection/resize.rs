// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CQs of a connection that move to other rings while they are used.

use virtio_rdma_abi::ring::ArmKind;

use super::end::End;
use crate::choices::Choices;
use crate::driver;

/// The answer of commands for a ring that is too short.
const EINVAL: u8 = 22;

impl End<'_> {
    /// Has the device move the CQ to another ring. The driver follows when it next polls.
    pub(super) fn resize(&mut self, choices: &mut Choices) {
        self.follow();
        // No fewer slots than there may be completions.
        let slots = choices.of(&[64, 128, 256]);
        let cqe = match choices.once_in(4) {
            true => 1 + choices.below(8) as u32,
            false => slots,
        };
        let unpolled = driver::unpolled(&self.cq);
        match self.cq.begin_resize(slots, cqe) {
            Ok(moving) => {
                assert!(unpolled <= cqe, "{unpolled} completions, room for {cqe}");
                self.moving = Some(moving);
            }
            Err(errno) => {
                assert_eq!(errno, EINVAL);
                assert!(unpolled > cqe, "room for {cqe}, {unpolled} completions");
            }
        }
    }

    /// Follows the device to the ring that the CQ has moved to, if it has.
    pub(super) fn follow(&mut self) {
        let Some(moving) = self.moving.take() else {
            return;
        };
        self.left.extend(self.cq.finish_resize(moving));
        // Asked for again in the new ring, it does not come a second time.
        self.take_events();
        // The device may have told nobody of a completion that is polled or left.
        let is_overdue = !self.left.is_empty() || self.rang;
        self.early = driver::unpolled(&self.cq);
        self.late = is_overdue || self.early > 0;
        self.owed = match self.armed {
            Some(ArmKind::Next) => self.late,
            // The device does not know which of them were solicited.
            Some(_) => is_overdue,
            None => false,
        };
        self.rang |= self.armed.is_some() && self.early > 0;
    }
}
