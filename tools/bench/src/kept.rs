// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Kept figures of a release, one set for each class of machines, and their comparison with the
//! figures of a run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::figure::{Better, Key, Report, Shape};
use crate::machine::Machine;
use crate::vm::is_own;

/// Tolerance: a figure counts as worse only if it is worse than the kept figure by more than this
/// share of the kept figure.
const TOLERANCE: f64 = 0.1;
/// Tolerance of numbers of instructions, which no other load changes.
const TOLERANCE_OF_COUNTS: f64 = 0.05;
/// Minimum number of threads of a load of part `scale` in addition to the workers: a player, and
/// the sparse sender.
const PLAYING: usize = 2;
/// The file of kept figures in the checkout.
pub const FILE: &str = "tools/bench/kept.json";

/// The licence of a set, as a member that readers ignore: JSON has no comments.
const LICENCE: &str = r#""SPDX-License-Identifier": "Apache-2.0 OR BSD-3-Clause""#;

/// Options of `bench keep`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// File with the figures of `bench run`
    pub figures: PathBuf,
    /// File of kept figures
    #[arg(long, value_name = "FILE", default_value = FILE)]
    pub kept: PathBuf,
}

/// Kept figures of one release and one class of machines.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Set {
    release: String,
    machine: Machine,
    figures: Vec<Median>,
}

/// A kept figure: its median.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Median {
    #[serde(flatten)]
    key: Key,
    median: f64,
}

/// The comparison of a run with kept figures.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Comparison {
    /// The release of the kept figures; `None` if there is no set for this class of machines.
    pub release: Option<String>,
    /// Number of compared figures.
    pub compared: usize,
    /// Figures that have become worse.
    pub worse: Vec<Worse>,
}

/// A figure that has become worse.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Worse {
    /// The subject of the figure.
    pub key: Key,
    /// The kept median.
    pub kept: f64,
    /// The median of the run.
    pub now: f64,
}

/// Keeps the figures of a run. The new figures replace the kept ones of the same class of machines.
pub fn keep(options: &Options) -> Result<()> {
    let path = &options.figures;
    let report = Report::read(path)?;
    let Some(machine) = report.machine else {
        bail!(
            "{}: the machine is missing; only runs of `bench run` are kept",
            path.display()
        );
    };
    let mut sets = read(&options.kept)?;
    sets.retain(|set| set.machine != machine);
    let figures = report.figures.into_iter();
    let telling = figures.filter(|figure| tells(&figure.key, &machine));
    let medians = telling.map(|figure| Median {
        median: figure.samples.median(),
        key: figure.key,
    });
    sets.push(Set {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        figures: medians.collect(),
        machine,
    });
    fs::write(&options.kept, lines(&sets)?)
        .with_context(|| format!("can't write {}", options.kept.display()))
}

/// Compares a run with the kept figures in `file`. `None` if the report has no machine.
pub fn compare(report: &Report, file: &Path) -> Result<Option<Comparison>> {
    let Some(machine) = &report.machine else {
        return Ok(None);
    };
    let sets = read(file)?;
    let Some(set) = sets.iter().find(|set| set.machine == *machine) else {
        return Ok(Some(Comparison {
            release: None,
            compared: 0,
            worse: Vec::new(),
        }));
    };
    let mut comparison = Comparison {
        release: Some(set.release.clone()),
        compared: 0,
        worse: Vec::new(),
    };
    for figure in &report.figures {
        let mut kept = set.figures.iter();
        let Some(kept) = kept.find(|kept| kept.key == figure.key) else {
            continue;
        };
        comparison.compared += 1;
        let (kept, now) = (kept.median, figure.samples.median());
        if is_worse(&figure.key, kept, now) {
            comparison.worse.push(Worse {
                key: figure.key.clone(),
                kept,
                now,
            });
        }
    }
    Ok(Some(comparison))
}

/// Whether a change of the figure says something about virtio-rdma. Greater or smaller values must
/// be better. The figure must not depend on the host's scheduler: figures in wall-clock time do if
/// the load has more threads than the machine has processors.
fn tells(key: &Key, machine: &Machine) -> bool {
    let is_by_wall_clock = matches!(&*key.unit, "M/s" | "µs");
    let is_crowded = |shape: Shape| shape.workers as usize + PLAYING > machine.cores;
    let is_ours = is_own(&key.configuration) && key.better().is_some();
    is_ours && !(is_by_wall_clock && key.shape.is_some_and(is_crowded))
}

fn is_worse(key: &Key, kept: f64, now: f64) -> bool {
    let tolerance = match &*key.unit {
        "instructions" => TOLERANCE_OF_COUNTS,
        _ => TOLERANCE,
    };
    match key.better() {
        Some(Better::More) => now < kept * (1.0 - tolerance),
        Some(Better::Less) => now > kept * (1.0 + tolerance),
        None => false,
    }
}

fn read(file: &Path) -> Result<Vec<Set>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("no kept figures in {}", file.display()))
}

/// The sets as JSON with a line for each figure, so that diffs are readable.
fn lines(sets: &[Set]) -> Result<String> {
    let sets = sets.iter().map(|set| -> Result<String> {
        let figures = set.figures.iter().map(serde_json::to_string);
        let figures = figures.collect::<serde_json::Result<Vec<_>>>()?;
        Ok(format!(
            "{{{LICENCE}, \"release\": {}, \"machine\": {},\n\"figures\": [\n{}\n]}}",
            serde_json::to_string(&set.release)?,
            serde_json::to_string(&set.machine)?,
            figures.join(",\n")
        ))
    });
    let sets = sets.collect::<Result<Vec<_>>>()?;
    Ok(format!("[{}]\n", sets.join(",\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(processor: &str) -> Machine {
        Machine {
            processor: processor.to_owned(),
            cores: 2,
            kvm: false,
        }
    }

    fn report(processor: &str, bandwidth: f64, latency: f64) -> Report {
        let mut report = Report {
            machine: Some(machine(processor)),
            ..Report::default()
        };
        report.add(
            Key::new("write bandwidth", "direct", "MB/s").size(64),
            bandwidth,
        );
        report.add(Key::new("write latency, 50 %", "direct", "µs"), latency);
        report
    }

    /// The comparison of `now` with `before`, which was kept in a file.
    fn compared(before: &Report, now: &Report) -> Comparison {
        let dir = tempfile::tempdir().unwrap();
        let [figures, kept] = ["figures", "kept"].map(|name| dir.path().join(name));
        fs::write(&figures, serde_json::to_string(before).unwrap()).unwrap();
        fs::write(&kept, "[]").unwrap();
        let options = Options {
            figures,
            kept: kept.clone(),
        };
        keep(&options).unwrap();
        // Figures of the same class of machines are replaced.
        keep(&options).unwrap();
        assert_eq!(read(&kept).unwrap().len(), 1);
        compare(now, &kept).unwrap().unwrap()
    }

    #[test]
    fn what_became_worse_is_named() {
        let before = report("A", 100.0, 10.0);
        let worse = |bandwidth, latency| compared(&before, &report("A", bandwidth, latency)).worse;
        assert_eq!(worse(91.0, 10.9), []);
        assert_eq!(worse(200.0, 1.0), []);
        let [one] = worse(89.0, 10.0).try_into().unwrap();
        assert_eq!((one.kept, one.now), (100.0, 89.0));
        let [one] = worse(100.0, 11.1).try_into().unwrap();
        assert_eq!((one.kept, one.now), (10.0, 11.1));
    }

    #[test]
    fn machines_of_another_class_are_not_compared() {
        let before = report("A", 100.0, 10.0);
        let other = compared(&before, &report("B", 1.0, 100.0));
        assert_eq!((other.release, other.compared), (None, 0));
        let same = compared(&before, &report("A", 1.0, 100.0));
        assert_eq!((same.compared, same.worse.len()), (2, 2));
    }

    #[test]
    fn what_the_scheduler_decides_is_not_kept() {
        let machine = Machine {
            cores: 4,
            ..machine("A")
        };
        let key = |unit, workers: Option<u32>| Key {
            shape: workers.map(|workers| Shape {
                guests: 1,
                qps: 1,
                workers,
            }),
            ..Key::new("name", "direct", unit)
        };
        assert!(tells(&key("µs", Some(2)), &machine));
        assert!(!tells(&key("µs", Some(3)), &machine));
        assert!(!tells(&key("M/s", Some(3)), &machine));
        assert!(tells(&key("ns", Some(3)), &machine));
        assert!(tells(&key("M/s", None), &machine));
        assert!(!tells(&key("of workers", Some(1)), &machine));
        assert!(!tells(&Key::new("memcpy", "host", "MB/s"), &machine));
    }

    #[test]
    fn the_committed_file_is_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("kept.json");
        read(&file).unwrap();
    }
}
