// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The event virtqueues of a VM.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use verbs::Virtqueues;
use virtio_rdma_abi::event::{Event, EventKind};
use virtio_rdma_abi::ib::AsyncEvent;
use virtqueue::Split;

use super::Mode;
use crate::wait;

/// Whether the device ever raises events of this kind, PKEY_CHANGE by a rule alone. [`Sink`] checks
/// each event.
fn is_raised(kind: EventKind) -> bool {
    !matches!(
        kind,
        EventKind::Async(
            AsyncEvent::PathMig
                | AsyncEvent::PathMigErr
                | AsyncEvent::DeviceFatal
                | AsyncEvent::LidChange
                | AsyncEvent::SmChange
                | AsyncEvent::ClientReregister
                | AsyncEvent::GidChange
        )
    )
}

/// Virtqueue, kind and cookie of an event.
type Sent = (u16, EventKind, u64);
/// The events of a VM.
type Events = Arc<Mutex<Vec<Sent>>>;

thread_local! {
    /// Events that this thread has written, for any VM, and whose interrupts it has not sent.
    static UNSENT: RefCell<Vec<(Events, Sent)>> = const { RefCell::new(Vec::new()) };
}

/// Event virtqueues of a VM, with a limited number of buffers. The driver sees an event when its
/// interrupt is sent.
#[derive(Default)]
pub struct Sink {
    pub buffers: AtomicUsize,
    pub events: Events,
    /// Whether the next write of an event panics.
    pub panics: AtomicBool,
    /// Lock for which each write of an event waits: a test that holds it holds up the turn.
    pub held: Mutex<()>,
    /// Reason for which the device needs a reset.
    failure: Mutex<Option<String>>,
    /// Enabled virtqueues of CQs and QPs.
    virtqueues: Mutex<BTreeMap<u16, Split>>,
    /// Whether the device raises completion events alone, as in virtqueue mode.
    only_completions: bool,
}

impl Virtqueues for Sink {
    fn push(&self, queue: u16, event: Event) -> bool {
        drop(self.held.lock().unwrap());
        if self.panics.swap(false, Ordering::SeqCst) {
            panic!("planted");
        }
        let took = self
            .buffers
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if took.is_ok() {
            let kind = event.kind().expect("a known event");
            assert!(is_raised(kind), "{kind:?}");
            self.write((queue, kind, event.cookie));
        }
        took.is_ok()
    }

    fn split(&self, queue: u16) -> Option<Split> {
        self.virtqueues.lock().unwrap().get(&queue).copied()
    }

    /// Stores the interrupt of a virtqueue as a completion event with the queue number as cookie.
    fn interrupt(&self, queue: u16) {
        self.write((queue, EventKind::Completion, queue.into()));
    }

    fn send_interrupts(&self) {
        for (events, event) in UNSENT.take() {
            events.lock().unwrap().push(event);
        }
    }

    fn fail(&self, why: &str) {
        *self.failure.lock().unwrap() = Some(why.to_owned());
    }
}

impl Sink {
    /// The virtqueues of a driver in this mode. In virtqueue mode there are no buffers for events.
    pub fn new(mode: Mode) -> Self {
        let buffers = match mode {
            Mode::OwnRings => 1_000_000,
            Mode::Virtqueues => 0,
        };
        Self {
            buffers: AtomicUsize::new(buffers),
            only_completions: mode == Mode::Virtqueues,
            ..Self::default()
        }
    }

    fn write(&self, event: Sent) {
        UNSENT.with_borrow_mut(|unsent| unsent.push((self.events.clone(), event)));
    }

    /// Waits for an event and removes it. Does not wait for asynchronous events in virtqueue mode,
    /// which has none.
    pub fn expect(&self, kind: EventKind, cookie: u64) {
        if self.only_completions && kind != EventKind::Completion {
            return;
        }
        wait(&format!("event {kind:?} of {cookie:#x}"), || {
            let mut events = self.events.lock().unwrap();
            let at = events
                .iter()
                .position(|event| (event.1, event.2) == (kind, cookie))?;
            Some(events.remove(at))
        });
    }

    /// Reason for which the device needs a reset, if it does.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap().clone()
    }

    /// Forgets this reason when the device is reset.
    pub(super) fn forget_failure(&self) {
        *self.failure.lock().unwrap() = None;
    }

    /// Waits until the device needs a reset because of a panic that the test caused.
    pub fn expect_failure(&self) {
        let why = wait("a failure of the device", || self.failure());
        assert_eq!(why, "panicked: planted");
    }

    pub(super) fn is_free(&self, queue: Option<u16>) -> bool {
        queue.is_some_and(|queue| self.split(queue).is_none())
    }

    pub fn enable(&self, queue: Option<u16>, split: Split) {
        let queue = queue.expect("a virtqueue");
        self.virtqueues.lock().unwrap().insert(queue, split);
    }

    pub fn disable(&self, queue: u16) {
        self.virtqueues.lock().unwrap().remove(&queue);
    }

    pub fn is_empty(&self) -> bool {
        self.events.lock().unwrap().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // abi: R-589
    #[test]
    fn events_that_are_never_raised() {
        let never = AsyncEvent::ALL
            .iter()
            .filter(|&&event| !is_raised(EventKind::Async(event)));
        assert_eq!(never.count(), 7);
        assert!(is_raised(EventKind::Completion));
    }
}
