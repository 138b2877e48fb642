// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures with all their samples, which show how reliable a figure is.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::kept::Comparison;
use crate::machine::Machine;

/// The measured figures, and the failures.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Report {
    /// The figures, in the order of their first measurement.
    pub figures: Vec<Figure>,
    /// Measurements that ended with an error instead of a figure.
    pub failures: Vec<Failure>,
    /// The goals, with the results of this run.
    #[serde(rename = "targets", default, skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<Goal>,
    /// The machine of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The comparison with kept figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
    /// Notes for the reader: the machine and the conditions of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A goal, and whether the figures reach it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Goal {
    /// The subject of the goal.
    pub what: String,
    /// The needed value, in words.
    pub needed: String,
    /// The measured value; `None` if it was not measured.
    pub value: Option<f64>,
    /// Whether the value reaches the goal.
    pub reached: Option<bool>,
    /// The size or load at which the value was measured: the worst of several values.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

/// The subject of a figure. Samples with the same key belong to the same figure.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Key {
    /// The name of the quantity, such as "write bandwidth".
    pub name: String,
    /// The configuration: "direct", "wire", "rxe", "tcp", "host" ...
    pub configuration: String,
    /// Bytes of a message, if the figure depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Number of QPs, MRs or VMs, if it is varied. The name says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The load, for figures of part `scale`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// The unit, such as "MB/s" (10^6 bytes) or "µs".
    pub unit: String,
    /// The way of measuring, if there are several: "events" or "polling".
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub how: String,
}

/// A load of part `scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Shape {
    /// Number of simulated guests.
    pub guests: u32,
    /// Number of bulk QPs of all guests together.
    pub qps: u32,
    /// Number of worker threads.
    pub workers: u32,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            guests,
            qps,
            workers,
        } = self;
        write!(f, "({guests} guests, {qps} QPs, {workers} workers)")
    }
}

/// Whether greater or smaller values of a figure are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Greater values are better: rates and fairness indices.
    More,
    /// Smaller values are better: times, memory and counts.
    Less,
}

impl Key {
    /// Whether greater or smaller values are better. `None` if neither is.
    pub fn better(&self) -> Option<Better> {
        match &*self.unit {
            "MB/s" | "MB/CPU-s" | "M/s" | "messages/s" | "of 1" => Some(Better::More),
            "of workers" => None,
            _ => Some(Better::Less),
        }
    }

    /// A key without size, count and way of measuring.
    pub fn new(name: &str, configuration: &str, unit: &str) -> Self {
        Self {
            name: name.to_owned(),
            configuration: configuration.to_owned(),
            size: None,
            count: None,
            shape: None,
            unit: unit.to_owned(),
            how: String::new(),
        }
    }

    /// Sets the message size.
    pub fn size(mut self, size: u64) -> Self {
        self.size = Some(size);
        self
    }

    /// The name of the quantity in the table: with the count and the way of measuring.
    pub fn what(&self) -> String {
        let mut what = self.name.clone();
        if let Some(count) = self.count {
            what += &format!(" ({count})");
        }
        if !self.how.is_empty() {
            what += &format!(", {}", self.how);
        }
        what
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Figure {
    /// The subject of the figure.
    #[serde(flatten)]
    pub key: Key,
    /// The measured values, in the key's unit.
    #[serde(flatten)]
    pub samples: Samples,
}

/// One or more measured values.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(from = "Plain", into = "Plain")]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Samples with a first value.
    pub fn new(first: f64) -> Self {
        Self(vec![first])
    }

    /// Adds a value.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The median: the middle value, or the mean of the two middle values.
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// The least value.
    pub fn min(&self) -> f64 {
        self.sorted().first().copied().unwrap_or(f64::NAN)
    }

    /// The greatest value.
    pub fn max(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }
}

/// The form of samples in JSON, which includes derived values for the reader.
#[derive(Deserialize, Serialize)]
struct Plain {
    #[serde(default)]
    median: f64,
    #[serde(default)]
    min: f64,
    #[serde(default)]
    max: f64,
    samples: Vec<f64>,
}

impl From<Plain> for Samples {
    fn from(plain: Plain) -> Self {
        Self(plain.samples)
    }
}

impl From<Samples> for Plain {
    fn from(samples: Samples) -> Self {
        Self {
            median: samples.median(),
            min: samples.min(),
            max: samples.max(),
            samples: samples.0,
        }
    }
}

/// A measurement that ended with an error.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Failure {
    /// The planned measurement, in words.
    pub what: String,
    pub error: String,
    /// The file with the output of the programs, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

impl Report {
    /// Reads a report that was written with `--json`.
    pub fn read(file: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("no figures in {}", file.display()))
    }

    /// Adds the samples, failures and notes of another report.
    pub fn extend(&mut self, other: Self) {
        for Figure { key, samples } in other.figures {
            for value in samples.0 {
                self.add(key.clone(), value);
            }
        }
        self.failures.extend(other.failures);
        self.machine = self.machine.take().or(other.machine);
        self.notes.extend(other.notes);
    }

    /// Adds a value to the figure of its key.
    pub fn add(&mut self, key: Key, value: f64) {
        match self.figures.iter_mut().find(|figure| figure.key == key) {
            Some(figure) => figure.samples.push(value),
            None => self.figures.push(Figure {
                key,
                samples: Samples::new(value),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_key_are_one_figure() {
        let mut report = Report::default();
        for value in [3.0, 1.0, 2.0, 10.0] {
            report.add(Key::new("copy", "host", "MB/s").size(64), value);
        }
        let mut other = Report::default();
        other.add(Key::new("copy", "host", "MB/s").size(128), 7.0);
        other.add(Key::new("copy", "host", "MB/s").size(64), 2.5);
        report.extend(other);
        assert_eq!(report.figures.len(), 2);
        let samples = &report.figures[0].samples;
        assert_eq!(
            (samples.min(), samples.median(), samples.max()),
            (1.0, 2.5, 10.0)
        );
        assert_eq!(report.figures[1].samples.median(), 7.0);
    }

    #[test]
    fn json_has_the_median_and_all_samples() {
        let mut report = Report::default();
        report.add(Key::new("copy", "host", "MB/s").size(64), 3.0);
        report.add(Key::new("copy", "host", "MB/s").size(64), 5.0);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json["figures"][0],
            serde_json::json!({"name": "copy", "configuration": "host", "size": 64, "unit": "MB/s",
                "median": 4.0, "min": 3.0, "max": 5.0, "samples": [3.0, 5.0]})
        );
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }
}
