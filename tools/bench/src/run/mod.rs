// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `bench run`: all parts, in their virtual machines and on the host. `make bench` calls it.

mod bed;
mod progress;
mod provider;
mod start;
mod usage;

use std::fs;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::device;
use crate::figure::{Failure, Report};
use crate::host;
use crate::kept;
use crate::machine::Machine;
use crate::report::goals;
use crate::scale;
use crate::vm::Sizes;
use bed::{Bed, Logs};
use progress::Progress;

pub use bed::PER_PROCESSOR_SECOND;
pub use provider::PROVIDER;
pub use start::FIRST_COMPLETION;

/// The parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Memory and threads of this machine.
    Host,
    /// The device without virtual machines.
    Device,
    /// The device with many guests, QPs and workers, without virtual machines.
    Scale,
    /// The start of two virtual machines, by phase.
    Start,
    /// Two virtual machines with one daemon, which copies from memory to memory; also rxe and TCP.
    Direct,
    /// Two virtual machines with a daemon each, which exchange RoCEv2 packets; also rxe and TCP.
    Wire,
    /// The driver in virtqueue mode, from insmod on.
    Virtqueues,
    /// Instructions of a post and a poll, by a program and by the kernel.
    Instructions,
}

/// Options of `bench run`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Parts to run, instead of all
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Message sizes to measure
    #[arg(long, value_name = "SIZES", value_enum, default_value_t)]
    pub sizes: Sizes,
    /// Measure every message size: the same as --sizes full
    #[arg(long, conflicts_with = "sizes")]
    pub full: bool,
    /// Number of rounds, each of which measures everything once
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Processors of each virtual machine; by default as many as allow both machines and the daemon
    /// to run at the same time
    #[arg(long, value_name = "N")]
    pub smp: Option<usize>,
    /// How long daemons poll an idle queue (`virtio-rdmad --poll`)
    #[arg(long, value_name = "MICROSECONDS")]
    pub poll: Option<u32>,
    /// Directory for logs of failed measurements; emptied first
    #[arg(long, value_name = "DIR", default_value = "build/bench")]
    pub logs: PathBuf,
    /// File of kept figures for the comparison
    #[arg(long, value_name = "FILE", default_value = kept::FILE)]
    pub kept: PathBuf,
}

/// Number of threads that spin if both machines poll: one in each machine, and the daemon's.
const SPINNING: usize = 3;

/// Runs the parts.
pub fn run(options: &Options) -> Result<Report> {
    let cores = thread::available_parallelism()
        .context("can't count processors")?
        .get();
    let mut progress = Progress::new();
    let mut logs = Logs::new(&options.logs)?;
    let mut report = Report::default();
    let wanted = |part| options.only.is_empty() || options.only.contains(&part);
    note_conditions(&mut report, &mut progress, cores, options)?;
    if wanted(Part::Host) {
        progress.part("host");
        report.extend(host::run(&host::Options {
            rounds: options.rounds.max(5),
        })?);
    }
    if wanted(Part::Device) {
        progress.part("device alone");
        report.extend(device_alone(options)?);
    }
    if wanted(Part::Scale) {
        progress.part("scale");
        report.extend(scale::run(&scale::Options::short(options.rounds))?);
    }
    if wanted(Part::Instructions) {
        progress.part("instructions");
        report.extend(provider::count()?);
    }
    if wanted(Part::Start) {
        progress.part("start");
        starts(&mut report, options);
    }
    for part in [
        Part::Direct,
        Part::Wire,
        Part::Virtqueues,
        Part::Instructions,
    ] {
        if wanted(part) {
            bed(part, options, cores).run(&mut report, &mut progress, &mut logs)?;
        }
    }
    progress.clear();
    report.goals = goals(&report);
    report.comparison = kept::compare(&report, &options.kept)?;
    Ok(report)
}

/// Adds notes on the machine and the daemons' options.
fn note_conditions(
    report: &mut Report,
    progress: &mut Progress,
    cores: usize,
    options: &Options,
) -> Result<()> {
    let machine = Machine::here(bed::uses_kvm()?);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let mut notes = vec![format!(
        "Measured on {}, of which {load} were busy before.",
        machine.describe()
    )];
    report.machine = Some(machine);
    if cores < SPINNING {
        notes.push(format!(
            "{cores} processors are fewer than two polling machines and the daemon keep busy. Bandwidth is measured with \
             a passive target; where both sides poll, latency is a time of the host's scheduler."
        ));
    }
    if let Some(poll) = options.poll {
        notes.push(format!(
            "Daemons look at a queue for {poll} µs after its last work."
        ));
    }
    for note in notes {
        progress.note(&note);
        report.notes.push(note);
    }
    Ok(())
}

/// Measures the device without virtual machines.
fn device_alone(options: &Options) -> Result<Report> {
    device::run(&device::Options {
        rounds: options.rounds,
        only: String::new(),
    })
}

/// Measures the start of virtual machines, in as many rounds as asked for.
fn starts(report: &mut Report, options: &Options) {
    let mut rounds = (0..options.rounds).map(|_| start::measure(report, &options.logs));
    let failed = rounds.find_map(|round| round.err());
    let failed = failed.map(|error| (FIRST_COMPLETION, error));
    let counted = start::count(report, &options.logs).err();
    for (what, error) in failed
        .into_iter()
        .chain(counted.map(|error| (start::BOOT, error)))
    {
        report.failures.push(Failure {
            what: what.to_owned(),
            error: format!("{error:#}"),
            log: None,
        });
    }
}

/// The virtual machines of a part.
fn bed(part: Part, options: &Options, cores: usize) -> Bed<'static> {
    // The processors are divided between two machines and a daemon with one or two busy threads.
    let smp = options
        .smp
        .unwrap_or_else(|| (cores / SPINNING).clamp(1, 4));
    let sizes = match options.sizes {
        _ if options.full => Sizes::Full,
        // Use fewer sizes, so that the whole run ends within a quarter of an hour.
        Sizes::Coarse if part == Part::Wire => Sizes::Brief,
        sizes => sizes,
    };
    let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    let (name, machines, arguments) = match part {
        Part::Wire => (
            "wire",
            "--path wire --joined udp --rxe-beside",
            "--only traffic",
        ),
        Part::Virtqueues => ("virtqueue mode", "--withhold ring-addr", "--only load"),
        Part::Instructions => {
            return Bed {
                name: "instructions",
                machines: words("--vms 1 --smp 1 --path direct --accel counted"),
                arguments: words("kernel --stream"),
            }
        }
        // With enough memory for the registration of 1 GiB.
        Part::Host | Part::Device | Part::Scale | Part::Start | Part::Direct => (
            "direct",
            "--path direct --rxe-beside --mem 1700",
            "--only traffic,syscalls,registration,objects,load",
        ),
    };
    let mut machines = words(machines);
    machines.extend(["--smp".into(), smp.to_string()]);
    if let Some(poll) = options.poll {
        machines.extend(["--poll".into(), poll.to_string()]);
    }
    let mut arguments = [words("vm --stream"), words(arguments)].concat();
    let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    option("--configuration", name.to_owned());
    if part == Part::Wire {
        option("--suffix", ", two daemons".to_owned());
    }
    option("--rounds", options.rounds.to_string());
    if let Some(value) = sizes.to_possible_value() {
        option("--sizes", value.get_name().to_owned());
    }
    Bed {
        name,
        machines,
        arguments,
    }
}
