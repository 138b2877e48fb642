// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The start of two virtual machines, up to the first completion of ibv_rc_pingpong between them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{bail, Context, Result};
use serde::Deserialize;

use super::bed::testbed;
use crate::figure::{Key, Report};

/// The name of the figure.
pub const FIRST_COMPLETION: &str = "start to the first completion";
/// The name of the figure of a counted boot.
pub const BOOT: &str = "boot of the kernel";
const CONFIGURATION: &str = "start";
/// Sends one message to VM 2 and back. The client repeats its connection until the server listens.
const PINGPONG: &str = r#"
for gid in /sys/class/infiniband/*/ports/1/gids/*; do
	read -r value <"$gid"
	case $value in *:0000:ffff:*) break ;; esac
done
index=${gid##*/}
on -n 2 ibv_rc_pingpong -g "$index" -n 1 >/dev/null &
until ibv_rc_pingpong -g "$index" -n 1 vm2 >/dev/null 2>&1; do sleep 0.02; done
wait $!
"#;

/// The part of testbed's summary that is used.
#[derive(Deserialize)]
struct Summary {
    phases: Vec<Phase>,
    qemu_seconds: f64,
}

#[derive(Deserialize)]
struct Phase {
    name: String,
    milliseconds: f64,
}

/// Starts the machines once, and adds the times to the report.
pub fn measure(report: &mut Report, logs: &Path) -> Result<()> {
    add(report, run(logs, &["--", "sh", "-c", PINGPONG])?);
    Ok(())
}

/// Boots a machine that counts instructions, and adds those of its kernel up to the first program.
/// They tell of a slower boot without a clock.
pub fn count(report: &mut Report, logs: &Path) -> Result<()> {
    let summary = run(logs, &["--vms", "1", "--accel", "counted", "--", "true"])?;
    let mut phases = summary.phases.iter();
    let kernel = phases
        .find(|phase| phase.name == "kernel")
        .context("testbed's summary has no phase of the kernel")?;
    // One instruction takes a nanosecond there.
    let instructions = kernel.milliseconds * 1e6;
    report.add(Key::new(BOOT, "counted", "instructions"), instructions);
    Ok(())
}

fn run(logs: &Path, arguments: &[&str]) -> Result<Summary> {
    let file = logs.join("start.json");
    let output = Command::new(testbed()?)
        .args(["run", "--timeout", "300", "--json"])
        .arg(&file)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("can't start testbed")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_str(&fs::read_to_string(&file)?).context("testbed's summary")
}

fn add(report: &mut Report, summary: Summary) {
    let mut total = 0.0;
    for Phase { name, milliseconds } in summary.phases {
        total += milliseconds;
        let key = Key::new(&format!("start, {name}"), CONFIGURATION, "ms");
        report.add(key, milliseconds);
    }
    let mut add = |name, value| report.add(Key::new(name, CONFIGURATION, "ms"), value);
    add(FIRST_COMPLETION, total);
    add(
        "start, processor time of both QEMUs",
        summary.qemu_seconds * 1e3,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up_to_the_first_completion() {
        let summary = r#"{"command": ["true"], "qemu_seconds": 0.5, "phases": [
            {"name": "launcher", "milliseconds": 20.5},
            {"name": "kernel", "milliseconds": 300.0}]}"#;
        let mut report = Report::default();
        add(&mut report, serde_json::from_str(summary).unwrap());
        let median = |name: &str| {
            let figure = report.figures.iter().find(|figure| figure.key.name == name);
            figure.map(|figure| figure.samples.median())
        };
        assert_eq!(median(FIRST_COMPLETION), Some(320.5));
        assert_eq!(median("start, kernel"), Some(300.0));
        assert_eq!(median("start, processor time of both QEMUs"), Some(500.0));
    }
}
