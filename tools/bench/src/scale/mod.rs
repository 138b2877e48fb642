// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The engine with many guests, QPs and workers, without a VM: guests are simulated in this
//! process.
//!
//! Each load is measured twice: first with bulk QPs alone, for rate, processor time and fairness;
//! then with an additional sparse sender of 8-byte messages, for its latency.

mod bulk;
mod lane;
mod load;
mod probe;
mod quantity;
mod statistics;

use std::thread;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use verbs::PathPolicy;

use crate::figure::{Key, Report, Shape};
use load::Load;

pub use probe::Probe;
pub use quantity::Quantity;
pub use statistics::percentile;

/// Maximum number of guests: the kit numbers guests with a byte.
const MAX_GUESTS: i64 = 250;
/// Maximum size of a message in bytes: the buffers of a guest must fit into its memory.
const MAX_SIZE: i64 = 256 << 10;

/// The path between QPs of one daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Path {
    /// Copies from memory to memory.
    Direct,
    /// RoCEv2 packets.
    Wire,
}

impl Path {
    fn policy(self) -> PathPolicy {
        match self {
            Self::Direct => PathPolicy::Direct,
            Self::Wire => PathPolicy::Wire,
        }
    }

    fn configuration(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Wire => "wire",
        }
    }
}

/// Options of `bench scale`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Numbers of guests
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4, 16, 64],
        value_parser = clap::value_parser!(u32).range(1..=MAX_GUESTS))]
    pub guests: Vec<u32>,
    /// Total numbers of bulk QPs, which are spread evenly over the guests; 0 for the sparse sender
    /// alone
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 64, 1000],
        value_parser = clap::value_parser!(u32).range(..=16_000))]
    pub qps: Vec<u32>,
    /// Numbers of workers [default: 1, half of the processors, and all]
    #[arg(long, value_name = "N", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=256))]
    pub workers: Vec<u32>,
    /// Size of bulk messages
    #[arg(long, value_name = "BYTES", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=MAX_SIZE))]
    pub size: u32,
    /// Seconds for each of the two measurements of a load
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub time: f64,
    /// Path of the messages
    #[arg(long, value_name = "PATH", value_enum, default_value = "direct")]
    pub path: Path,
    /// How long workers poll an idle queue (`virtio-rdmad --poll`)
    #[arg(long, value_name = "MICROSECONDS", default_value_t = verbs::DEFAULT_POLL_MICROSECONDS)]
    pub poll: u32,
    /// Samples of each figure
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
}

impl Options {
    /// The options of `bench run`.
    pub fn short(rounds: u32) -> Self {
        Self {
            guests: vec![1, 16, 64],
            qps: vec![1, 64, 1000],
            workers: Vec::new(),
            size: 64,
            time: 0.5,
            path: Path::Direct,
            poll: verbs::DEFAULT_POLL_MICROSECONDS,
            rounds,
        }
    }

    fn shapes(&self) -> Result<Vec<Shape>> {
        let workers = match self.workers.as_slice() {
            [] => default_workers()?,
            given => given.to_vec(),
        };
        let mut shapes = Vec::new();
        for &guests in &self.guests {
            for &qps in &self.qps {
                shapes.extend(workers.iter().map(|&workers| Shape {
                    guests,
                    qps,
                    workers,
                }));
            }
        }
        Ok(shapes)
    }
}

/// The default numbers of workers: one, half of the processors, and all processors.
fn default_workers() -> Result<Vec<u32>> {
    let cores = thread::available_parallelism().context("can't count processors")?;
    let cores = u32::try_from(cores.get())?;
    let mut workers = vec![1, cores / 2, cores];
    workers.retain(|&count| count > 0);
    workers.dedup();
    Ok(workers)
}

/// Measures all loads, one after the other in each round.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let shapes = options.shapes()?;
    for _ in 0..options.rounds {
        for &shape in &shapes {
            for (quantity, value) in Load::new(shape, options).measure() {
                report.add(key(quantity, shape, options), value);
            }
        }
    }
    Ok(report)
}

fn key(quantity: Quantity, shape: Shape, options: &Options) -> Key {
    let key = Key::new(
        quantity.name(),
        options.path.configuration(),
        quantity.unit(),
    );
    Key {
        shape: Some(shape),
        ..key.size(options.size.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(qps: u32) -> Report {
        run(&Options {
            guests: vec![3],
            qps: vec![qps],
            workers: vec![2],
            time: 0.05,
            ..Options::short(1)
        })
        .unwrap()
    }

    fn value(report: &Report, quantity: Quantity) -> Option<f64> {
        let mut figures = report.figures.iter();
        let figure = figures.find(|figure| figure.key.name == quantity.name())?;
        Some(figure.samples.median())
    }

    #[test]
    fn each_quantity_is_measured() {
        let report = measured(70);
        let value = |quantity| value(&report, quantity).unwrap_or_else(|| panic!("{quantity:?}"));
        for quantity in Quantity::ALL {
            assert!(value(quantity) > 0.0, "{quantity:?}");
        }
        assert!((1.0 / 70.0..=1.0).contains(&value(Quantity::QpFairness)));
        assert!((1.0 / 3.0..=1.0).contains(&value(Quantity::GuestFairness)));
        assert!(value(Quantity::Median) <= value(Quantity::Percentile999));
    }

    #[test]
    fn a_sparse_sender_can_be_alone() {
        let report = measured(0);
        assert!(value(&report, Quantity::Median).is_some());
        assert_eq!(value(&report, Quantity::Rate), None);
    }
}
