// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The engine's log as a row of a table.

use std::fmt;
use std::time::Duration;

/// The result of a target's run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of inputs that were run.
    executions: u64,
    /// Number of edges of the program.
    edges: u64,
    /// Number of edges that the corpora reach.
    covered_before: u64,
    /// Number of edges that were reached at the end of the run.
    covered_after: u64,
    /// Number of inputs that reached new paths through the program.
    new_paths: u64,
    /// Duration of the run.
    seconds: u64,
    /// Path of the input that failed, if one did.
    pub finding: Option<String>,
    /// Whether the engine ran to its end.
    pub complete: bool,
}

impl Report {
    /// The column headings of the table.
    pub const HEADER: &'static str =
        "target       executions  per s   coverage before  after  new paths  seconds  finding";

    /// Reads the log of a run that took `time`.
    pub fn new(log: &str, time: Duration) -> Self {
        let mut report = Self {
            seconds: time.as_secs(),
            ..Self::default()
        };
        // Lines before INITED report the coverage of the corpora alone.
        let mut is_first = true;
        for line in log.lines() {
            if let Some(value) = after(line, "cov: ") {
                if is_first {
                    report.covered_before = value;
                    is_first = !line.contains("INITED");
                }
                report.covered_after = value;
            }
            if let Some(value) = after(line, "stat::number_of_executed_units: ") {
                report.executions = value;
                report.complete = true;
            }
            if let Some(value) = after(line, "stat::new_units_added: ") {
                report.new_paths = value;
            }
            if line.contains("Loaded 1 modules") {
                report.edges = after(line, "modules   (").unwrap_or_default();
            }
            if let Some((_, path)) = line.split_once("Test unit written to ") {
                report.finding = Some(path.to_owned());
            }
        }
        report
    }
}

/// The number that follows `label`.
fn after(line: &str, label: &str) -> Option<u64> {
    let (_, rest) = line.split_once(label)?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != ' ')
        .unwrap_or(rest.len());
    rest[..end].split_whitespace().next()?.parse().ok()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.executions / self.seconds.max(1);
        let finding = match (&self.finding, self.complete) {
            (Some(path), _) => path,
            (None, true) => "none",
            (None, false) => "the engine broke off",
        };
        write!(
            f,
            "{:>10} {:>6} {:>9}/{:<7} {:>6} {:>10} {:>8}  {finding}",
            self.executions,
            rate,
            self.covered_before,
            self.edges,
            self.covered_after,
            self.new_paths,
            self.seconds,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
INFO: Loaded 1 modules   (9319 inline 8-bit counters): 9319 [0x1, 0x2),
#20\tINITED cov: 210 ft: 311 corp: 17/1b exec/s: 0 rss: 31Mb
#64\tNEW    cov: 215 ft: 312 corp: 18/1b exec/s: 0 rss: 31Mb
Test unit written to build/fuzz/x/crash-1
stat::number_of_executed_units: 70
stat::average_exec_per_sec:     35
stat::new_units_added:          1
";

    #[test]
    fn a_log_is_read() {
        let report = Report::new(LOG, Duration::from_secs(2));
        let expected = Report {
            executions: 70,
            edges: 9319,
            covered_before: 210,
            covered_after: 215,
            new_paths: 1,
            seconds: 2,
            finding: Some("build/fuzz/x/crash-1".to_owned()),
            complete: true,
        };
        assert_eq!(report, expected);
    }

    #[test]
    fn an_engine_that_broke_off_is_told() {
        let report = Report::new("", Duration::from_secs(2));
        assert!(!report.complete && report.finding.is_none());
        assert!(report.to_string().ends_with("the engine broke off"));
    }
}
