// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Line coverage of each parser by the corpora.
//!
//! A program that is built with LLVM's source coverage replays the corpora. It measures the lines
//! of each parser, while the engine only counts edges of the whole program.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use super::engine::{build, unpack, TRIPLE};
use super::lines::Lines;

/// Minimum line coverage of a parser by its fuzz targets, in percent.
const LEAST: f64 = 90.0;

/// Code that parses bytes from another party.
struct Parser {
    name: &'static str,
    /// Source files and directories of the parser, relative to the tree.
    sources: &'static [&'static str],
    /// Names of the targets that pass bytes to the parser.
    targets: &'static [&'static str],
}

const PARSERS: &[Parser] = &[
    Parser {
        name: "driver's decoder",
        sources: &["rust/shared/decode"],
        targets: &["driver"],
    },
    Parser {
        name: "RoCE packets",
        sources: &[
            "tools/rdmad/roce/src/headers",
            "tools/rdmad/roce/src/net/checksum.rs",
            "tools/rdmad/roce/src/net/mod.rs",
            "tools/rdmad/roce/src/opcode.rs",
            "tools/rdmad/roce/src/packet.rs",
        ],
        targets: &["classify", "speaker"],
    },
    Parser {
        name: "frame classifier",
        sources: &["tools/rdmad/roce/src/net/inspect.rs"],
        targets: &["classify"],
    },
    Parser {
        name: "commands",
        sources: &["tools/rdmad/verbs/src/command"],
        targets: &["guest", "memory", "paths", "chains"],
    },
    Parser {
        name: "WQEs",
        sources: &["tools/rdmad/verbs/src/wqe"],
        targets: &["guest", "paths"],
    },
    Parser {
        name: "page lists",
        sources: &["tools/rdmad/verbs/src/memory/pages.rs"],
        targets: &["memory"],
    },
    Parser {
        name: "descriptor chains",
        sources: &["tools/rdmad/virtqueue/src"],
        // The target `registers` reaches the code that sets up virtqueues.
        targets: &["chains", "registers"],
    },
    Parser {
        name: "PCI registers",
        sources: &["tools/rdmad/vdev/src/pci.rs"],
        targets: &["registers"],
    },
    Parser {
        name: "virtio registers",
        sources: &["tools/rdmad/vdev/src/common.rs"],
        targets: &["registers"],
    },
    Parser {
        name: "vfio-user stream",
        sources: &[
            "tools/rdmad/vdev/src/client.rs",
            "tools/rdmad/vdev/src/client_stream.rs",
            "tools/rdmad/vdev/src/irq_set.rs",
            "tools/rdmad/vdev/src/message.rs",
        ],
        targets: &["stream"],
    },
    Parser {
        name: "claims of addresses",
        sources: &["tools/rdmad/vswitch/src/address_filter.rs"],
        targets: &["uplinks"],
    },
    Parser {
        name: "state file",
        sources: &["tools/rdmad/src/state_document.rs"],
        targets: &["state"],
    },
];

/// The directory for results.
fn work() -> PathBuf {
    build().join("fuzz/coverage")
}

/// Root of the source tree.
fn root() -> io::Result<PathBuf> {
    build().join("..").canonicalize()
}

/// Runs a program and returns its output.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| name.clone())?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {why}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The program that replays inputs. It is built with a counter for each region of the sources.
struct Instrumented {
    program: PathBuf,
    /// Major version of the compiler's LLVM. Tools of other versions can't read its profiles.
    llvm: String,
}

impl Instrumented {
    /// Builds the program.
    fn build() -> Result<Self> {
        let directory = build().join("target-coverage");
        // With an explicit target, build scripts are built without counters.
        let status = Command::new("cargo")
            .args(["build", "--quiet", "--target", TRIPLE])
            .args(["-p", "fuzz", "--bin", "fuzz"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", &directory)
            .env("RUSTFLAGS", "-Cinstrument-coverage")
            .status()
            .context("cargo")?;
        ensure!(status.success(), "the program does not build: {status}");
        let version = output(Command::new("rustc").arg("-vV"))?;
        let llvm = version
            .lines()
            .find_map(|line| line.strip_prefix("LLVM version: "))
            .and_then(|llvm| llvm.split('.').next())
            .context("rustc names no LLVM")?;
        Ok(Self {
            program: directory.join(TRIPLE).join("debug/fuzz"),
            llvm: llvm.to_owned(),
        })
    }

    /// Path of the raw profile of a target.
    fn profile(target: &str) -> PathBuf {
        work().join(target).with_extension("profraw")
    }

    /// Replays the corpus of a target.
    fn replay(&self, name: &str) -> Result<()> {
        let target = fuzz::target(name).with_context(|| format!("{name}: no such target"))?;
        let (_, files) = unpack(target)?;
        let mut command = Command::new(&self.program);
        command
            .args(["replay", name])
            .args(files)
            .env("LLVM_PROFILE_FILE", Self::profile(name));
        output(&mut command).map(drop)
    }

    /// The lines of a parser, and whether its targets have reached each.
    fn lines(&self, parser: &Parser) -> Result<Lines> {
        let merged = work().join("merged.profdata");
        let tool = |name: &str| Command::new(format!("{name}-{}", self.llvm));
        let profiles = parser.targets.iter().map(|target| Self::profile(target));
        output(
            tool("llvm-profdata")
                .args(["merge", "-sparse", "-o"])
                .arg(&merged)
                .args(profiles),
        )?;
        let root = root()?;
        let lcov = output(
            tool("llvm-cov")
                .args(["export", "-format=lcov", "-instr-profile"])
                .arg(&merged)
                .arg(&self.program)
                .args(parser.sources.iter().map(|source| root.join(source))),
        )?;
        let lines = Lines::parse(&lcov).context("llvm-cov: its output has another form")?;
        ensure!(lines.count().1 > 0, "{}: no lines", parser.name);
        Ok(lines)
    }
}

/// Prints the line coverage of each parser by the corpora. Returns whether each reaches the
/// minimum.
pub fn coverage(with_lines: bool) -> Result<bool> {
    fs::create_dir_all(work())?;
    let program = Instrumented::build()?;
    let targets: BTreeSet<_> = PARSERS.iter().flat_map(|parser| parser.targets).collect();
    targets
        .into_iter()
        .try_for_each(|name| program.replay(name))?;
    let root = root()?;
    let mut poor = 0;
    println!("parser               lines  reached       %  targets");
    for parser in PARSERS {
        let lines = program.lines(parser)?;
        let (reached, all) = lines.count();
        let percent = 100.0 * reached as f64 / all as f64;
        let is_poor = percent < LEAST;
        let (name, targets) = (parser.name, parser.targets.join(" "));
        let mark = if is_poor { " (too few)" } else { "" };
        println!("{name:19} {all:>6} {reached:>8} {percent:>7.1}  {targets}{mark}");
        poor += usize::from(is_poor);
        if with_lines || is_poor {
            for (path, missed) in lines.missed() {
                let path = path.strip_prefix(&root).unwrap_or(path);
                println!("    {}: {missed:?}", path.display());
            }
        }
    }
    let all = PARSERS.len();
    println!("fuzz: {} passed, {poor} failed", all - poor);
    Ok(poor == 0)
}
