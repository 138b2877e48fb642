// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The recorder of one port.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::event::{Event, Kind};
use crate::ring::{Entry, Ring};

/// Events of a QP that are logged when it fails.
const TOLD: usize = 8;
/// Time between two kept events of a kind that a guest or the wire can cause at any rate.
const REPEAT_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two QPs of a port whose failures are logged.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// The events that are logged when they occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    Nothing,
    Qp(u32),
    /// The port and all its QPs.
    All,
}

impl Traced {
    const fn word(self) -> u32 {
        match self {
            Self::Nothing => NOTHING,
            Self::Qp(qpn) => qpn,
            Self::All => ALL,
        }
    }
}

const NOTHING: u32 = 0;
const ALL: u32 = u32::MAX;

/// An event that was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The number of the event since the ring began. A gap is left by events that were lost.
    pub number: u64,
    /// Time since the recorder's start.
    pub at: Duration,
    pub event: Event,
}

/// The recorder of one port.
pub struct Recorder {
    /// The port's name, for log lines.
    port: String,
    start: Instant,
    ring: Ring,
    /// The last refusal of a command, which later events don't push out: a ring of one slot.
    refusals: Ring,
    traced: AtomicU32,
    /// When an event of each kind was last kept, in ns after `start`, plus 1; 0 if none was. Only
    /// of kinds that can occur at any rate.
    kept: [AtomicU64; Kind::Retransmission as usize],
    /// When the failure of a QP was last logged, in ns after `start`, plus 1; 0 if it never was.
    told: AtomicU64,
    /// Failures that were not logged since then.
    untold: AtomicU64,
}

impl Recorder {
    /// A recorder that keeps its events in `ring`. Its times are those since `start`, which must be
    /// the same as that of earlier recorders of the ring.
    pub fn new(port: impl Into<String>, ring: Ring, start: Instant) -> Self {
        Self {
            port: port.into(),
            start,
            ring,
            refusals: Ring::own(1),
            traced: AtomicU32::new(NOTHING),
            kept: [const { AtomicU64::new(0) }; Kind::Retransmission as usize],
            told: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// Bytes that the events take.
    pub fn memory(&self) -> u64 {
        self.ring.bytes() + self.refusals.bytes()
    }

    /// Selects the events that are logged when they occur.
    pub fn set_traced(&self, traced: Traced) {
        self.traced.store(traced.word(), Ordering::Relaxed);
    }

    /// The port's name.
    pub fn port(&self) -> &str {
        &self.port
    }

    /// Whether events of this QP, or of the port if it is 0, are logged when they occur. The
    /// caller asks first if its event is [not kept](Event::is_kept).
    #[inline]
    pub fn is_traced(&self, qpn: u32) -> bool {
        match self.traced.load(Ordering::Relaxed) {
            NOTHING => false,
            ALL => true,
            traced => traced == qpn,
        }
    }

    /// Keeps an event, and logs it if it is traced. The refusal of a command is always logged, at
    /// debug.
    pub fn note(&self, now: Instant, event: Event) {
        let is_refusal = event.refusal().is_some();
        if self.is_traced(event.qpn) {
            tracing::info!(port = self.port, "{event}");
        } else if is_refusal {
            tracing::debug!(port = self.port, "{event}");
        }
        if event.is_kept() && !self.repeats(now, &event) {
            let entry = event.entry(self.nanos(now));
            if is_refusal {
                self.refusals.push(entry);
            }
            self.ring.push(entry);
        }
    }

    /// The last command that was refused. Its number counts refusals.
    pub fn last_refusal(&self) -> Option<Recorded> {
        let (entries, _) = self.refusals.read(0);
        entries.into_iter().find_map(decode)
    }

    /// Logs the last events of a QP that failed. A guest can make its QPs fail at any rate, so not
    /// each failure is logged.
    pub fn tell(&self, now: Instant, qpn: u32) {
        let nanos = self.nanos(now) + 1;
        let told = self.told.load(Ordering::Relaxed);
        let is_soon = told != 0 && nanos < told + TELL_INTERVAL.as_nanos() as u64;
        let ours = || {
            let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
            self.told.compare_exchange(told, nanos, set, get).is_ok()
        };
        if is_soon || !ours() {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let untold = self.untold.swap(0, Ordering::Relaxed);
        let (events, _) = self.read(0);
        let of_qp: Vec<_> = events.iter().filter(|each| each.event.qpn == qpn).collect();
        let last = of_qp.len().saturating_sub(TOLD);
        tracing::info!(
            port = self.port,
            qpn,
            untold,
            "a QP failed; its last events:"
        );
        for Recorded { at, event, .. } in &of_qp[last..] {
            let ago = self.since_start(now).saturating_sub(*at);
            tracing::info!(port = self.port, "{:.6} s ago: {event}", ago.as_secs_f64());
        }
    }

    /// The events from number `from` on that are still there, and the number of the next one.
    pub fn read(&self, from: u64) -> (Vec<Recorded>, u64) {
        let (entries, next) = self.ring.read(from);
        (entries.into_iter().filter_map(decode).collect(), next)
    }

    /// The time of an instant, as [`Recorded::at`] has it.
    pub fn since_start(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }

    fn nanos(&self, now: Instant) -> u64 {
        // A u64 of nanoseconds lasts for five centuries, so the cast does not truncate.
        self.since_start(now).as_nanos() as u64
    }

    /// Whether an event is left out, because it can occur at any rate and an event of its kind was
    /// kept just now.
    fn repeats(&self, now: Instant, event: &Event) -> bool {
        let kept = self.kept.get(event.kind as usize);
        let Some(kept) = kept.filter(|_| event.repeats()) else {
            return false;
        };
        let (last, nanos) = (kept.load(Ordering::Relaxed), self.nanos(now) + 1);
        if last != 0 && nanos < last + REPEAT_INTERVAL.as_nanos() as u64 {
            return true;
        }
        kept.store(nanos, Ordering::Relaxed);
        false
    }
}

fn decode((number, entry): (u64, Entry)) -> Option<Recorded> {
    let (nanos, event) = Event::from_entry(entry)?;
    let at = Duration::from_nanos(nanos);
    Some(Recorded { number, at, event })
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
