// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `bench vm`, on VM 1 of a test bed: measures virtio-rdma, rxe and TCP to VM 2, one after the
//! other in each round.

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

/// The extent of the measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sizes {
    /// One size of each, to see that everything works.
    Quick,
    /// The sizes for the goals.
    Brief,
    /// The sizes for the goals, and enough sizes for a curve.
    #[default]
    Coarse,
    /// Every power of two.
    Full,
}

/// Subjects of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// Streams and round trips, also over rxe and TCP.
    Traffic,
    /// System calls of a polling program.
    Syscalls,
    /// Registration of memory.
    Registration,
    /// Creation and use of thousands of QPs.
    Objects,
    /// The time from insmod of the driver until the port is ACTIVE.
    Load,
}

/// The subjects in the order of measurement. Registration is first, while the machine's memory is
/// not fragmented; loading the driver is last, since it replaces the RDMA device.
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
    /// Configuration in the figures of virtio-rdma: how the devices of the machines are joined
    #[arg(long, value_name = "NAME", default_value = "direct")]
    pub configuration: String,
    /// Suffix of the configurations of rxe and TCP, if they run in several sets of machines
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub suffix: String,
    /// Message sizes to measure
    #[arg(long, value_name = "SIZES", value_enum, default_value_t)]
    pub sizes: Sizes,
    /// Number of rounds, each of which measures everything once
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Write events as lines of JSON, for `bench run`
    #[arg(long, hide = true)]
    pub stream: bool,
}

/// Measures. With `stream` the report is empty: the host makes the report from the events.
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

/// Configurations of the comparators in virtual machines: rxe and TCP.
const RXE: &str = "rxe";
const TCP: &str = "TCP";

/// Whether a configuration is rxe or TCP in virtual machines.
pub fn is_baseline(configuration: &str) -> bool {
    configuration.starts_with(RXE) || configuration.starts_with(TCP)
}

/// Whether a configuration is a comparator without virtual machines: "host", or "host" and a word
/// about it.
pub fn is_host(configuration: &str) -> bool {
    configuration == "host" || configuration.starts_with("host, ")
}

/// Whether a configuration is one of virtio-rdma, not a comparator.
pub fn is_own(configuration: &str) -> bool {
    !is_host(configuration) && !is_baseline(configuration)
}

/// The path of a temporary file of this process.
fn own_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("bench-{name}.{}", std::process::id()))
}
