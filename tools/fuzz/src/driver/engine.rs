// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Builds and starts the fuzzing engine.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use fuzz::Target;

pub const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Flags that make stable rustc instrument edges and comparisons with LLVM's SanitizerCoverage.
const RUSTFLAGS: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1";

/// Seconds after which the run of one input counts as endless.
const ENDLESS: u32 = 20;
/// Memory limit of the process in MiB, including the pages of guest memory that were accessed.
const MEMORY: u32 = 2048;
/// Maximum length of an input in bytes.
const INPUT: u32 = 4096;

/// The build directory of the tree.
pub fn build() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build")
}

/// Directory of a target's log, findings and new inputs.
pub fn work(target: &Target) -> PathBuf {
    build().join("fuzz").join(target.name)
}

/// The program of the engine.
pub struct Engine {
    program: PathBuf,
}

impl Engine {
    /// Builds the engine.
    pub fn build() -> Result<Self> {
        let directory = build().join("target-fuzz");
        let status = Command::new("cargo")
            .args(["build", "--quiet", "--profile", "fuzz", "--target", TRIPLE])
            .args([
                "-p",
                "fuzz",
                "--no-default-features",
                "--features",
                "engine",
            ])
            .args(["--bin", "fuzz-engine"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", &directory)
            .env("RUSTFLAGS", RUSTFLAGS)
            .status()
            .context("cargo")?;
        ensure!(status.success(), "the engine does not build: {status}");
        let program = directory.join(TRIPLE).join("fuzz/fuzz-engine");
        Ok(Self { program })
    }

    /// A command that runs `target`, and the path of its log.
    fn command(&self, target: &Target) -> Result<(Command, PathBuf)> {
        let work = work(target);
        fs::create_dir_all(found(target))?;
        let log = work.join("log");
        let mut command = Command::new(&self.program);
        command
            .env("FUZZ_TARGET", target.name)
            .arg(format!("-timeout={ENDLESS}"))
            .arg(format!("-rss_limit_mb={MEMORY}"))
            .arg(format!("-max_len={INPUT}"))
            // libFuzzer must not handle SIGBUS: the device handles it, for missing guest memory.
            .arg("-handle_bus=0")
            .arg(format!("-artifact_prefix={}/", work.display()))
            .stderr(File::create(&log)?);
        Ok((command, log))
    }

    /// Runs a target for `time`, starting with the inputs of its corpora. Returns the engine's log.
    pub fn fuzz(&self, target: &Target, time: Duration, seed: u32) -> Result<String> {
        let (mut command, log) = self.command(target)?;
        command
            .arg(format!("-max_total_time={}", time.as_secs().max(1)))
            .arg(format!("-seed={seed}"))
            .args(["-print_final_stats=1", "-len_control=10"])
            .arg(found(target))
            .arg(unpack(target)?.0)
            .status()?;
        Ok(String::from_utf8_lossy(&fs::read(log)?).into_owned())
    }

    /// Adds inputs from the working directory that reach more code to the corpus of the tree.
    pub fn merge(&self, target: &Target) -> Result<()> {
        let (mut command, log) = self.command(target)?;
        let (known, before) = unpack(target)?;
        let status = command
            // Only reached edges are compared. If their counts were compared too, many more inputs
            // would be added.
            .args(["-merge=1", "-use_counters=0"])
            .arg(&known)
            .arg(found(target))
            .status()?;
        ensure!(status.success(), "{}: see {}", target.name, log.display());
        let after = fs::read_dir(&known)?.map(|entry| entry.map(|entry| entry.path()));
        let mut after = after.collect::<io::Result<Vec<_>>>()?;
        after.retain(|path| !before.contains(path));
        let corpus = target.corpus()?.with_files(&after, false)?;
        fs::write(target.corpus_file(), corpus.text())?;
        Ok(())
    }
}

/// Directory of the inputs that the engine has found.
fn found(target: &Target) -> PathBuf {
    work(target).join("found")
}

/// Unpacks the corpus of the tree. Returns the directory and the files in it.
pub fn unpack(target: &Target) -> Result<(PathBuf, Vec<PathBuf>)> {
    let directory = work(target).join("known");
    let files = target.corpus()?.unpack(&directory)?;
    Ok((directory, files))
}
