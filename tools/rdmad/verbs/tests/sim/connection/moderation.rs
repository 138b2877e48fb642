// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Moderation of the CQ of one end of a connection: when its event may arrive, and when it must.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use virtio_rdma_abi::ctrl::CmdModifyCq;
use virtio_rdma_abi::ring::ArmKind;

use super::end::End;
use crate::choices::Choices;
use crate::driver;

/// Values of a CQ that is not moderated: its event is sent with the first completion.
const AT_ONCE: Values = Values {
    count: 1,
    period: Duration::ZERO,
};

/// The values of a moderation.
#[derive(Clone, Copy, Debug)]
struct Values {
    count: u64,
    period: Duration,
}

/// The time from which an event is delayed.
#[derive(Clone, Copy)]
struct Due {
    /// Number of completions before those with which the event became due.
    before: u64,
    at: Instant,
}

impl Due {
    /// Number of completions since the event became due, of `published` ones.
    fn count(self, published: u64) -> u64 {
        published - self.before
    }
}

/// The model of a CQ's moderation and of its completion event.
pub(super) struct Moderation {
    values: Values,
    /// Number of completions in former rings of the CQ.
    former: u64,
    /// Number of completions that the device has published.
    published: u64,
    /// Time at which each unpolled completion was published, and whether the CQ was armed then.
    unpolled: VecDeque<(Instant, bool)>,
    /// The earliest time at which the event may have become due.
    may: Option<Due>,
    /// The time at which the event has become due at the latest.
    must: Option<Due>,
    /// Whether the event has arrived. It may not be taken yet.
    has_arrived: bool,
    /// Whether MODIFY_CQ may have sent the event, for which there was no buffer.
    is_released: bool,
}

impl Moderation {
    pub fn new() -> Self {
        Self {
            values: AT_ONCE,
            former: 0,
            published: 0,
            unpolled: VecDeque::new(),
            may: None,
            must: None,
            has_arrived: false,
            is_released: false,
        }
    }
}

impl End<'_> {
    /// Looks at the ring and at the event of the CQ. Checks that the event arrives neither too
    /// early nor after too many completions.
    pub fn observe(&mut self) {
        self.note_published();
        self.note_event();
        self.check_count();
    }

    /// Notes the completions that were published since the last look.
    fn note_published(&mut self) {
        let now = self.guest.clock.now();
        let produced = driver::produced(&self.cq, self.moving.as_ref());
        let model = &mut self.moderation;
        let before = model.published;
        model.published = model.former + u64::from(produced);
        let added = model.published - before;
        if added == 0 {
            return;
        }
        // In a ring that the driver does not use yet, the CQ is not armed.
        let armed = self.armed.filter(|_| self.moving.is_none());
        let completion = (now, armed.is_some());
        model.unpolled.extend((0..added).map(|_| completion));
        if let Some(kind) = armed {
            let due = Due { before, at: now };
            model.may.get_or_insert(due);
            if kind == ArmKind::Next {
                model.must.get_or_insert(due);
            }
        }
    }

    /// Notes that the event has arrived, and checks that it is not too early.
    fn note_event(&mut self) {
        let now = self.guest.clock.now();
        let model = &mut self.moderation;
        if model.has_arrived || self.armed.is_none() || !self.guest.has_event(self.cq.cookie) {
            return;
        }
        model.has_arrived = true;
        let due = model.may.expect("an event without a reason");
        let (count, time) = (due.count(model.published), now - due.at);
        let values = model.values;
        assert!(
            model.is_released || count >= values.count || time >= values.period,
            "an event after {count} completions and {time:?}, {values:?}"
        );
    }

    /// Checks that the number of completions of a delayed event is not exceeded.
    fn check_count(&self) {
        let model = &self.moderation;
        let Some(due) = model.must.filter(|_| !model.has_arrived) else {
            return;
        };
        let (count, values) = (due.count(model.published), model.values);
        assert!(
            count < values.count || self.guest.is_starved(),
            "no event after {count} completions, {values:?}"
        );
    }

    /// Returns the time at which a delayed event must arrive, if there is one.
    pub fn deadline(&self) -> Option<Instant> {
        let model = &self.moderation;
        let due = model.must.filter(|_| !model.has_arrived)?;
        (!self.guest.is_starved()).then_some(due.at + model.values.period)
    }

    /// Notes that a completion is polled. If `must_send` is true, the armed CQ must send an event
    /// for it.
    pub fn note_polled(&mut self, must_send: bool) {
        self.observe();
        let model = &mut self.moderation;
        let before = model.published - model.unpolled.len() as u64;
        let completion = model.unpolled.pop_front();
        let (at, was_armed) = completion.expect("a published completion");
        let is_sure = was_armed || model.values.count == 1;
        if must_send && is_sure && self.armed.is_some() {
            model.must.get_or_insert(Due { before, at });
            self.check_count();
        }
    }

    /// Notes that the event was taken.
    pub fn note_taken(&mut self) {
        let model = &mut self.moderation;
        (model.may, model.must) = (None, None);
        (model.has_arrived, model.is_released) = (false, false);
    }

    /// Notes that the driver follows the CQ to its new ring. Must be called before.
    pub fn note_former_ring(&mut self) {
        self.observe();
        self.moderation.former += u64::from(driver::produced(&self.cq, None));
    }

    /// Notes that the device has handled the CQ's doorbell, and that `unpolled` completions were
    /// unpolled.
    pub fn note_doorbell(&mut self, unpolled: u32) {
        let model = &mut self.moderation;
        if unpolled > 0 && self.armed == Some(ArmKind::Next) {
            model.must.get_or_insert(Due {
                before: model.published,
                at: self.guest.clock.now(),
            });
        }
    }

    /// Notes that the event may become due without a further completion.
    pub fn may_become_due(&mut self) {
        let model = &mut self.moderation;
        model.may.get_or_insert(Due {
            before: model.published,
            at: self.guest.clock.now(),
        });
    }

    /// Changes the moderation of the CQ. Checks that a delayed event is sent.
    pub fn moderate(&mut self, choices: &mut Choices) {
        self.take_events();
        let count = choices.of(&[2, 3, 5, 9, 100, 1, 0]);
        let period = choices.of(&[5, 50, 500, 5_000, 50_000, 0]);
        let cqn = self.cq.cqn;
        let request = CmdModifyCq { cqn, count, period };
        self.guest.vm.call(request).unwrap();
        self.note_published();
        let has_event = self.guest.has_event(self.cq.cookie);
        let is_starved = self.guest.is_starved();
        let model = &mut self.moderation;
        if self.armed.is_some() && !has_event {
            assert!(
                model.must.is_none() || is_starved,
                "MODIFY_CQ sends no event that is due"
            );
            model.is_released |= is_starved && model.may.is_some();
            if !is_starved {
                // Nothing has become due, but a doorbell may be on its way.
                model.may = None;
                if self.late || self.polled || self.rang {
                    self.may_become_due();
                }
            }
        } else if self.armed.is_some() {
            assert!(model.may.is_some(), "an event without a reason");
            model.has_arrived = true;
        }
        self.moderation.values = match count > 1 && period > 0 {
            true => Values {
                count: count.into(),
                period: Duration::from_micros(period.into()),
            },
            false => AT_ONCE,
        };
    }

    /// Checks at the end of a run that no event is delayed.
    pub fn check_delayed(&self) {
        let is_due = self.moderation.must.is_some();
        assert!(!is_due, "a delayed event is lost");
    }
}
