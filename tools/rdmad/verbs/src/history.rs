// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events that the engine notes in the flight recorder of its port.

use std::time::{Duration, Instant};

use recorder::{Event, Kind, Recorder};
use roce::env::Incident;
use roce::work::{Remote, WcFault, WcReason};
use roce::{Packet, Psn};
use virtio_rdma_abi::ib::AsyncEvent;
use virtio_rdma_abi::number::Qpn;

use crate::counters::Counter;
use crate::qp::Qp;
use crate::turn::Parked;
use crate::Hca;

/// Time after which work that stood still is noted.
const LONG: Duration = Duration::from_millis(10);

impl Hca {
    /// The last events of the port.
    pub fn recorder(&self) -> &Recorder {
        &self.config().recorder
    }

    /// The time of the clock by which the engine works.
    pub fn now(&self) -> Instant {
        self.runtime().scheduler.clock.now()
    }

    /// Notes an event of the port.
    pub(crate) fn note(&self, kind: Kind, a: u32, b: u64) {
        self.note_event(Event::port(kind, a, b));
    }

    /// Notes that an asynchronous event is raised.
    pub(crate) fn note_raised(&self, qpn: u32, event: AsyncEvent, cookie: u64) {
        self.note_event(Event {
            kind: Kind::Raised,
            qpn,
            a: event.value().into(),
            b: cookie,
            c: 0,
        });
    }

    /// Notes a packet with this PSN that is dropped. No QP takes it.
    pub(crate) fn note_packet(&self, kind: Kind, dest: Qpn, psn: Psn) {
        self.note_event(Event {
            kind,
            qpn: dest.get(),
            a: psn.value(),
            b: 0,
            c: 0,
        });
    }

    #[inline]
    pub(crate) fn note_event(&self, event: Event) {
        let recorder = self.recorder();
        if event.is_kept() || recorder.is_traced(event.qpn) {
            recorder.note(self.now(), event);
        }
    }
}

impl Qp {
    /// Notes an event of the QP.
    #[inline]
    pub(crate) fn note(&self, hca: &Hca, kind: Kind, a: u32, b: u64) {
        hca.note_event(Event {
            kind,
            qpn: self.number.get(),
            a,
            b,
            c: 0,
        });
    }

    /// Notes a work request that fails by itself.
    pub(crate) fn note_fault(&self, hca: &Hca, kind: Kind, wr_id: u64, fault: WcFault) {
        if fault == WcFault::FLUSHED {
            return;
        }
        hca.note_event(Event {
            kind,
            qpn: self.number.get(),
            a: fault.status.value().into(),
            b: wr_id,
            c: fault.reason.value().into(),
        });
    }

    /// Notes a request of the peer for memory at `at` that is refused.
    pub(crate) fn note_refused(&self, hca: &Hca, at: Remote, reason: WcReason) {
        hca.note_event(Event {
            kind: Kind::RkeyRefused,
            qpn: self.number.get(),
            a: at.rkey,
            b: at.va,
            c: reason.value().into(),
        });
    }

    /// Counts and notes an incident of a service's state machine.
    pub(crate) fn incident(&self, hca: &Hca, what: Incident, psn: Psn, number: u32) {
        if let Some(counter) = Counter::of(what) {
            self.count(hca, counter, 1);
        }
        self.note(hca, kind(what), psn.value(), number.into());
    }

    /// Notes a packet that is dropped because of the QP's state.
    pub(crate) fn note_unreceived(&self, hca: &Hca, packet: &Packet<'_>) {
        let state = self.state().map_or(u64::MAX, |state| state.value().into());
        let psn = packet.headers.bth.psn.value();
        self.note(hca, Kind::NotReceiving, psn, state);
    }

    /// Notes the failure of the QP, and logs how it came about.
    #[cold]
    pub(crate) fn note_failure(&self, hca: &Hca, to: u8) {
        self.note(hca, Kind::Failed, to.into(), 0);
        hca.recorder().tell(hca.now(), self.number.get());
    }

    /// Notes that work stood still from `since` to `now`, if this was long.
    #[inline]
    pub(crate) fn note_wait(&self, hca: &Hca, waited: Parked, since: Instant, now: Instant) {
        if waited.is_for_work() {
            let time = now.saturating_duration_since(since);
            // The wait of a failed QP does not matter any more.
            if time >= LONG && self.awaits_responses() {
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                self.note(hca, Kind::Waited, waited.bits(), ms);
            }
        }
    }
}

/// The kind of events that an incident is.
fn kind(what: Incident) -> Kind {
    match what {
        Incident::Retransmission => Kind::Retransmission,
        Incident::Timeout => Kind::Timeout,
        Incident::NakSent => Kind::NakSent,
        Incident::RnrNakSent => Kind::RnrNakSent,
        Incident::NakReceived => Kind::NakReceived,
        Incident::RnrNakReceived => Kind::RnrNakReceived,
        Incident::ResponseLost => Kind::ResponseLost,
        Incident::OutOfSequence => Kind::OutOfSequence,
        Incident::Duplicate => Kind::Duplicate,
        Incident::Marked => Kind::Marked,
        Incident::NotificationSent => Kind::NotificationSent,
        Incident::NotificationReceived => Kind::NotificationReceived,
        Incident::Probe => Kind::Probe,
    }
}
