// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The phases of a start, from this program's first step to the end of the command.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use guest::{AGENT_PHASE, RESTORED_PHASE};
use serde::Serialize;

/// A phase and its duration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    name: String,
    milliseconds: f64,
}

/// The phases up to now.
#[derive(Clone, Debug)]
pub struct Phases {
    began: Instant,
    all: Vec<Phase>,
    /// The end of the last phase, in seconds.
    end: f64,
}

impl Phases {
    /// Starts the first phase.
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            all: Vec::new(),
            end: 0.0,
        }
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Ends a phase.
    pub fn end(&mut self, name: &str) {
        self.push(name, self.elapsed().as_secs_f64());
    }

    fn push(&mut self, name: &str, end: f64) {
        self.all.push(Phase {
            name: name.to_owned(),
            milliseconds: (end - self.end) * 1e3,
        });
        self.end = end;
    }

    /// Adds the phases of a guest: lines of their ends since the kernel's start, and their names.
    /// The guest's agent was up at the time `agent`, which sets the guest's clock.
    pub fn add_guest(&mut self, lines: &str, agent: Duration) -> Result<()> {
        let parse = |line: &str| -> Option<(f64, String)> {
            let (end, name) = line.split_once(' ')?;
            Some((end.parse().ok()?, name.to_owned()))
        };
        let marks: Vec<_> = lines.lines().filter_map(parse).collect();
        let of_agent = marks.iter().find(|(_, name)| name == AGENT_PHASE);
        let (up, _) = of_agent.context("the guest has not reported its phases")?;
        let kernel = agent.as_secs_f64() - up;
        // The kernel of a restored guest has started earlier.
        if !marks.iter().any(|(_, name)| name == RESTORED_PHASE) {
            self.push("QEMU and firmware", kernel);
        }
        for (end, name) in &marks {
            self.push(name, kernel + end);
        }
        Ok(())
    }

    /// All phases.
    pub fn all(&self) -> &[Phase] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_a_guest_follow_those_of_the_host() {
        let mut phases = Phases::new();
        phases.push("launcher", 0.5);
        let lines = "1.25 kernel\n1.5 agent\n1.75 port\n";
        phases
            .add_guest(lines, Duration::from_millis(2250))
            .unwrap();
        let all: Vec<_> = phases
            .all()
            .iter()
            .map(|phase| (&*phase.name, phase.milliseconds))
            .collect();
        let expected = [
            ("launcher", 500.0),
            ("QEMU and firmware", 250.0),
            ("kernel", 1250.0),
            ("agent", 250.0),
            ("port", 250.0),
        ];
        assert_eq!(all, expected);
        assert!(phases.add_guest("1.25 kernel\n", Duration::ZERO).is_err());
    }
}
