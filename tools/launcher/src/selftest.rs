// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `testbed test`: runs test programs that report in KTAP, several in one set of guests.
//!
//! Comment lines `testbed: OPTIONS` in a program specify its guests, with options of `testbed run`.
//! A program runs once for each such line, or once with the defaults if it has neither such a line
//! nor a line `more: OPTIONS`. Programs with the same options share their guests. `--mark` selects
//! lines with another word than `testbed`.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::{Args, Parser};

use crate::bed::{Bed, BedOptions, Ground, Limits};
use crate::ktap::{Case, Outcome, Report};
use crate::router::Event;

/// The first word of a program's comment line with options for guests.
const DEFAULT_MARK: &str = "testbed";
/// The first word of a comment line for guests that only longer runs start.
const MORE_MARK: &str = "more";
/// Maximum number of attempts to run a program if QEMU aborts because its daemon was killed.
const ATTEMPTS: usize = 5;
/// Number of remark lines that are shown for a failed test; the log has all.
const REMARKS: usize = 20;

/// Options of `test`.
#[derive(Args, Clone, Debug)]
pub struct TestOptions {
    /// Time limit of each program, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1500)]
    pub timeout: u64,
    /// Number of programs that run at a time, each in its own guests
    #[arg(long, short, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..))]
    pub jobs: u8,
    /// Additional options of `run` for the guests of all programs
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub vm: String,
    /// Run programs in the guests of their lines "MARK: OPTIONS"; programs without any such line
    /// run with the default mark only, and those with lines "more:" alone do not
    #[arg(long, default_value = DEFAULT_MARK)]
    pub mark: String,
    /// Show the whole output of the programs
    #[arg(long, short)]
    pub verbose: bool,
    /// The test programs
    #[arg(required = true)]
    pub programs: Vec<PathBuf>,
}

/// The options that a program's line can have.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Marked {
    #[command(flatten)]
    bed: BedOptions,
}

#[derive(Default)]
struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Totals {
    fn add(&mut self, cases: &[Case]) {
        for case in cases {
            match case.outcome {
                Outcome::Passed => self.passed += 1,
                Outcome::Failed(_) => self.failed += 1,
                Outcome::Skipped(_) => self.skipped += 1,
            }
        }
    }

    /// Adds the results of a program. Prints them in one piece, since programs may run in parallel.
    fn add_and_show(&mut self, run: &Run<'_>, cases: &[Case], took: Duration, logs: &Path) {
        let mut its = Self::default();
        its.add(cases);
        println!(
            "{}: {}, {:.0} s",
            run.label(),
            its.text(),
            took.as_secs_f64()
        );
        for case in cases {
            if let Outcome::Failed(remarks) = &case.outcome {
                println!("  not ok {}", case.name);
                for line in &remarks[remarks.len().saturating_sub(REMARKS)..] {
                    println!("    {line}");
                }
            }
        }
        if its.failed > 0 {
            println!("  logs are in {}", logs.display());
        }
        self.passed += its.passed;
        self.failed += its.failed;
        self.skipped += its.skipped;
    }

    /// Adds failures at the end of a set of guests.
    fn add_end(&mut self, wanted: &str, wrong: &[String]) {
        for line in wrong {
            println!("at the end [{wanted}]: {line}");
            self.failed += 1;
        }
    }

    fn text(&self) -> String {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        format!("{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// A program to run.
struct Run<'a> {
    /// The options of its guests.
    wanted: String,
    program: &'a Path,
    bed: BedOptions,
    attempt: usize,
}

impl Run<'_> {
    fn label(&self) -> String {
        let name = self.program.display();
        match self.wanted.as_str() {
            "" => name.to_string(),
            wanted => format!("{name} [{wanted}]"),
        }
    }
}

/// The programs that are still to run.
struct Waiting<'a>(Mutex<Vec<Run<'a>>>);

impl<'a> Waiting<'a> {
    /// The next program for a thread whose guests have the options `wanted`: a program with the
    /// same options, else a program of the largest group with equal options. Small groups are run
    /// last, so that the threads end at about the same time.
    fn next(&self, wanted: Option<&str>) -> Option<Run<'a>> {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let alike = |run: &Run<'_>| runs.iter().filter(|one| one.wanted == run.wanted).count();
        let same = runs.iter().position(|run| Some(&*run.wanted) == wanted);
        let next = same.or_else(|| {
            let numbers = 0..runs.len();
            numbers.max_by_key(|&at| (alike(&runs[at]), Reverse(at)))
        })?;
        Some(runs.remove(next))
    }

    fn again(&self, run: Run<'a>) {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.push(run);
    }
}

/// Runs the programs. The last printed line has the totals.
pub fn run(options: &TestOptions, signal: Arc<AtomicUsize>) -> Result<u8> {
    let mut runs = Vec::new();
    for program in &options.programs {
        for wanted in wanted_options(program, &options.mark)? {
            let all = options.vm.split_whitespace();
            let marked = Marked::try_parse_from(all.chain(wanted.split_whitespace()))
                .with_context(|| format!("{}: \"{wanted}\"", program.display()))?;
            runs.push(Run {
                wanted,
                program,
                bed: marked.bed,
                attempt: 1,
            });
        }
    }
    ensure!(
        !runs.is_empty(),
        "no program has a line \"{}:\" for its guests; --mark names another word, such as {MORE_MARK}",
        options.mark
    );
    let waiting = Waiting(Mutex::new(runs));
    let totals = Mutex::new(Totals::default());
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| run_waiting(options, &waiting, &signal, &totals));
        }
    });
    let totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("selftests: {}", totals.text());
    Ok(u8::from(totals.failed > 0))
}

/// The options in a program's lines, one string for each set of guests.
fn wanted_options(program: &Path, mark: &str) -> Result<Vec<String>> {
    let text = fs::read(program).with_context(|| format!("can't read {}", program.display()))?;
    let text = String::from_utf8_lossy(&text);
    let marked = parse_marks(&text, mark);
    let unmarked = [DEFAULT_MARK, MORE_MARK]
        .iter()
        .all(|mark| parse_marks(&text, mark).is_empty());
    Ok(if unmarked && mark == DEFAULT_MARK {
        vec![String::new()]
    } else {
        marked
    })
}

fn parse_marks(text: &str, mark: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            let line = line.trim_start_matches(['#', '/', ' ']);
            line.strip_prefix(mark)?.strip_prefix(':')
        })
        .map(|wanted| wanted.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Runs waiting programs, in one set of guests after the other.
fn run_waiting(
    options: &TestOptions,
    waiting: &Waiting<'_>,
    signal: &Arc<AtomicUsize>,
    totals: &Mutex<Totals>,
) {
    let limits = || Limits {
        signal: Arc::clone(signal),
        until: Some(Instant::now() + Duration::from_secs(options.timeout)),
    };
    let totals = || totals.lock().unwrap_or_else(PoisonError::into_inner);
    let end = |wanted: &str, mut bed: Bed| {
        let wrong = bed.end();
        totals().add_end(wanted, &wrong);
    };
    // The guests that the last program has left, with their options.
    let mut left: Option<(String, Bed)> = None;
    while let Some(mut run) = waiting.next(left.as_ref().map(|(wanted, _)| &**wanted)) {
        let began = Instant::now();
        let bed = match left.take() {
            Some((wanted, bed)) if wanted == run.wanted => Ok(bed),
            other => {
                if let Some((wanted, bed)) = other {
                    end(&wanted, bed);
                }
                Ground::checkout(&run.bed).and_then(|ground| Bed::start(&run.bed, ground, limits()))
            }
        };
        let mut bed = match bed {
            Ok(bed) => bed,
            Err(error) => {
                println!("{}: the VMs could not be started: {error:#}", run.label());
                // A second time, it is no chance.
                if run.attempt == 1 && limits().check().is_ok() {
                    println!("{}: once more", run.label());
                    run.attempt += 1;
                    waiting.again(run);
                    continue;
                }
                totals().failed += 1;
                if signal.load(Ordering::Relaxed) != 0 {
                    return;
                }
                continue;
            }
        };
        bed.limits = limits();
        let (mut cases, ended) = run_program(options, &bed, run.program);
        let aborted = (!ended).then(|| bed.abort_without_daemon()).flatten();
        if let Some(why) = aborted.filter(|_| run.attempt < ATTEMPTS) {
            println!(
                "{}: once more, since QEMU aborted without its daemon: {why}",
                run.label()
            );
            bed.end();
            run.attempt += 1;
            waiting.again(run);
            continue;
        }
        cases.extend(bed.new_complaints().into_iter().map(|line| Case {
            name: "kernel log".into(),
            outcome: Outcome::Failed(vec![line]),
        }));
        totals().add_and_show(&run, &cases, began.elapsed(), &bed.dirs.logs);
        if signal.load(Ordering::Relaxed) != 0 {
            totals().failed += 1;
            return;
        }
        // Guests are not reused if a program hangs in them, or a guest or daemon has ended.
        if !ended {
            bed.end();
        } else if bed.is_whole() {
            left = Some((run.wanted, bed));
        } else {
            end(&run.wanted, bed);
        }
    }
    if let Some((wanted, bed)) = left {
        end(&wanted, bed);
    }
}

/// Runs one program. Returns its results, and whether it has ended.
fn run_program(options: &TestOptions, bed: &Bed, program: &Path) -> (Vec<Case>, bool) {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let mut log = File::create(bed.dirs.logs.join(format!("{name}.ktap"))).ok();
    let path = std::path::absolute(program).unwrap_or_else(|_| program.to_path_buf());
    let command = bed.exec(1, vec![path.display().to_string()], None);
    // The program's input is empty.
    command.handle.input(&[]);
    let mut report = Report::default();
    let mut said = String::new();
    let status = loop {
        let bytes = match bed.next(&command.events) {
            Ok(Event::Exit(status)) => break Some(status),
            Ok(Event::Stdout(bytes) | Event::Stderr(bytes)) => bytes,
            Ok(Event::Up | Event::Taken(_)) => continue,
            Ok(Event::Lost) => {
                said = "VM 1 ended".into();
                break None;
            }
            Err(error) => {
                // The program's QPs go with it.
                let stalled = bed.stalled();
                command.handle.kill();
                said = [vec![error.to_string()], stalled].concat().join("\n");
                break None;
            }
        };
        report.feed(&bytes);
        if let Some(log) = &mut log {
            let _ = log.write_all(&bytes);
        }
        if options.verbose {
            let _ = std::io::stdout().write_all(&bytes);
        }
    };
    if !said.is_empty() {
        report.feed(format!("\n{said}\n").as_bytes());
    }
    (report.finish(&name, status), status.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_name_the_guests() {
        let script = "#!/bin/sh\n# SPDX\n# testbed: --path  wire\n# testbed: --path direct\n# more: --vms 3\ntrue\n";
        assert_eq!(
            parse_marks(script, DEFAULT_MARK),
            ["--path wire", "--path direct"]
        );
        assert_eq!(parse_marks(script, "more"), ["--vms 3"]);
        assert!(parse_marks("#!/bin/sh\necho testbed: x\n", DEFAULT_MARK).is_empty());
        for marks in parse_marks(script, DEFAULT_MARK) {
            assert!(Marked::try_parse_from(marks.split_whitespace()).is_ok());
        }
        assert!(Marked::try_parse_from(["--paht", "wire"]).is_err());
    }

    #[test]
    fn guests_are_kept_as_long_as_a_program_wants_them() {
        let run = |wanted: &str, program: &'static str| Run {
            wanted: wanted.into(),
            program: Path::new(program),
            bed: Marked::try_parse_from(wanted.split_whitespace())
                .unwrap()
                .bed,
            attempt: 1,
        };
        let waiting = Waiting(Mutex::new(vec![
            run("", "a"),
            run("--path wire", "b"),
            run("--path wire", "c"),
            run("--vms 3", "d"),
        ]));
        let next = |wanted| waiting.next(wanted).map(|run| run.label());
        assert_eq!(next(None).unwrap(), "b [--path wire]");
        // A thread whose guests have other options gets a program of the largest group.
        assert_eq!(next(Some("--vms 3")).unwrap(), "d [--vms 3]");
        assert_eq!(next(Some("--path wire")).unwrap(), "c [--path wire]");
        assert_eq!(next(Some("--path wire")).unwrap(), "a");
        assert_eq!(next(Some("")), None);
    }
}
