// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of the thief that invalidate a key of the vault: a window of type 2 or the MR for fast
//! registration.

use testkit::engine::{pattern, sge, Mr, Wr};
use virtio_rdma_abi::ib::{AsyncEvent, WcStatus, WrOpcode};

use super::side::{Kind, Receive, Try};
use super::{Vault, AREA};
use crate::choices::Choices;
use crate::driver;

impl Vault<'_> {
    /// Posts a SEND that invalidates a key, most of the time a key for which it succeeds.
    pub(super) fn invalidate(&mut self, choices: &mut Choices) {
        let Some(steady) = self.steady.filter(|_| !self.ending) else {
            return;
        };
        if choices.once_in(12) {
            let key = self.keys.pick_permanent(choices);
            self.send_invalidate(steady, key, false, choices);
            return;
        }
        let Some(key) = self.keys.pick_to_invalidate(choices) else {
            return;
        };
        if !self.send_invalidate(steady, key, true, choices) {
            return;
        }
        self.keys.begin_invalidate(key);
        // The owner's work requests may begin after the invalidation, and a READ may be repeated.
        for one in self.thief.tries.iter_mut().chain(&mut self.owner.tries) {
            let may_fail = matches!(one.kind, Kind::Read | Kind::Send | Kind::Fetch);
            if one.mr.key == key && may_fail {
                let refused = one.kind.refused();
                one.fails.get_or_insert(refused);
                if refused == WcStatus::RemAccessErr {
                    self.may_raise.push(AsyncEvent::QpAccessErr);
                }
            }
        }
        // A key is invalidated once, and opens nothing for later work requests.
        match choices.below(12) {
            10 => {
                self.send_invalidate(steady, key, false, choices);
            }
            11 => self.try_after(key, choices),
            _ => {}
        }
    }

    /// Posts a SEND that invalidates `key`, and a receive into the MR `steady`, if an area is free.
    /// Returns whether it was posted.
    fn send_invalidate(
        &mut self,
        steady: Mr,
        key: u32,
        succeeds: bool,
        choices: &mut Choices,
    ) -> bool {
        let Some(area) = self.free_area() else {
            return false;
        };
        let there = area * AREA;
        let at = there + choices.below(AREA / 2);
        let len = choices.below(AREA / 2);
        let id = self.next_id();
        let given = pattern(AREA, self.mr.iova ^ (id << 32));
        self.thief.memory.set(there, &given);
        // The message is written even if the key can't be invalidated.
        self.owner.memory.begin(id, at, given[..len].to_vec());
        self.thief.tries.push_back(Try {
            id,
            kind: Kind::Invalidate(key),
            mr: steady,
            at,
            len,
            allowed: succeeds,
            succeeds,
            fails: (!succeeds).then_some(WcStatus::RemAccessErr),
            after_invalidation: false,
        });
        if !succeeds {
            self.may_raise.push(AsyncEvent::QpAccessErr);
        }
        self.owner.receives.push_back(Receive {
            id,
            area,
            len,
            invalidates: Some(key),
            ended: None,
        });
        let into = sge(&steady, at as u64, len as u32);
        driver::post_recv(&self.owner.qp, id | 1, &[into]);
        let wr = Wr::new(id, WrOpcode::SendWithInv)
            .local(&self.mr, there as u64, len as u32)
            .imm(key.to_le_bytes());
        driver::post(&self.thief.qp, &wr);
        true
    }

    /// Posts a work request that uses `key` after the invalidation of this key.
    fn try_after(&mut self, key: u32, choices: &mut Choices) {
        let Some(area) = self.free_area() else {
            return;
        };
        let mr = Mr {
            key,
            ..self.keys.whole()
        };
        let kind = choices.of(&[Kind::Write, Kind::Read]);
        let one = Try {
            id: self.next_id(),
            kind,
            mr,
            at: area * AREA,
            len: 8,
            allowed: false,
            succeeds: false,
            fails: None,
            after_invalidation: true,
        };
        self.post_judged(one, area * AREA);
    }

    /// Notes that a message that invalidates `key` was received.
    pub(super) fn invalidated(&mut self, key: u32) {
        self.check_memory();
        if self.keys.end_invalidate(key) {
            self.reconsider();
        }
    }
}
