// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Messages of a part that measures in a virtual machine to the host, a line of JSON each.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::figure::{Failure, Key, Report};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub enum Event {
    /// So many steps are to come.
    Plan(usize),
    /// The next step begins.
    Step(String),
    /// A measured value.
    Value(Key, f64),
    /// Traffic is about to begin: the host notes what the daemon has used so far.
    Begin,
    /// It has ended; the host works out what the daemon used for it.
    End(Traffic),
    /// The host adds the memory of the daemons to this figure, in MB.
    Memory(Key),
    /// A note for the reader of the report.
    Note(String),
    /// Something could not be measured.
    Failure {
        /// The name of the measurement.
        what: String,
        /// Why not.
        error: String,
        /// Output of the programs.
        log: String,
    },
}

/// Traffic between a `Begin` and its `End`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Traffic {
    /// The measurement, as the key of the figure has it.
    pub key: Key,
    /// Bytes of payload that were moved.
    pub bytes: f64,
}

/// Where events go.
pub enum Sink {
    /// To the host, as lines on standard output.
    Stream,
    /// Into a report, with steps and notes on standard error.
    Local(Report),
}

impl Sink {
    /// To the host with `stream`.
    pub fn new(stream: bool) -> Self {
        match stream {
            true => Self::Stream,
            false => Self::Local(Report::default()),
        }
    }

    /// The measurements, if nobody was told of them.
    pub fn into_report(self) -> Report {
        match self {
            Self::Local(report) => report,
            Self::Stream => Report::default(),
        }
    }

    /// Passes one on.
    pub fn tell(&mut self, event: Event) -> Result<()> {
        match self {
            Self::Stream => {
                let mut line = serde_json::to_vec(&event)?;
                line.push(b'\n');
                let mut out = io::stdout().lock();
                out.write_all(&line)?;
                out.flush().context("the host does not listen")
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
