// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A connection of two QPs, with a model of the expected result of each work request.

mod check;
mod count;
mod drain;
mod end;
mod moderation;
mod pace;
mod post;
mod resize;

use std::time::Instant;

use testkit::engine::{connect, Options};
use virtio_rdma_abi::ib::{Mtu, QpState, QpType};
use virtio_rdma_abi::ring::ArmKind;

use crate::choices::Choices;
use crate::guest::Guest;
use crate::party::{deregister, destroy_cq, destroy_qp, is_same, Destroyed, Party};
use end::End;

/// Two connected QPs.
pub struct Connection<'w> {
    ends: [End<'w>; 2],
    reliable: bool,
}

impl<'w> Connection<'w> {
    /// Connects QPs of two random guests, which may be the same guest.
    pub fn new(guests: &'w [Guest], choices: &mut Choices) -> Self {
        let ends = [(); 2].map(|()| &guests[choices.below(guests.len())]);
        let qp_type = choices.of(&[QpType::Rc, QpType::Rc, QpType::Uc]);
        let options = Options {
            mtu: choices.of(&[Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096]),
            timeout: 8 + choices.below(6) as u8,
            min_rnr_timer: 1 + choices.below(12) as u8,
            rd_atomic: 1 + choices.below(4) as u8,
            ..Options::of(qp_type)
        };
        let ends = ends.map(|guest| End::new(guest, options));
        connect(&ends[0].qp, &ends[1].qp);
        let mut connection = Self {
            ends,
            reliable: options.qp_type == QpType::Rc,
        };
        if choices.widely_once_in(3) {
            connection.count_alone();
        }
        connection
    }

    fn sides(&mut self, side: usize) -> [&mut End<'w>; 2] {
        let [a, b] = &mut self.ends;
        match side {
            0 => [a, b],
            _ => [b, a],
        }
    }

    /// Moves the QP of a side to ERR.
    fn break_off(&mut self, side: usize) {
        let reliable = self.reliable;
        let [ours, theirs] = self.sides(side);
        ours.ending = true;
        // Requests of the other QP are no longer answered, so its work requests may fail too.
        theirs.ending |= reliable;
        ours.qp.to(QpState::Err);
    }

    fn is_ending(&self) -> bool {
        self.ends.iter().any(|end| end.ending)
    }
}

impl<'w> Party<'w> for Connection<'w> {
    fn act(&mut self, choices: &mut Choices) {
        let side = choices.below(2);
        if choices.widely_once_in(10) {
            return self.ends[side].moderate(choices);
        }
        if choices.widely_once_in(12) {
            let [ours, theirs] = self.sides(side);
            if ours.count.is_alone() {
                return ours.guest.check_counters();
            }
            return ours.guest.change_counter_set(&ours.qp, &theirs.qp, choices);
        }
        match choices.below(27) {
            0..=8 => self.post(side, choices),
            9..=14 => {
                for _ in 0..=choices.below(4) {
                    self.ends[side].post_recv();
                }
            }
            15..=18 => {
                for _ in 0..=choices.below(4) {
                    self.poll_one(side);
                }
            }
            19..=22 => {
                let kind = choices.of(&[ArmKind::Next, ArmKind::Solicited]);
                while self.poll_one(side) {}
                self.ends[side].arm(kind);
            }
            23 => self.ends[side].resize(choices),
            24 => self.drain(side, choices),
            25 => self.ends[side].limit_rate(choices),
            _ => {
                if choices.once_in(12) {
                    self.break_off(side);
                }
            }
        }
    }

    fn observe(&mut self) {
        self.ends.iter_mut().for_each(End::observe);
    }

    fn deadline(&self) -> Option<Instant> {
        self.ends.iter().filter_map(End::deadline).min()
    }

    fn take_events(&mut self) -> bool {
        let ends = self.ends.iter_mut();
        ends.fold(false, |any, end| end.take_events() || any)
    }

    fn poll(&mut self) -> bool {
        let mut any = false;
        for side in 0..2 {
            while self.poll_one(side) {
                any = true;
            }
        }
        any
    }

    fn feed(&mut self) -> bool {
        let mut any = false;
        for side in 0..2 {
            let messages = self.ends[1 - side].messages().min(8);
            while !self.is_ending() && !self.ends[side].has_receives_for(messages) {
                self.ends[side].post_recv();
                any = true;
            }
        }
        any
    }

    fn resume(&mut self) -> bool {
        self.go_on()
    }

    fn end(&mut self) {
        self.break_off(0);
        self.break_off(1);
    }

    fn finish(&mut self) {
        self.check_end();
    }

    fn uses(&self, guest: &Guest) -> bool {
        self.ends.iter().any(|end| is_same(end.guest, guest))
    }

    fn destroy(self: Box<Self>) -> Vec<Destroyed<'w>> {
        let destroy = |end: End<'w>| {
            destroy_qp(end.guest, &end.qp);
            destroy_cq(end.guest, &end.cq);
            deregister(end.guest, &end.mr);
            let cookies = vec![end.cq.cookie, end.qp.cookie];
            Destroyed::new(end.guest, cookies, end.mr.iova, end.mr.len)
        };
        self.ends.map(destroy).into()
    }
}
