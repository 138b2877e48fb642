// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Delivery of events to the driver.

mod saved;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use scheduler::shared::Mutex;
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::event::{Event, EventKind, FIRST_EVENT_QUEUE};
use virtio_rdma_abi::ib::AsyncEvent;
use virtio_rdma_abi::number::{Cqn, Number, Qpn, Srqn};

pub(crate) use self::saved::EventState;
use crate::encoding::number;
use crate::turn::{done, TurnBudget};
use crate::virtqueues::Virtqueues;

/// The object to which an event belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum EventSource {
    /// Completion events of a CQ.
    Completions(#[serde(with = "number")] Cqn),
    /// Asynchronous events of a CQ.
    Cq(#[serde(with = "number")] Cqn),
    /// Asynchronous events of a QP.
    Qp(#[serde(with = "number")] Qpn),
    /// Asynchronous events of an SRQ.
    Srq(#[serde(with = "number")] Srqn),
    /// Asynchronous events of the port.
    Port,
}

/// The virtqueue number of an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventQueue(pub u16);

impl Number for EventQueue {
    fn new(value: u32) -> Self {
        // CAST: Virtqueue numbers have 16 bits.
        Self(value as u16)
    }
    fn get(self) -> u32 {
        self.0.into()
    }
}

/// Bytes charged to a QP for its waiting events, in addition to `BOOKKEEPING`: a QP has more kinds
/// of events than other objects.
pub(crate) const QP_EVENTS: usize = 256;

/// Events of one object that wait for a buffer. At most one event of each kind waits, so the number
/// of objects limits the memory of waiting events.
#[derive(Debug)]
struct Waiting {
    cookie: u64,
    /// Keys of the object's events in [`Backlog::order`].
    places: Vec<u64>,
}

/// Events that wait for one event queue.
#[derive(Debug, Default)]
struct Backlog {
    /// Waiting events, oldest first. The key is a running number.
    order: BTreeMap<u64, (EventSource, EventKind)>,
    next: u64,
    waiting: HashMap<EventSource, Waiting>,
}

impl Backlog {
    /// Adds an event. An asynchronous event that already waits moves to the end, so the port's last
    /// event matches the port's state. A waiting completion event keeps its place.
    fn add(&mut self, source: EventSource, kind: EventKind, cookie: u64) {
        let Self {
            order,
            next,
            waiting,
        } = self;
        let waiting = waiting.entry(source).or_insert_with(|| Waiting {
            cookie,
            places: Vec::new(),
        });
        let is_it = |place: &u64| order.get(place) == Some(&(source, kind));
        if let Some(at) = waiting.places.iter().position(is_it) {
            if kind == EventKind::Completion {
                return;
            }
            order.remove(&waiting.places.swap_remove(at));
        }
        order.insert(*next, (source, kind));
        waiting.places.push(*next);
        *next += 1;
    }

    /// The oldest waiting event and its key.
    fn first(&self) -> Option<(u64, Event)> {
        let (place, (source, kind)) = self.order.first_key_value()?;
        let cookie = self.waiting.get(source)?.cookie;
        Some((*place, Event::new(*kind, cookie)))
    }

    /// Removes the event with key `place`.
    fn remove(&mut self, place: u64) {
        let Some((source, _)) = self.order.remove(&place) else {
            return;
        };
        if let Entry::Occupied(mut entry) = self.waiting.entry(source) {
            entry.get_mut().places.retain(|other| *other != place);
            if entry.get().places.is_empty() {
                entry.remove();
            }
        }
    }

    /// Removes all events of an object.
    fn forget(&mut self, source: EventSource) {
        let waiting = self.waiting.remove(&source);
        for place in waiting.into_iter().flat_map(|waiting| waiting.places) {
            self.order.remove(&place);
        }
    }
}

/// The event queues of an HCA.
pub(crate) struct EventQueues {
    sink: Arc<dyn Virtqueues>,
    /// Element n belongs to virtqueue `FIRST_EVENT_QUEUE + n`.
    backlogs: Box<[Mutex<Backlog>]>,
}

impl EventQueues {
    /// Creates `count` event queues.
    pub(crate) fn new(count: u32, sink: Arc<dyn Virtqueues>) -> Self {
        Self {
            sink,
            backlogs: (0..count).map(|_| Mutex::default()).collect(),
        }
    }

    /// Sends a completion event of CQ `cqn` over virtqueue `queue`.
    pub(crate) fn completion(&self, queue: u16, cqn: Cqn, cookie: u64) {
        self.send(
            queue,
            EventSource::Completions(cqn),
            EventKind::Completion,
            cookie,
        );
    }

    /// Sends an asynchronous event.
    pub(crate) fn asynchronous(&self, source: EventSource, event: AsyncEvent, cookie: u64) {
        self.send(FIRST_EVENT_QUEUE, source, EventKind::Async(event), cookie);
    }

    /// Drops the waiting events of a destroyed object from virtqueue `queue`.
    pub(crate) fn forget(&self, queue: u16, source: EventSource) {
        if let Some(backlog) = self.backlog(queue) {
            backlog.lock().forget(source);
        }
    }

    /// Drops all waiting events.
    pub(crate) fn clear(&self) {
        for backlog in &self.backlogs {
            *backlog.lock() = Backlog::default();
        }
    }

    /// Sends the waiting events of virtqueue `queue` until its buffers or the turn's budget are
    /// used up. Returns whether more events may be sendable now.
    pub(crate) fn resume(&self, queue: u16, budget: &TurnBudget<'_>) -> bool {
        let Some(backlog) = self.backlog(queue) else {
            return false;
        };
        let mut backlog = backlog.lock();
        while !budget.is_spent() {
            let Some((place, event)) = backlog.first() else {
                return false;
            };
            budget.charge_notification();
            if !self.sink.push(queue, event) {
                return false;
            }
            done::notified(1);
            backlog.remove(place);
        }
        true
    }

    fn send(&self, queue: u16, source: EventSource, kind: EventKind, cookie: u64) {
        let Some(backlog) = self.backlog(queue) else {
            return;
        };
        let mut backlog = backlog.lock();
        if backlog.order.is_empty() && self.sink.push(queue, Event::new(kind, cookie)) {
            return;
        }
        backlog.add(source, kind, cookie);
    }

    fn backlog(&self, queue: u16) -> Option<&Mutex<Backlog>> {
        self.backlogs
            .get(usize::from(queue.checked_sub(FIRST_EVENT_QUEUE)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::TURN;
    use crate::Clock;

    #[derive(Default)]
    struct Buffers {
        free: Mutex<usize>,
        sent: Mutex<Vec<(u16, Event)>>,
    }

    impl Virtqueues for Buffers {
        fn push(&self, queue: u16, event: Event) -> bool {
            let mut free = self.free.lock();
            if *free == 0 {
                return false;
            }
            *free -= 1;
            self.sent.lock().push((queue, event));
            true
        }

        fn split(&self, _queue: u16) -> Option<virtqueue::Split> {
            None
        }

        fn interrupt(&self, _queue: u16) {}

        fn send_interrupts(&self) {}
    }

    /// Sends events in a turn.
    fn resume(events: &EventQueues, queue: u16) -> bool {
        let clock = Clock::manual();
        events.resume(queue, &TurnBudget::new(&clock, clock.now(), TURN))
    }

    // abi
    #[test]
    fn a_long_backlog_is_sent_in_many_turns_and_forgets_at_once() {
        let sink = Arc::new(Buffers::default());
        let events = EventQueues::new(1, sink.clone());
        let count = 1000;
        for cqn in 0..count {
            events.completion(1, Cqn::new(cqn), cqn.into());
        }
        for cqn in (0..count).step_by(2) {
            events.forget(1, EventSource::Completions(Cqn::new(cqn)));
        }
        // The next event of CQ 0 goes to the end of the backlog.
        events.completion(1, Cqn::new(0), 0);
        {
            let backlog = events.backlogs[0].lock();
            assert_eq!(backlog.order.len(), backlog.waiting.len(), "one each");
        }
        *sink.free.lock() = usize::MAX;
        let mut turns = 1;
        while resume(&events, 1) {
            turns += 1;
            assert!(sink.sent.lock().len() <= turns * 64);
        }
        assert!(turns > 1);
        let sent = sink.sent.lock();
        let cookies = sent.iter().map(|(_, event)| event.cookie);
        let odd = (0..count).filter(|cqn| cqn % 2 == 1);
        assert!(cookies.eq(odd.chain([0]).map(u64::from)));
    }

    // abi
    #[test]
    fn a_full_queue_loses_nothing_and_keeps_the_order() {
        let sink = Arc::new(Buffers::default());
        let events = EventQueues::new(2, sink.clone());
        let fatal = EventKind::Async(AsyncEvent::QpFatal);
        let access = EventKind::Async(AsyncEvent::QpAccessErr);
        events.completion(1, Cqn::new(5), 50);
        events.completion(1, Cqn::new(4), 40);
        events.completion(1, Cqn::new(5), 50);
        events.asynchronous(EventSource::Qp(Qpn::new(9)), AsyncEvent::QpAccessErr, 90);
        events.asynchronous(EventSource::Qp(Qpn::new(9)), AsyncEvent::QpFatal, 90);
        events.asynchronous(EventSource::Qp(Qpn::new(8)), AsyncEvent::QpFatal, 80);
        events.forget(1, EventSource::Qp(Qpn::new(8)));
        events.completion(2, Cqn::new(6), 60);
        resume(&events, 1);
        assert!(sink.sent.lock().is_empty());
        *sink.free.lock() = 2;
        resume(&events, 1);
        *sink.free.lock() = 9;
        events.asynchronous(EventSource::Port, AsyncEvent::PortActive, 1);
        resume(&events, 1);
        resume(&events, 2);
        events.completion(1, Cqn::new(4), 40);
        let sent: Vec<_> = sink
            .sent
            .lock()
            .iter()
            .map(|(queue, event)| (*queue, event.kind().unwrap(), event.cookie))
            .collect();
        assert_eq!(
            sent,
            [
                (1, EventKind::Completion, 50),
                (1, EventKind::Completion, 40),
                (1, access, 90),
                (1, fatal, 90),
                (1, EventKind::Async(AsyncEvent::PortActive), 1),
                (2, EventKind::Completion, 60),
                (1, EventKind::Completion, 40),
            ]
        );
    }

    // abi
    #[test]
    fn events_that_wait_are_sent_in_the_order_in_which_they_were_raised() {
        use AsyncEvent::{CommEst, PortActive, PortErr, QpFatal, SrqLimitReached};
        let (qp, srq) = (EventSource::Qp(Qpn::new(9)), EventSource::Srq(Srqn::new(3)));
        let sink = Arc::new(Buffers::default());
        let events = EventQueues::new(1, sink.clone());
        for (source, event) in [
            (qp, CommEst),
            (EventSource::Port, PortErr),
            (srq, SrqLimitReached),
            (qp, QpFatal),
            (EventSource::Port, PortActive),
        ] {
            events.asynchronous(source, event, 0);
        }
        *sink.free.lock() = 1;
        resume(&events, 1);
        // PortErr occurs again, after PortActive. Each kind waits once, in the place of its last
        // occurrence.
        events.asynchronous(EventSource::Port, PortErr, 0);
        *sink.free.lock() = 9;
        resume(&events, 1);
        let sent = sink.sent.lock();
        let kinds = sent.iter().map(|(_, event)| event.kind().unwrap());
        let expected = [CommEst, SrqLimitReached, QpFatal, PortActive, PortErr];
        assert!(kinds.eq(expected.map(EventKind::Async)));
        let backlog = events.backlogs[0].lock();
        assert!(backlog.order.is_empty() && backlog.waiting.is_empty());
    }
}
