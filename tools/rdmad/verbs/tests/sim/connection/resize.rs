// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Resizing of the CQs of a connection while they are used.

use virtio_rdma_abi::ring::ArmKind;

use super::end::End;
use crate::choices::Choices;
use crate::driver;

/// Error code of RESIZE_CQ with a ring that is too short.
const EINVAL: u8 = 22;

impl End<'_> {
    /// Makes the device move the CQ to another ring. The driver follows at its next poll.
    pub(super) fn resize(&mut self, choices: &mut Choices) {
        self.follow();
        // The ring has room for all completions that are possible.
        let slots = choices.of(&[64, 128, 256]);
        let cqe = match choices.once_in(4) {
            true => 1 + choices.below(8) as u32,
            false => slots,
        };
        self.observe();
        let unpolled = driver::unpolled(&self.cq);
        let moved = self.cq.begin_resize(slots, cqe);
        // The device looks at the old ring once more.
        self.note_doorbell(unpolled);
        match moved {
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

    /// If the device has moved the CQ, makes the driver use the new ring too.
    pub(super) fn follow(&mut self) {
        if self.moving.is_some() {
            self.note_former_ring();
        }
        let Some(moving) = self.moving.take() else {
            return;
        };
        self.left.extend(self.cq.finish_resize(moving));
        // An event that was raised before is not raised again in the new ring.
        self.take_events();
        // If completions of the old ring are unpolled, the device may still have to raise an event
        // for them.
        let is_overdue = !self.left.is_empty() || self.rang;
        self.early = driver::unpolled(&self.cq);
        self.late = is_overdue || self.early > 0;
        self.owed = match self.armed {
            Some(ArmKind::Next) => self.late,
            // The device does not know which completions of the old ring were solicited.
            Some(_) => is_overdue,
            None => false,
        };
        self.rang |= self.armed.is_some() && self.early > 0;
        if self.armed.is_some() && self.late {
            self.may_become_due();
        }
    }
}
