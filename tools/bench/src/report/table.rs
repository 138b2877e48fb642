// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures as lines of text.

use std::fmt::Write as _;

use super::matrix::matrix;
use crate::figure::{Figure, Report, Target};

/// A line for each figure with its median, least and greatest sample; failures follow.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    let mut alone = report
        .figures
        .iter()
        .filter(|f| f.key.shape.is_none())
        .peekable();
    if alone.peek().is_some() {
        text += &line("what", "of", "size", "median", "least", "greatest", "unit");
    }
    for Figure { key, samples } in alone {
        text += &line(
            &key.what(),
            &key.configuration,
            &key.size.map_or_else(String::new, bytes),
            &number(samples.median()),
            &number(samples.min()),
            &number(samples.max()),
            &key.unit,
        );
    }
    text += &matrix(report);
    if !report.targets.is_empty() {
        text.push('\n');
    }
    for target in &report.targets {
        text += &judgement(target);
    }
    for failure in &report.failures {
        let _ = write!(text, "error: {}: {}", failure.what, failure.error);
        if let Some(log) = &failure.log {
            let _ = write!(text, " (see {log})");
        }
        text.push('\n');
    }
    text
}

fn judgement(target: &Target) -> String {
    let mark = match target.reached {
        Some(true) => "reached",
        Some(false) => "falls short",
        None => "not measured",
    };
    let value = target.value.map_or_else(String::new, number);
    let Target {
        what, needed, at, ..
    } = target;
    format!("{mark:<12} {what:<72} {needed:<24} {value:>8}  {at}")
        .trim_end()
        .to_owned()
        + "\n"
}

fn line(
    name: &str,
    configuration: &str,
    size: &str,
    median: &str,
    min: &str,
    max: &str,
    unit: &str,
) -> String {
    format!("{name:<44} {configuration:<14} {size:>8} {median:>10} {min:>10} {max:>10}  {unit}\n")
}

/// A size as people write it.
pub fn bytes(size: u64) -> String {
    match size {
        size if size >= 1 << 20 && size % (1 << 20) == 0 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 && size % (1 << 10) == 0 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

/// A value with three digits or more.
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Failure, Key};

    #[test]
    fn figures_and_failures_are_lines() {
        let mut report = Report::default();
        report.add(Key::new("copy", "host", "MB/s").size(65536), 1234.5);
        report.failures.push(Failure {
            what: "write bandwidth of rxe".into(),
            error: "status 1".into(),
            log: Some("a.log".into()),
        });
        let text = table(&report);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains("64 KiB") && lines[1].contains("1234"));
        assert_eq!(
            lines[2],
            "error: write bandwidth of rxe: status 1 (see a.log)"
        );
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(bytes(8 << 20), "8 MiB");
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(1536), "1536 B");
    }
}
