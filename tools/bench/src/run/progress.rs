// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The progress line: the running part, the share that is done, and the time. On a terminal the
//! line is updated in place; otherwise a new line is printed from time to time.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Minimum interval between lines, without a terminal.
const QUIET: Duration = Duration::from_secs(20);
/// Columns for the description of the step.
const WIDTH: usize = 60;

/// The progress of a run.
pub struct Progress {
    terminal: bool,
    began: Instant,
    last: Option<Instant>,
    part: String,
    done: usize,
    planned: usize,
}

impl Progress {
    /// The progress at the start.
    pub fn new() -> Self {
        Self {
            terminal: io::stderr().is_terminal(),
            began: Instant::now(),
            last: None,
            part: String::new(),
            done: 0,
            planned: 0,
        }
    }

    /// Begins a part.
    pub fn part(&mut self, name: &str) {
        self.part = name.to_owned();
        (self.done, self.planned) = (0, 0);
        self.last = None;
        self.show("");
    }

    /// Sets the number of the part's steps.
    pub fn plan(&mut self, steps: usize) {
        self.planned = steps;
    }

    /// Begins the next step.
    pub fn step(&mut self, what: &str) {
        self.done += 1;
        self.show(what);
    }

    /// Prints a permanent line.
    pub fn note(&mut self, text: &str) {
        self.clear();
        eprintln!("bench: {text}");
    }

    /// Clears the progress line on a terminal.
    pub fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
            let _ = io::stderr().flush();
        }
    }

    fn show(&mut self, what: &str) {
        let due = self.last.is_none_or(|last| last.elapsed() >= QUIET);
        if !self.terminal && !due {
            return;
        }
        self.last = Some(Instant::now());
        let line = line(
            self.began.elapsed(),
            &self.part,
            self.done,
            self.planned,
            what,
        );
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            let _ = io::stderr().flush();
        } else {
            eprintln!("bench: {line}");
        }
    }
}

fn line(taken: Duration, part: &str, done: usize, planned: usize, what: &str) -> String {
    let seconds = taken.as_secs();
    let clock = format!("{}:{:02}", seconds / 60, seconds % 60);
    let steps = match planned {
        0 => String::new(),
        _ => format!(" {done}/{planned}"),
    };
    let what: String = what.chars().take(WIDTH).collect();
    format!("{clock}  {part}{steps}  {what}")
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_how_far_and_how_long() {
        let taken = Duration::from_secs(83);
        assert_eq!(
            line(taken, "direct", 3, 40, "rxe: write bandwidth"),
            "1:23  direct 3/40  rxe: write bandwidth"
        );
        assert_eq!(line(taken, "host", 0, 0, ""), "1:23  host");
    }
}
