// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Runs of many targets.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use fuzz::Target;

use super::engine::{work, Engine};
use super::report::Report;

/// Runs the targets, `jobs` at a time, for `time` each, and prints a table. Returns whether all
/// runs ended without a finding.
pub fn run(targets: &[&Target], time: Duration, jobs: usize, seed: u32) -> Result<bool> {
    let engine = Engine::build()?;
    let next = AtomicUsize::new(0);
    let reports: Mutex<Vec<(usize, Result<Report>)>> = Mutex::default();
    let work_off = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(target) = targets.get(at) else {
            return;
        };
        let began = Instant::now();
        let log = engine.fuzz(target, time, seed);
        let report = log.map(|log| Report::new(&log, began.elapsed()));
        reports.lock().expect("no panic").push((at, report));
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work_off);
        }
    });
    let mut reports = reports.into_inner().expect("no panic");
    reports.sort_by_key(|(at, _)| *at);
    println!("{}", Report::HEADER);
    let mut failed = Vec::new();
    for (at, report) in reports {
        let (target, report) = (targets[at], report?);
        println!("{:12} {report}", target.name);
        let why = if let Some(path) = &report.finding {
            format!("{0}: make fuzz-replay TARGET={0} FILE={path}", target.name)
        } else if !report.complete {
            format!(
                "{}: see {}",
                target.name,
                work(target).join("log").display()
            )
        } else {
            continue;
        };
        failed.push(why);
    }
    for why in &failed {
        println!("{why}");
    }
    println!(
        "fuzz: {} passed, {} failed",
        targets.len() - failed.len(),
        failed.len()
    );
    Ok(failed.is_empty())
}

/// Adds files to a corpus, each with the name of its file.
pub fn add(target: &Target, files: &[PathBuf]) -> Result<()> {
    let corpus = target.corpus()?.with_files(files, true)?;
    Ok(fs::write(target.corpus_file(), corpus.text())?)
}

/// Adds inputs that reach more code to the corpora.
pub fn merge(targets: &[&Target]) -> Result<()> {
    let engine = Engine::build()?;
    targets.iter().try_for_each(|target| engine.merge(target))
}
