// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures as text.

use super::beside;
use super::matrix::matrix;
use crate::figure::{Figure, Goal, Report};
use crate::kept::{Comparison, Worse};
use crate::vm::is_baseline;

/// Heading of the figures of rxe and TCP in virtual machines.
pub const APPENDIX: &str = "Appendix: rxe and TCP in the same machines";
/// Heading of the comparison with the host's figures.
pub const BESIDE: &str = "Beside native programs of this machine";
/// Column heads of the table of figures.
pub const HEADS: [&str; 7] = ["what", "of", "size", "median", "least", "greatest", "unit"];

/// A line for each figure with its median, least and greatest sample; comparisons, goals and
/// failures follow.
pub fn table(report: &Report) -> String {
    let [own, baselines] = cells(report);
    let mut parts = vec![align(&HEADS, own), matrix(report)];
    let beside = beside::cells(report);
    if !beside.is_empty() {
        parts.push(format!("{BESIDE}\n{}", align(&beside::HEADS, beside)));
    }
    if !baselines.is_empty() {
        parts.push(format!("{APPENDIX}\n{}", align(&HEADS, baselines)));
    }
    parts.push(report.goals.iter().map(judgement).collect());
    parts.push(report.comparison.iter().map(compared).collect());
    let failures = report.failures.iter().map(|failure| {
        let log = failure.log.as_ref();
        let log = log.map_or_else(String::new, |log| format!(" (see {log})"));
        format!("error: {}: {}{log}\n", failure.what, failure.error)
    });
    parts.push(failures.collect());
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// The cells of each figure of virtio-rdma, and those of rxe and TCP.
pub fn cells(report: &Report) -> [Vec<[String; HEADS.len()]>; 2] {
    let line = |Figure { key, samples }: &Figure| {
        [
            key.what(),
            key.configuration.clone(),
            key.size.map_or_else(String::new, bytes),
            number(samples.median()),
            number(samples.min()),
            number(samples.max()),
            key.unit.clone(),
        ]
    };
    [false, true].map(|baselines| {
        let figures = report.figures.iter().filter(|Figure { key, .. }| {
            key.shape.is_none() && is_baseline(&key.configuration) == baselines
        });
        figures.map(line).collect()
    })
}

/// Number of columns with words at the left of each table; the others have numbers.
pub const WORDS: usize = 2;

/// Aligns cells in columns: words to the left, numbers to the right. Empty without lines.
pub fn align<const N: usize>(heads: &[&str; N], lines: Vec<[String; N]>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let all: Vec<_> = [heads.map(str::to_owned)]
        .into_iter()
        .chain(lines)
        .collect();
    let width = |column: usize| all.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<_> = (0..N).filter_map(width).collect();
    let text = |line: &[String; N]| {
        let cells = line.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            ..WORDS => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    all.iter().map(text).collect()
}

fn judgement(goal: &Goal) -> String {
    let mark = match goal.reached {
        Some(true) => "reached",
        Some(false) => "falls short",
        None => "not measured",
    };
    let value = goal.value.map_or_else(String::new, number);
    let Goal {
        what, needed, at, ..
    } = goal;
    format!("{mark:<12} {what:<72} {needed:<24} {value:>8}  {at}")
        .trim_end()
        .to_owned()
        + "\n"
}

/// The comparison with kept figures, as lines of text.
pub fn compared(comparison: &Comparison) -> String {
    let Some(release) = &comparison.release else {
        return "No figures are kept of a machine of this class.\n".to_owned();
    };
    let mut text = format!(
        "{} of {} figures are more than 10 % worse than those of release {release}.\n",
        comparison.worse.len(),
        comparison.compared
    );
    for Worse { key, kept, now } in &comparison.worse {
        let size = key.size.map_or_else(String::new, bytes);
        let shape = key
            .shape
            .map_or_else(String::new, |shape| shape.to_string());
        let unit = &key.unit;
        text += &format!(
            "worse: {}, {} {size} {shape}: {} {unit}, was {}\n",
            key.what(),
            key.configuration,
            number(*now),
            number(*kept)
        );
    }
    text
}

/// A size with its unit: B, KiB or MiB.
pub fn bytes(size: u64) -> String {
    match size {
        size if size >= 1 << 20 && size % (1 << 20) == 0 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 && size % (1 << 10) == 0 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

/// A value with at least three significant digits.
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
        report.add(Key::new("write bandwidth", "rxe", "MB/s").size(2), 1.0);
        report.failures.push(Failure {
            what: "write bandwidth of rxe".into(),
            error: "status 1".into(),
            log: Some("a.log".into()),
        });
        let text = table(&report);
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 6);
        assert!(lines[1].contains("64 KiB") && lines[1].contains("1234"));
        assert_eq!(lines[2], APPENDIX);
        assert!(lines[4].contains("rxe"));
        assert_eq!(
            lines[5],
            "error: write bandwidth of rxe: status 1 (see a.log)"
        );
    }

    #[test]
    fn worse_figures_are_named() {
        let mut comparison = Comparison {
            release: Some("0.1".into()),
            compared: 7,
            worse: vec![Worse {
                key: Key::new("write bandwidth", "direct", "MB/s").size(64),
                kept: 100.0,
                now: 50.0,
            }],
        };
        let text = compared(&comparison);
        assert!(text.starts_with("1 of 7 figures"), "{text}");
        assert!(text.contains("write bandwidth, direct 64 B"), "{text}");
        comparison.release = None;
        assert!(compared(&comparison).starts_with("No figures are kept"));
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(bytes(8 << 20), "8 MiB");
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(1536), "1536 B");
    }
}
