// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Moderation of CQs: completion events that are due, but delayed.
//!
//! A moderated CQ sends its event after a number of completions or after some time. The deadlines
//! of an HCA are in one set. The flow of notifications has an entry in the timers for the first of
//! them, and treats a CQ whose deadline has passed as if its doorbell had rung.

mod saved;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scheduler::shared::Mutex;
use scheduler::{Alarm, Flow, FlowKey, Until};
use virtio_rdma_abi::number::Cqn;

pub(crate) use self::saved::ModeratorState;
use crate::Hca;

/// The values with which a CQ is moderated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moderation {
    count: u32,
    period: Duration,
}

impl Moderation {
    /// The moderation by `count` completions and `period` microseconds; `None` if these values
    /// demand that events are sent at once.
    pub(crate) fn new(count: u32, period: u32) -> Option<Self> {
        let period = Duration::from_micros(period.into());
        (count > 1 && !period.is_zero()).then_some(Self { count, period })
    }
}

/// A completion event that is due, but not sent.
#[derive(Debug)]
struct Delayed {
    /// Number of completions after which the event is sent.
    left: u32,
    /// Time at which the event is sent at the latest.
    deadline: Instant,
}

/// The moderation of one CQ.
#[derive(Debug, Default)]
pub(crate) struct Moderator {
    /// `None` if events are sent at once. There is no delayed event then.
    moderation: Option<Moderation>,
    delayed: Option<Delayed>,
    /// The CQ's only entry in the [`Deadlines`], which is removed when its time has passed. It is
    /// never later than the deadline of the delayed event, but may be earlier: a useless look at
    /// the CQ costs less than a change of the set with each event.
    entry: Option<Instant>,
}

impl Moderator {
    /// Whether CQ `cqn` sends its event now. `is_due` is true if the event has become due with the
    /// last `added` completions.
    #[inline]
    pub(crate) fn sends(&mut self, hca: &Hca, cqn: Cqn, is_due: bool, added: u32) -> bool {
        match self.moderation {
            None => is_due,
            Some(_) if !is_due && self.delayed.is_none() => false,
            Some(moderation) => self.delay(hca, cqn, moderation, added),
        }
    }

    /// Counts `added` completions, and returns whether the event is not to be delayed any longer.
    fn delay(&mut self, hca: &Hca, cqn: Cqn, moderation: Moderation, added: u32) -> bool {
        let now = hca.runtime().scheduler.clock.now();
        let delayed = self.delayed.get_or_insert(Delayed {
            left: moderation.count,
            deadline: now + moderation.period,
        });
        delayed.left = delayed.left.saturating_sub(added);
        let deadline = delayed.deadline;
        if delayed.left == 0 || deadline <= now {
            self.delayed = None;
            return true;
        }
        if self
            .entry
            .is_none_or(|entry| entry <= now || deadline < entry)
        {
            let old = self.entry.replace(deadline);
            let due = Due::Delayed(cqn);
            hca.objects.deadlines.change(hca, due, old, Some(deadline));
        }
        false
    }

    /// Time at which a delayed event is sent at the latest.
    pub(crate) fn delayed(&self) -> Option<Instant> {
        self.delayed.as_ref().map(|delayed| delayed.deadline)
    }

    /// Replaces the moderation. Returns whether an event was delayed; the caller must send it now.
    pub(crate) fn change(&mut self, moderation: Option<Moderation>) -> bool {
        self.moderation = moderation;
        self.delayed.take().is_some()
    }

    /// Drops the delayed event and the deadline of CQ `cqn`, which is destroyed.
    pub(crate) fn stop(&mut self, hca: &Hca, cqn: Cqn) {
        self.change(None);
        if let Some(old) = self.entry.take() {
            let due = Due::Delayed(cqn);
            hca.objects.deadlines.change(hca, due, Some(old), None);
        }
    }
}

/// The thing that is due at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The delayed event of a moderated CQ.
    Delayed(Cqn),
    /// Completions that a rule holds back.
    Held(Cqn),
    /// A completion event that a rule holds back.
    Late(Cqn),
    /// The link, which a rule has taken down, goes up.
    LinkUp,
}

/// The deadlines of an HCA, at most one for each thing that can be due.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    inner: Mutex<Inner>,
    /// Whether the link is to go up.
    link_up: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    set: BTreeSet<(Instant, Due)>,
    alarm: Alarm,
}

impl Deadlines {
    /// Replaces the deadline `old` of `due` by `new`.
    pub(crate) fn change(&self, hca: &Hca, due: Due, old: Option<Instant>, new: Option<Instant>) {
        let inner = &mut *self.inner.lock();
        if let Some(old) = old {
            inner.set.remove(&(old, due));
        }
        if let Some(new) = new {
            inner.set.insert((new, due));
        }
        inner.arm(hca);
    }

    /// Removes the deadlines that have passed, after the timers have removed the entry of the flow
    /// of notifications, whose turn follows.
    pub(crate) fn expired(&self, hca: &Hca) {
        let now = hca.runtime().scheduler.clock.now();
        let inner = &mut *self.inner.lock();
        inner.alarm.expired();
        while let Some(&(deadline, due)) = inner.set.first() {
            if deadline > now {
                break;
            }
            inner.set.pop_first();
            match due {
                Due::Delayed(cqn) | Due::Held(cqn) | Due::Late(cqn) => {
                    hca.flows.doorbells.ready_cqs.insert(cqn);
                }
                Due::LinkUp => self.link_up.store(true, Ordering::Relaxed),
            }
        }
        inner.arm(hca);
    }

    /// Returns and forgets whether the link is to go up.
    pub(crate) fn take_link_up(&self) -> bool {
        self.link_up.load(Ordering::Relaxed) && self.link_up.swap(false, Ordering::Relaxed)
    }

    /// Forgets that the link is to go up.
    pub(crate) fn forget_link(&self, hca: &Hca) {
        self.take_link_up();
        let inner = &mut *self.inner.lock();
        inner.set.retain(|(_, due)| *due != Due::LinkUp);
        inner.arm(hca);
    }
}

impl Inner {
    /// Ensures that the port's flow gets a turn at the first deadline. Without a deadline, the flow
    /// has no entry in the timers.
    fn arm(&mut self, hca: &Hca) -> Option<Until> {
        let scheduler = &hca.runtime().scheduler;
        let Some(&(first, _)) = self.set.first() else {
            self.alarm.clear(scheduler, flow_of(hca));
            return None;
        };
        let home = hca.flows.port.home(Flow::NOTIFICATIONS);
        Some(self.alarm.set(scheduler, flow_of(hca), home, first))
    }
}

/// The flow of the HCA's notifications.
fn flow_of(hca: &Hca) -> FlowKey {
    FlowKey {
        port: hca.port(),
        flow: Flow::NOTIFICATIONS,
    }
}
