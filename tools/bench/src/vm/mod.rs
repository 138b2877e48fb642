// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `bench vm`, on VM 1 of a test bed: virtio-rdma, rxe and TCP to VM 2, one after the other, again
//! and again.

mod devices;
mod folios;
pub mod instructions;
mod iperf;
mod load;
mod measure;
mod modules;
mod objects;
pub mod peer;
mod perftest;
mod plan;
mod process;
mod registration;
mod syscalls;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::event::{Event, Sink};
use crate::figure::Report;
use measure::Bench;
use plan::Extent;

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sizes {
    /// One size of each, to see that everything works.
    Quick,
    /// Measurements that targets ask for.
    Brief,
    /// The same, and enough for a curve.
    #[default]
    Coarse,
    /// Every power of two.
    Full,
}

/// Subjects of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// Streams and round trips beside rxe and TCP.
    Traffic,
    /// System calls of a polling program.
    Syscalls,
    /// Registration of memory.
    Registration,
    /// Thousands of QPs.
    Objects,
    /// The driver, from insmod on.
    Load,
}

/// In the order in which they are measured: registration goes first, while the machine's memory is
/// in large pieces, and the driver last, as its device changes.
const SUBJECTS: [Subject; 5] = [
    Subject::Registration,
    Subject::Traffic,
    Subject::Syscalls,
    Subject::Objects,
    Subject::Load,
];

/// Options of `bench vm`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Subjects to measure, instead of all
    #[arg(long, value_name = "SUBJECT", value_enum, value_delimiter = ',')]
    pub only: Vec<Subject>,
    /// Name under which figures of virtio-rdma appear: how the devices of the machines are joined
    #[arg(long, value_name = "NAME", default_value = "direct")]
    pub configuration: String,
    /// Suffix to the names of rxe and TCP, where they run in several sets of machines
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub suffix: String,
    /// Message sizes to measure
    #[arg(long, value_name = "SIZES", value_enum, default_value_t)]
    pub sizes: Sizes,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Write events as lines of JSON, for `bench run`
    #[arg(long, hide = true)]
    pub stream: bool,
}

/// Measures. With `stream` the report is empty: the host makes it of the events.
pub fn run(options: &Options) -> Result<Report> {
    let mut sink = Sink::new(options.stream);
    let extent = match options.sizes {
        Sizes::Quick => Extent::quick(),
        Sizes::Brief => Extent::brief(),
        Sizes::Coarse => Extent::coarse(),
        Sizes::Full => Extent::full(),
    };
    let cases = extent.cases();
    let rounds = usize::try_from(options.rounds)?;
    let wanted: Vec<_> = SUBJECTS
        .into_iter()
        .filter(|subject| options.only.is_empty() || options.only.contains(subject))
        .collect();
    let steps = wanted.iter().map(|subject| match subject {
        Subject::Traffic => cases.len() * rounds,
        _ => 1,
    });
    sink.tell(Event::Plan(steps.sum()))?;
    let mut bench = Bench::new(options, sink)?;
    for subject in wanted {
        if subject != Subject::Traffic {
            bench.once(subject, options.rounds)?;
            continue;
        }
        for round in 1..=options.rounds {
            for case in &cases {
                bench
                    .measure(*case, round)
                    .with_context(|| format!("{case:?}"))?;
            }
        }
    }
    Ok(bench.into_report())
}

/// Configurations of what stands beside virtio-rdma in the machines.
const RXE: &str = "rxe";
const TCP: &str = "TCP";

/// Whether a configuration is rxe or TCP in the machines.
pub fn is_baseline(configuration: &str) -> bool {
    configuration.starts_with(RXE) || configuration.starts_with(TCP)
}

/// Whether a configuration is one of virtio-rdma, and no comparator.
pub fn is_own(configuration: &str) -> bool {
    configuration != "host" && !is_baseline(configuration)
}

/// A file of this process's.
fn own_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("bench-{name}.{}", std::process::id()))
}
