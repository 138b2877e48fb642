// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The last events of a port: the daemon's answers, and their text form.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use recorder::{Kind, Recorded, Recorder, Value as Number};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use verbs::Hca;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The number of the event since the port began; a gap is left by events that were lost.
    pub number: u64,
    /// Microseconds since 1970.
    pub time_us: u64,
    /// The QP; null for an event of the port.
    pub qpn: Option<u32>,
    /// The kind of the event in words.
    pub event: String,
    /// The numbers of the event, by name.
    pub values: Map<String, Value>,
    /// The whole event in words.
    pub text: String,
}

/// Events from some number on, and the number of the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    pub events: Vec<Told>,
    pub next: u64,
}

impl Events {
    /// The events of a port from number `from` on, as far as they are still there; those of one QP
    /// if there is a `qpn`. The last failure of the port has the reason, until the next reset.
    pub fn of(hca: &Hca, from: u64, qpn: Option<u32>) -> Self {
        let recorder = hca.recorder();
        let start = start(hca, recorder);
        let (events, next) = recorder.read(from);
        let wanted = |each: &&Recorded| qpn.is_none_or(|qpn| qpn == each.event.qpn);
        let events = events.iter().filter(wanted);
        let mut events: Vec<_> = events.map(|each| Told::new(each, start)).collect();
        let failed = |event: &&mut Told| event.event == Kind::PortFailed.text();
        let last = events.iter_mut().rfind(failed);
        if let Some((event, why)) = last.zip(hca.failure()) {
            event.text += &format!(": {why}");
            event.values.insert("why".into(), why.into());
        }
        Self { events, next }
    }
}

/// The time at which the recorder's clock began.
fn start(hca: &Hca, recorder: &Recorder) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = recorder.since_start(hca.now());
    now.unwrap_or_default().saturating_sub(since)
}

impl Told {
    fn new(Recorded { number, at, event }: &Recorded, start: Duration) -> Self {
        let value = |value| match value {
            Number::Number(number) => Value::from(number),
            Number::Word(word) => Value::from(word),
        };
        let values = event.values().into_iter();
        Self {
            number: *number,
            // A u64 of microseconds lasts for 500,000 years, so the cast does not truncate.
            time_us: (start + *at).as_micros() as u64,
            qpn: (event.qpn != 0).then_some(event.qpn),
            event: event.kind.text().to_owned(),
            values: values
                .map(|(name, number)| (name.to_owned(), value(number)))
                .collect(),
            text: event.to_string(),
        }
    }

    /// The last command that the device of a port refused.
    pub fn last_refusal(hca: &Hca) -> Option<Self> {
        let recorder = hca.recorder();
        let last = recorder.last_refusal()?;
        Some(Self::new(&last, start(hca, recorder)))
    }

    /// A line: the time of day (UTC), and what happened.
    pub fn line(&self) -> String {
        format!("{} {}", time_of_day(self.time_us), self.text)
    }
}

/// The time of day (UTC) of a time in microseconds since 1970.
pub fn time_of_day(time_us: u64) -> String {
    let seconds = time_us / 1_000_000;
    format!(
        "{:02}:{:02}:{:02}.{:06}",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
        time_us % 1_000_000,
    )
}
