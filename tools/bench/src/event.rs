// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Events: messages to the host from a part of the benchmark in a virtual machine, one line of JSON
//! each.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::figure::{Failure, Key, Report};

/// An event that a part of the benchmark reports while it runs.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub enum Event {
    /// The number of steps of this part.
    Plan(usize),
    /// The next step, with its description, begins.
    Step(String),
    /// A measured value.
    Value(Key, f64),
    /// Traffic is about to begin: the host reads the daemons' processor time.
    Begin,
    /// The traffic has ended: the host computes the daemons' processor time for it.
    End(Traffic),
    /// A request to add the daemons' memory, in MB, to this figure.
    Memory(Key),
    /// A note for the reader of the report.
    Note(String),
    /// A measurement has failed.
    Failure {
        /// The name of the measurement.
        what: String,
        error: String,
        /// The output of the programs.
        log: String,
    },
}

/// Traffic between a `Begin` and its `End`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Traffic {
    /// The key of the measurement's figure.
    pub key: Key,
    /// Bytes of payload that the traffic has moved.
    pub bytes: f64,
}

/// Writes a value as a line of JSON.
pub fn write_line(out: &mut impl Write, value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    out.write_all(&line)?;
    Ok(out.flush()?)
}

/// The destination of events.
pub enum Sink {
    /// The host: events are lines on standard output.
    Stream,
    /// A report. Steps and notes are printed on standard error.
    Local(Report),
}

impl Sink {
    /// A sink to the host if `stream` is set, else to a report.
    pub fn new(stream: bool) -> Self {
        match stream {
            true => Self::Stream,
            false => Self::Local(Report::default()),
        }
    }

    /// The report; empty if the events were sent to the host.
    pub fn into_report(self) -> Report {
        match self {
            Self::Local(report) => report,
            Self::Stream => Report::default(),
        }
    }

    /// Passes an event on.
    pub fn tell(&mut self, event: Event) -> Result<()> {
        match self {
            Self::Stream => {
                write_line(&mut io::stdout().lock(), &event).context("the host does not listen")
            }
            Self::Local(report) => {
                match event {
                    Event::Value(key, value) => report.add(key, value),
                    Event::Failure { what, error, log } => {
                        eprintln!("{log}");
                        report.failures.push(Failure {
                            what,
                            error,
                            log: None,
                        });
                    }
                    Event::Step(text) | Event::Note(text) => eprintln!("bench: {text}"),
                    Event::Plan(_) | Event::Begin | Event::End(_) | Event::Memory(_) => {}
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_and_comes_back() {
        let event = Event::End(Traffic {
            key: Key::new("write bandwidth", "rxe", "MB/s").size(2),
            bytes: 4096.0,
        });
        let line = serde_json::to_string(&event).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
