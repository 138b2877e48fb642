// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `bench run`: all parts, in their virtual machines and on the host. What `make bench` calls.

mod bed;
mod progress;
mod usage;

use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::figure::Report;
use crate::host;
use crate::report::targets;
use crate::vm::Sizes;
use bed::{Bed, Logs};
use progress::Progress;

pub use bed::PER_PROCESSOR_SECOND;

/// What is measured where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Memory and threads of this machine.
    Host,
    /// Two machines of one daemon, which copies from memory to memory, beside rxe and TCP.
    Direct,
    /// Two machines with a daemon each, which exchange RoCEv2 packets, beside rxe and TCP.
    Wire,
}

/// Options of `bench run`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Parts to run, instead of all
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Which message sizes
    #[arg(long, value_name = "SIZES", value_enum, default_value_t)]
    pub sizes: Sizes,
    /// Every message size there is: the same as --sizes full
    #[arg(long, conflicts_with = "sizes")]
    pub full: bool,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Processors of each virtual machine; by default as many as let both of them and the daemon run at once
    #[arg(long, value_name = "N")]
    pub smp: Option<usize>,
    /// Where logs of what failed go; emptied first
    #[arg(long, value_name = "DIR", default_value = "build/bench")]
    pub logs: PathBuf,
}

/// Runs them.
pub fn run(options: &Options) -> Result<Report> {
    let cores = thread::available_parallelism()
        .context("can't count processors")?
        .get();
    let mut progress = Progress::new();
    let mut logs = Logs::new(&options.logs)?;
    let mut report = Report::default();
    let wanted = |part| options.only.is_empty() || options.only.contains(&part);
    if cores < 3 {
        progress.note(&format!(
            "{cores} processors are fewer than two polling machines and the daemon keep busy: where both sides poll, \
             times are those of the scheduler"
        ));
    }
    if wanted(Part::Host) {
        progress.part("host");
        report = host::run(&host::Options {
            rounds: options.rounds.max(5),
        })?;
    }
    for part in [Part::Direct, Part::Wire] {
        if wanted(part) {
            bed(part, options, cores).run(&mut report, &mut progress, &mut logs)?;
        }
    }
    progress.clear();
    report.targets = targets(&report);
    Ok(report)
}

/// The machines of a part.
fn bed(part: Part, options: &Options, cores: usize) -> Bed<'static> {
    // Two machines and a daemon with a thread or two.
    let smp = options.smp.unwrap_or_else(|| (cores / 3).clamp(1, 4));
    let sizes = if options.full {
        Sizes::Full
    } else {
        options.sizes
    };
    let (name, machines, suffix) = match part {
        Part::Wire => (
            "wire",
            ["--path", "wire", "--joined", "unix"],
            ", two daemons",
        ),
        Part::Host | Part::Direct => ("direct", ["--path", "direct", "--mem", "1024"], ""),
    };
    let mut machines: Vec<_> = machines.map(str::to_owned).into();
    machines.extend(["--rxe-beside".into(), "--smp".into(), smp.to_string()]);
    let sizes = sizes
        .to_possible_value()
        .map(|value| value.get_name().to_owned());
    let mut arguments: Vec<_> = ["vm", "--stream", "--configuration", name]
        .map(str::to_owned)
        .into();
    arguments.extend(["--suffix".into(), suffix.into()]);
    arguments.extend(["--rounds".into(), options.rounds.to_string()]);
    arguments.extend(
        sizes
            .into_iter()
            .flat_map(|sizes| ["--sizes".into(), sizes]),
    );
    Bed {
        name,
        machines,
        arguments,
    }
}
