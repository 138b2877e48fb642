// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The demo of two joined VMs: once with data copied from memory to memory, once with packets.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::child;
use crate::FAILED;

/// Time limit of a run, in seconds.
const TIMEOUT: &str = "600";
/// The runs of the demo: value of `--path`, title, and argument of the guest's script.
const RUNS: [(&str, &str, &str); 2] = [
    ("direct", "data copied from memory to memory", "both"),
    ("wire", "data as RoCEv2 packets (UDP 4791)", "figures"),
];

/// The result of a measurement in the guest.
struct Figure {
    name: String,
    value: String,
    unit: String,
}

/// Runs the guests' script through this program's `run`, with additional options for `run`. Returns
/// the status.
pub fn demo(script: &Path, options: &[OsString]) -> Result<u8> {
    let began = Instant::now();
    let mut figures = Vec::new();
    for (path, title, part) in RUNS {
        println!("=== Two VMs, {title}");
        let (status, found) = run(path, options, script, part)?;
        if status != 0 {
            return Ok(status);
        }
        figures.push(found);
        println!();
    }
    let [direct, wire] = &figures[..] else {
        unreachable!("each run has figures");
    };
    println!("{:16} {:>14} {:>14}", "", "direct", "RoCEv2");
    for (direct, wire) in direct.iter().zip(wire) {
        let Figure { name, value, unit } = direct;
        println!("{name:16} {value:>14} {:>14}  {unit}", wire.value);
    }
    println!("\ndemo: done in {} s", began.elapsed().as_secs());
    Ok(0)
}

/// Runs the script in one set of guests. Shows its output, except the lines of figures.
fn run(path: &str, options: &[OsString], script: &Path, part: &str) -> Result<(u8, Vec<Figure>)> {
    // The child and its guests end with this process.
    let mut child = child::command()?
        .arg(env::current_exe()?)
        .args(["run", "--timeout", TIMEOUT, "--path", path])
        .args(options)
        .args(["--", "sh"])
        .arg(script)
        .arg(part)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("can't start the guests")?;
    let output = child.stdout.take().context("no output")?;
    let mut figures = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        match figure(&line) {
            Some(figure) => figures.push(figure),
            None => writeln!(io::stdout(), "{line}")?,
        }
    }
    let status = child
        .wait()?
        .code()
        .and_then(|code| u8::try_from(code).ok());
    Ok((status.unwrap_or(FAILED), figures))
}

/// The figure in a line `@ NAME VALUE UNIT`.
fn figure(line: &str) -> Option<Figure> {
    let words: Vec<_> = line.split(' ').collect();
    let ["@", name, value, unit] = words[..] else {
        return None;
    };
    Some(Figure {
        name: name.to_owned(),
        value: value.to_owned(),
        unit: unit.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_in_lines_of_their_own() {
        let found = figure("@ ib_write_bw 12.5 MiB/s").unwrap();
        assert_eq!(
            (&*found.name, &*found.value, &*found.unit),
            ("ib_write_bw", "12.5", "MiB/s")
        );
        for line in ["", "@", "$ ibv_devinfo", " @ a b c", "@ a b"] {
            assert!(figure(line).is_none(), "{line}");
        }
    }
}
